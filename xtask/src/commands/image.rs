//! `image`: builds container images as OCI archives in target/images.
//!
//! Invariant: a second run with the same inputs builds nothing.
//! Failure: names the image and the step.

use std::process::ExitCode;

use anyhow::Result;

use crate::pod_images;

/// Builds container images, as archives that `ctr images import` reads.
#[derive(Debug, clap::Args)]
pub(crate) struct Image {
    /// Only these.
    names: Vec<Name>,
}

/// A container image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Name {
    /// What holds the namespaces of a test cluster's pods.
    Pause,
    /// A shell and the usual tools, for a test cluster's pods.
    Tools,
}

impl Image {
    /// Runs the command.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let names = match self.names.as_slice() {
            [] => <Name as clap::ValueEnum>::value_variants(),
            names => names,
        };
        for name in names {
            let (reference, archive) = match name {
                Name::Pause => (pod_images::PAUSE, pod_images::pause_image()?),
                Name::Tools => (pod_images::TOOLS, pod_images::tool_image()?),
            };
            println!("image: {reference} is {}", archive.display());
        }
        Ok(ExitCode::SUCCESS)
    }
}
