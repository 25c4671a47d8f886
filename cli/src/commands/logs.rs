//! `node logs`: the console log of a pod of this node.
//!
//! Invariant: the newest container's log, from its beginning.
//! Failure: no container yet, or a log that cannot be read from here.

use std::process::ExitCode;

use anyhow::Context;
use clap::Args;

use crate::context::Endpoint;
use crate::logs::{LogReader, follow};
use crate::pods::{self, PodArg};

/// Pod whose log to print.
#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    #[command(flatten)]
    pod: PodArg,
    /// Follow the log until the VM ends.
    #[arg(short, long)]
    follow: bool,
}

pub(crate) async fn run(endpoint: &Endpoint, args: &LogsArgs) -> anyhow::Result<ExitCode> {
    let runtime = endpoint.connect().await?;
    let pod = pods::find(&runtime, &args.pod).await?;
    let container = pod
        .container()
        .with_context(|| format!("pod {} has no container, and so no log", pod.name()))?;
    let status = runtime.container_status(&container.id, false).await?.status;
    let path = status.map(|s| s.log_path).filter(|path| !path.is_empty());
    let path = path.with_context(|| format!("pod {} was made without a log", pod.name()))?;
    let (mut reader, mut out) = (LogReader::new(path), tokio::io::stdout());
    if args.follow {
        follow(&runtime, &container.id, reader, &mut out).await?;
    } else {
        while reader.pump(&mut out).await? {}
    }
    Ok(ExitCode::SUCCESS)
}
