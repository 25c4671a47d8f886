//! The same call directly and through the proxy, in turns, by several clients at once.
//!
//! Invariant: every client has a connection of its own each way and waits for an answer before its
//! next call; decoding is part of the time, as it is for kubelet. Both ways answer the same number
//! of entries.
//! Failure: the call that failed.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use e2e::samples::Samples;
use e2e::{Cri, v1};

use crate::parts::Parts;

/// Calls of each way that are not counted.
const WARM_UP: u32 = 20;

/// What can be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Call {
    /// `Version`, which only the primary answers.
    Version,
    /// `ListContainers`, merged.
    Containers,
    /// `ListPodSandbox`, merged.
    Sandboxes,
}

/// Calls until each client has made `count` calls each way.
pub(crate) async fn measure(
    parts: &Parts,
    call: Call,
    clients: u32,
    count: u32,
) -> Result<Samples> {
    let mut tasks = Vec::new();
    for _ in 0..clients {
        let direct = connect(&parts.direct()).await.context("direct")?;
        let proxied = connect(&parts.proxied()).await.context("proxied")?;
        tasks.push(tokio::spawn(client(direct, proxied, call, count)));
    }
    let mut samples = Samples::default();
    for task in tasks {
        for (direct, proxied) in task.await.context("a client")?? {
            samples.time("direct", direct);
            samples.time("proxied", proxied);
        }
    }
    let entries = send(&connect(&parts.direct()).await?, call).await?;
    samples.fact("entries", entries.to_string());
    Ok(samples)
}

async fn connect(socket: &Path) -> Result<Cri> {
    Cri::connect(socket).await
}

async fn client(
    direct: Cri,
    proxied: Cri,
    call: Call,
    count: u32,
) -> Result<Vec<(Duration, Duration)>> {
    let mut times = Vec::new();
    for number in 0..count + WARM_UP {
        let begun = Instant::now();
        let expected = send(&direct, call).await.context("direct")?;
        let first = begun.elapsed();
        let begun = Instant::now();
        let entries = send(&proxied, call).await.context("proxied")?;
        let second = begun.elapsed();
        ensure!(
            entries == expected,
            "{entries} entries through the proxy, {expected} directly"
        );
        if number >= WARM_UP {
            times.push((first, second));
        }
    }
    Ok(times)
}

/// One call; the number of entries of its answer.
async fn send(cri: &Cri, call: Call) -> Result<usize> {
    let mut runtime = cri.runtime.clone();
    Ok(match call {
        Call::Version => runtime
            .version(v1::VersionRequest::default())
            .await
            .map(|answer| answer.get_ref().version.len())?,
        Call::Containers => runtime
            .list_containers(v1::ListContainersRequest::default())
            .await
            .map(|answer| answer.get_ref().containers.len())?,
        Call::Sandboxes => runtime
            .list_pod_sandbox(v1::ListPodSandboxRequest::default())
            .await
            .map(|answer| answer.get_ref().items.len())?,
    })
}
