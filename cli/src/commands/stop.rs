//! `stop`: powers the guest off, then releases the pod's network.
//!
//! Invariant: the guest has its grace period, and not more.
//! Failure: the daemon's; repeating the command is harmless.

use std::process::ExitCode;

use clap::Args;
use cri_proto::v1::Container;

use crate::context::Endpoint;
use crate::pods::{self, PodArg};
use crate::request::ANNOTATION_GRACE;

const DEFAULT_GRACE: u32 = 30;

/// Pod to stop, and the grace period.
#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    #[command(flatten)]
    pod: PodArg,
    /// Seconds for the guest to power off before it is killed; 0 kills it immediately [default: the
    /// grace period of the pod].
    #[arg(short, long, value_name = "SECONDS")]
    timeout: Option<u32>,
}

pub(crate) async fn run(endpoint: &Endpoint, args: &StopArgs) -> anyhow::Result<ExitCode> {
    let runtime = endpoint.connect().await?;
    let pod = pods::find(&runtime, &args.pod).await?;
    for container in pod.running() {
        let grace = args.timeout.unwrap_or_else(|| grace_of(container));
        runtime.stop_container(&container.id, grace).await?;
    }
    runtime.stop_sandbox(pod.id()).await?;
    super::print(&format!("{}\n", pod.name()))?;
    Ok(ExitCode::SUCCESS)
}

fn grace_of(container: &Container) -> u32 {
    let annotated = container.annotations.get(ANNOTATION_GRACE);
    annotated
        .and_then(|seconds| seconds.parse().ok())
        .unwrap_or(DEFAULT_GRACE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grace_period_of_the_pod_has_precedence() {
        let with = |value: &str| Container {
            annotations: [(ANNOTATION_GRACE.to_owned(), value.to_owned())].into(),
            ..Default::default()
        };
        assert_eq!(
            [with("7"), with("x"), Container::default()].map(|c| grace_of(&c)),
            [7, 30, 30]
        );
    }
}
