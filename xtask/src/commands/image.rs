//! `image`: builds container images as OCI archives in target/images.
//!
//! Invariant: a second run with the same inputs builds nothing.
//! Failure: names the image and the step.

use std::process::ExitCode;

use anyhow::Result;

use super::up::Build;
use crate::node_image::{self, Profile};
use crate::pod_images;

/// Builds container images, as archives that `ctr images import` reads.
#[derive(Debug, clap::Args)]
pub(crate) struct Image {
    /// Images to build [default: the node image].
    names: Vec<Name>,
    /// Tag of the node image.
    #[arg(long, default_value = env!("CARGO_PKG_VERSION"))]
    tag: String,
    /// Use debug builds in the node image: faster to build, and with crash points.
    #[arg(long)]
    debug: bool,
    /// Use the programs without building them.
    #[arg(long)]
    no_build: bool,
}

/// A container image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Name {
    /// The programs of Vmlet with libvirt and QEMU, for the DaemonSet in deploy/.
    Node,
    /// Pause image, which holds the namespaces of a test cluster's pods.
    Pause,
    /// A shell and common tools, for a test cluster's pods.
    Tools,
}

impl Image {
    /// Runs the command.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let names = match self.names.as_slice() {
            [] => &[Name::Node],
            names => names,
        };
        for name in names {
            let (reference, archive) = match name {
                Name::Node => {
                    self.build().programs()?;
                    let archive = node_image::ensure(self.profile(), &self.tag)?;
                    (format!("{}:{}", node_image::NAME, self.tag), archive)
                }
                Name::Pause => (pod_images::PAUSE.to_owned(), pod_images::pause_image()?),
                Name::Tools => (pod_images::TOOLS.to_owned(), pod_images::tool_image()?),
            };
            println!("image: {reference} is {}", archive.display());
        }
        Ok(ExitCode::SUCCESS)
    }

    /// As `up` builds them, so that nothing is built twice.
    fn build(&self) -> Build {
        let mut build = if self.debug {
            Build::DEVELOPMENT
        } else {
            Build::RELEASE
        };
        build.no_build = self.no_build;
        build
    }

    fn profile(&self) -> Profile {
        if self.debug {
            Profile::Debug
        } else {
            Profile::Release
        }
    }
}
