//! Measures `PullImage` of a file on a web server beside curl.
//!
//! Invariant: all take turns and read the same file from the same server, which has it in memory;
//! the first round is not counted. The image is removed after each pull.
//! Failure: the pull, or the command, that failed.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use e2e::Cri;
use e2e::bench::text;
use e2e::samples::Samples;

use crate::files::{self, Files};

/// Bytes of the file.
const SIZE: usize = 512 << 20;
const NAME: &str = "download.img";

/// `count` downloads of each kind.
pub(crate) async fn measure(cri: &Cri, files: &Files, count: u32) -> Result<Samples> {
    files::write(&files.path(NAME), SIZE)?;
    let image = files.image(NAME);
    let url = files.url(NAME);
    let copy = files.path("copy");
    let copy = text(&copy)?;
    let hashed = format!("curl --silent --fail {url} | sha256sum");
    let kept = format!("curl --silent --fail {url} | tee {copy} | sha256sum; sync {copy}");
    let mut samples = Samples::default();
    for number in 0..=count {
        let begun = Instant::now();
        cri.pull(&image).await.context("PullImage")?;
        let ours = begun.elapsed();
        cri.remove_image(&image).await.context("RemoveImage")?;
        let hashed = shell(&hashed)?;
        let kept = shell(&kept)?;
        std::fs::remove_file(copy)?;
        if number > 0 {
            samples.time("download_vmlet", ours);
            samples.time("download_curl", hashed);
            samples.time("download_kept", kept);
        }
    }
    Ok(samples)
}

fn shell(script: &str) -> Result<Duration> {
    let begun = Instant::now();
    files::run(Command::new("bash").args(["-o", "pipefail", "-ec", script]))?;
    Ok(begun.elapsed())
}
