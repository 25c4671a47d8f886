//! Measures `ListImages` of a node with many images.
//!
//! Invariant: each image is a file of its own that was pulled; answers are decoded.
//! Failure: the call that failed.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use e2e::Cri;
use e2e::samples::Samples;

use crate::files::{self, Files};

/// Bytes of an image.
const SIZE: usize = 64 << 10;
/// Lists that are measured.
const LISTS: u32 = 1000;

/// Lists of `count` images.
pub(crate) async fn measure(cri: &Cri, files: &Files, count: u32) -> Result<Samples> {
    let name = |number| format!("list-{number}.img");
    let mut samples = Samples::default();
    for number in 0..count {
        let name = name(number);
        files::write(&files.path(&name), SIZE)?;
        let begun = Instant::now();
        cri.pull(&files.image(&name)).await.context("PullImage")?;
        samples.time("small", begun.elapsed());
    }
    for _ in 0..LISTS {
        let begun = Instant::now();
        let images = cri.image_ids().await.context("ListImages")?;
        samples.time("list", begun.elapsed());
        ensure!(images.len() >= count as usize, "{} images", images.len());
    }
    for number in 0..count {
        let image = files.image(&name(number));
        cri.remove_image(&image).await.context("RemoveImage")?;
    }
    Ok(samples)
}
