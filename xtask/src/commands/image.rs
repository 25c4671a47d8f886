//! `image`: builds container images as OCI archives in target/images.
//!
//! Invariant: a second run with the same inputs builds nothing.
//! Failure: names the image and the step.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;

use super::build::Packed;
use crate::node_image::{self, AGENT, CONTROLLER, ProgramImage};
use crate::pod_images;

/// Builds container images, as archives that `ctr images import` reads.
#[derive(Debug, clap::Args)]
pub(crate) struct Image {
    /// Images to build [default: those of Vmlet].
    names: Vec<Name>,
    /// Tag of the images of Vmlet; may be repeated for images that differ in their tags alone.
    #[arg(long = "tag", value_name = "TAG", default_value = env!("CARGO_PKG_VERSION"))]
    tags: Vec<String>,
    #[command(flatten)]
    build: Packed,
}

/// A container image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Name {
    /// The programs of nodes with libvirt and QEMU, for the DaemonSet vmlet-node in deploy/.
    Node,
    /// The controller alone.
    Controller,
    /// The agent alone.
    Agent,
    /// Pause image, which holds the namespaces of a test cluster's pods.
    Pause,
    /// A shell and common tools, for a test cluster's pods.
    Tools,
}

impl Name {
    /// Whether our programs, which are built first, are in it.
    const fn has_programs(self) -> bool {
        matches!(self, Self::Node | Self::Controller | Self::Agent)
    }
}

impl Image {
    /// Runs the command.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let names = match self.names.as_slice() {
            [] => &[Name::Node, Name::Controller, Name::Agent],
            names => names,
        };
        if names.iter().any(|name| name.has_programs()) {
            self.build.programs()?;
        }
        for name in names {
            for (reference, archive) in self.ensure(*name)? {
                println!("image: {reference} is {}", archive.display());
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    /// The images of this name, each with its archive.
    fn ensure(&self, name: Name) -> Result<Vec<(String, PathBuf)>> {
        match name {
            Name::Node => {
                let tags: Vec<_> = self.tags.iter().map(String::as_str).collect();
                let archives = node_image::ensure_all(self.build.profile(), &tags)?;
                let names = tags.iter().map(|tag| format!("{}:{tag}", node_image::NAME));
                Ok(names.zip(archives).collect())
            }
            Name::Controller => self.of_program(CONTROLLER),
            Name::Agent => self.of_program(AGENT),
            Name::Pause => Ok(vec![(
                pod_images::PAUSE.to_owned(),
                pod_images::pause_image()?,
            )]),
            Name::Tools => Ok(vec![(
                pod_images::TOOLS.to_owned(),
                pod_images::tool_image()?,
            )]),
        }
    }

    fn of_program(&self, image: ProgramImage) -> Result<Vec<(String, PathBuf)>> {
        let tagged = self.tags.iter().map(|tag| {
            let archive = image.ensure(self.build.profile(), tag)?;
            Ok((format!("{}:{tag}", image.name()), archive))
        });
        tagged.collect()
    }
}
