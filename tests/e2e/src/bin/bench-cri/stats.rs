//! Measures the statistics of everything that a daemon has recorded.
//!
//! Invariant: decoding an answer is part of its time.
//! Failure: the call that failed.

use std::time::Instant;

use anyhow::{Context, Result};
use e2e::bench::Stack;
use e2e::samples::Samples;
use e2e::v1;

/// `count` calls of each kind, in turns.
pub(crate) async fn measure(stack: &Stack, count: u32) -> Result<Samples> {
    let cri = stack.cri().await?;
    cri.await_ready().await?;
    let mut runtime = cri.runtime.clone();
    let mut samples = Samples::default();
    let mut containers = 0;
    let mut sandboxes = 0;
    for _ in 0..count {
        let request = v1::ListContainerStatsRequest::default();
        let begun = Instant::now();
        let listed = runtime.list_container_stats(request).await;
        samples.time("container_stats", begun.elapsed());
        containers = listed
            .context("ListContainerStats")?
            .into_inner()
            .stats
            .len();
        let request = v1::ListPodSandboxStatsRequest::default();
        let begun = Instant::now();
        let listed = runtime.list_pod_sandbox_stats(request).await;
        samples.time("sandbox_stats", begun.elapsed());
        sandboxes = listed
            .context("ListPodSandboxStats")?
            .into_inner()
            .stats
            .len();
    }
    samples.fact(
        "entries",
        format!("{containers} containers, {sandboxes} sandboxes"),
    );
    Ok(samples)
}
