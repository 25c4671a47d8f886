//! `image`: builds container images as OCI archives in target/images.
//!
//! Invariant: a second run with the same inputs builds nothing.
//! Failure: names the image and the step.

use std::process::ExitCode;

use anyhow::Result;

use super::build::Packed;
use crate::{node_image, pod_images};

/// Builds container images, as archives that `ctr images import` reads.
#[derive(Debug, clap::Args)]
pub(crate) struct Image {
    /// Images to build [default: the node image].
    names: Vec<Name>,
    /// Tag of the node image.
    #[arg(long, default_value = env!("CARGO_PKG_VERSION"))]
    tag: String,
    #[command(flatten)]
    build: Packed,
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
                    self.build.programs()?;
                    let archive = node_image::ensure(self.build.profile(), &self.tag)?;
                    (format!("{}:{}", node_image::NAME, self.tag), archive)
                }
                Name::Pause => (pod_images::PAUSE.to_owned(), pod_images::pause_image()?),
                Name::Tools => (pod_images::TOOLS.to_owned(), pod_images::tool_image()?),
            };
            println!("image: {reference} is {}", archive.display());
        }
        Ok(ExitCode::SUCCESS)
    }
}
