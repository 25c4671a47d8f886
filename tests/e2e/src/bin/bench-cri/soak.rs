//! Lives of many pods through the CRI proxy, and what programs hold meanwhile.
//!
//! Invariant: each pod is run, created, started, stopped without grace and removed; as many at
//! once as there are processors. Samples are taken while no pod exists.
//! Failure: the call that failed.

use std::time::Instant;

use anyhow::{Context, Result};
use e2e::bench::Stack;
use e2e::samples::Samples;
use e2e::{Cri, PodOptions};
use tokio::task::JoinSet;

use crate::processes;

/// The handler by which the proxy recognises our pods.
const HANDLER: &str = "vmlet";
/// Pods before the first sample: what programs allocate once is no growth.
const WARM: u32 = 4;
/// Samples are taken after these parts of all pods, in percent.
const PERCENT: [u32; 3] = [10, 50, 100];

/// `count` pods.
pub(crate) async fn measure(stack: &Stack, image: &str, count: u32) -> Result<Samples> {
    let direct = stack.cri_with_image().await?;
    drop(direct);
    let cri = Cri::connect(&stack.path("run/criproxy.sock")).await?;
    cri.pull(image).await.context("PullImage")?;
    let mut samples = Samples::default();
    let mut done = 0;
    pods(stack, &cri, image, 0..WARM, &mut Samples::default()).await?;
    samples.number("pods", 0.0);
    processes::sample(stack, &mut samples)?;
    let begun = Instant::now();
    for percent in PERCENT {
        let until = (count * percent).div_ceil(100);
        let numbers = WARM + done..WARM + until;
        pods(stack, &cri, image, numbers, &mut samples).await?;
        done = until;
        samples.number("pods", f64::from(done));
        processes::sample(stack, &mut samples)?;
    }
    samples.number("seconds", begun.elapsed().as_secs_f64());
    Ok(samples)
}

async fn pods(
    stack: &Stack,
    cri: &Cri,
    image: &str,
    numbers: std::ops::Range<u32>,
    samples: &mut Samples,
) -> Result<()> {
    let at_once = std::thread::available_parallelism()?.get();
    let mut lives = JoinSet::new();
    for number in numbers {
        if lives.len() >= at_once
            && let Some(ended) = lives.join_next().await
        {
            samples.time("life", ended??);
        }
        let pod = stack.pod(&format!("soak-{number}"));
        let cri = cri.clone();
        let image = image.to_owned();
        lives.spawn(async move {
            let begun = Instant::now();
            life(&cri, &pod, &image)
                .await
                .with_context(|| pod.name.clone())?;
            std::fs::remove_dir_all(&pod.logs).ok();
            Ok::<_, anyhow::Error>(begun.elapsed())
        });
    }
    while let Some(ended) = lives.join_next().await {
        samples.time("life", ended??);
    }
    Ok(())
}

async fn life(cri: &Cri, pod: &PodOptions, image: &str) -> Result<()> {
    let sandbox = cri.run_by(pod.sandbox(), HANDLER).await;
    let sandbox = sandbox.context("RunPodSandbox")?;
    let created = Box::pin(cri.create(&sandbox, pod.container(image, 0), pod.sandbox())).await;
    let container = created.context("CreateContainer")?;
    cri.start(&container).await.context("StartContainer")?;
    cri.stop(&container, 0).await.context("StopContainer")?;
    cri.remove(&container).await.context("RemoveContainer")?;
    cri.stop_pod(&sandbox).await.context("StopPodSandbox")?;
    cri.remove_pod(&sandbox).await.context("RemovePodSandbox")
}
