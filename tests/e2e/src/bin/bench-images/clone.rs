//! Measures `CreateContainer`, which makes the root disk of a machine, by the size of its image.
//!
//! Invariant: the images differ in their virtual size only; they take turns, and the first round is
//! not counted. No machine starts.
//! Failure: the call that failed.

use std::time::Instant;

use anyhow::{Context, Result};
use e2e::Cri;
use e2e::bench::Stack;
use e2e::samples::Samples;

use crate::files::{self, Files};

/// Virtual sizes, in GiB.
const SIZES: [u64; 3] = [1, 10, 40];
/// Bytes of content.
const CONTENT: usize = 64 << 20;

/// `count` disks from each image.
pub(crate) async fn measure(
    stack: &Stack,
    cri: &Cri,
    files: &Files,
    count: u32,
) -> Result<Samples> {
    for size in SIZES {
        let name = name(size);
        files::write_qcow2(&files.path(&name), CONTENT, size << 30)?;
        cri.pull(&files.image(&name)).await.context("PullImage")?;
    }
    let mut samples = Samples::default();
    for number in 0..=count {
        for size in SIZES {
            let pod = stack.pod(&format!("clone-{size}-{number}"));
            let sandbox = cri.run(pod.sandbox()).await.context("RunPodSandbox")?;
            let container = pod.container(&files.image(&name(size)), 0);
            let begun = Instant::now();
            let created = Box::pin(cri.create(&sandbox, container, pod.sandbox())).await;
            let took = begun.elapsed();
            created.context("CreateContainer")?;
            if number > 0 {
                samples.time(format!("clone_{size}"), took);
            }
            stack.remove(cri, &sandbox).await?;
        }
    }
    for size in SIZES {
        cri.remove_image(&files.image(&name(size))).await?;
    }
    Ok(samples)
}

fn name(size: u64) -> String {
    format!("clone-{size}.qcow2")
}
