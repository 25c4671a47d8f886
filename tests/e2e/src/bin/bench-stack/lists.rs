//! Measures the lists that kubelet requests every second.
//!
//! Invariant: each answer holds every row; decoding it is part of the time, as it is for kubelet.
//! Failure: the call that failed.

use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::memory;
use crate::samples::Samples;
use e2e::bench::Stack;

/// `count` calls of each list, in turns.
pub(crate) async fn measure(stack: &Stack, count: u32) -> Result<Samples> {
    let cri = stack.cri().await?;
    cri.await_ready().await?;
    let mut samples = Samples::default();
    let containers = cri.containers().await?;
    let sandboxes = cri.sandboxes().await?;
    let containers = containers.len();
    let sandboxes = sandboxes.len();
    samples.fact(
        "rows",
        format!("{containers} containers, {sandboxes} sandboxes"),
    );
    for _ in 0..count {
        let begun = Instant::now();
        let listed = cri.containers().await.context("ListContainers")?;
        samples.time("list_containers", begun.elapsed());
        ensure!(listed.len() == containers, "{} containers", listed.len());
        let begun = Instant::now();
        let listed = cri.sandboxes().await.context("ListPodSandbox")?;
        samples.time("list_sandboxes", begun.elapsed());
        ensure!(listed.len() == sandboxes, "{} sandboxes", listed.len());
    }
    memory::sample(stack, &mut samples)?;
    Ok(samples)
}
