//! `node pull`: brings an image into the store of this node.
//!
//! Invariant: the pull ends with this command, unless other clients wait for the same image; what
//! was received is kept for the next pull.
//! Failure: the daemon's sentence.

use std::pin::pin;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use cri_proto::v1::{ImageSpec, PodSandboxConfig};

use super::progress;
use super::run::RunError;
use crate::context::Endpoint;
use crate::interrupt::Interrupts;

/// Image to pull.
#[derive(Debug, Args)]
pub(crate) struct NodePullArgs {
    /// Name of the image, as a pod would have it.
    #[arg(value_name = "NAME")]
    name: String,
}

pub(crate) async fn run(endpoint: &Endpoint, args: &NodePullArgs) -> anyhow::Result<ExitCode> {
    let runtime = endpoint.connect().await?;
    let mut interrupts = Interrupts::listen().context("listen for signals")?;
    let image = ImageSpec {
        image: args.name.clone(),
        ..ImageSpec::default()
    };
    let mut pull = pin!(runtime.pull_image(image.clone(), PodSandboxConfig::default()));
    let id = tokio::select! {
        id = &mut pull => id?,
        never = progress::show(&runtime, image) => match never {},
        () = interrupts.next() => return Err(RunError::Interrupted.into()),
    };
    super::print(&format!("{id}\n"))?;
    Ok(ExitCode::SUCCESS)
}
