//! Measures the time until a guest's first output, with and without Vmlet.
//!
//! Invariant: both kinds of runs take turns, boot the same fresh disk, and end at the first byte;
//! the first of each is not counted.
//! Failure: a guest that stays silent, with what QEMU reported.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::by_hand::Recipe;
use crate::first_write::FirstWrite;
use crate::samples::Samples;
use e2e::bench::Stack;

/// Software emulation on a busy machine prints something in this time, with room to spare.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Digits of an id in the names of its files.
const DIGITS: usize = 20;

/// `count` runs of each kind.
pub(crate) async fn measure(stack: &Stack, count: u32) -> Result<Samples> {
    let cri = stack.cri_with_image().await?;
    let mut samples = Samples::default();
    for number in 0..=count {
        let scratch = stack.path(&format!("by-hand-{number}"));
        std::fs::create_dir(&scratch)?;
        let pod = stack.pod(&format!("console-{number}"));
        let sandbox = cri.run(pod.sandbox()).await.context("RunPodSandbox")?;
        let container = stack.create(&cri, &pod, &sandbox).await?;
        let disks = stack.path("state/pods").join(&sandbox[..DIGITS]);
        std::fs::copy(disks.join("root.qcow2"), scratch.join("root.qcow2"))?;

        let raw = format!("state/console/{}.raw", &container[..DIGITS]);
        let first = FirstWrite::to(&stack.path(&raw))?;
        let waiting = tokio::task::spawn_blocking(move || first.wait(TIMEOUT));
        let requested = Instant::now();
        cri.start(&container).await.context("StartContainer")?;
        let ours = waiting.await??.duration_since(requested);
        let recipe = Recipe::of(emulator(&container)?, &disks, &scratch)?;
        stack.remove(&cri, &sandbox).await?;

        let by_hand = tokio::task::block_in_place(|| run(&recipe, &scratch.join("messages")))?;
        if number > 0 {
            samples.time("console_vmlet", ours);
            samples.time("console_by_hand", by_hand);
        }
        std::fs::remove_dir_all(&scratch)?;
    }
    Ok(samples)
}

/// Time from the execution of QEMU to the first byte.
fn run(recipe: &Recipe, messages: &Path) -> Result<Duration> {
    let first = FirstWrite::to(&recipe.console)?;
    let begun = Instant::now();
    let mut qemu = recipe.spawn(messages)?;
    let written = first.wait(TIMEOUT);
    // It runs on until it is killed, unless it could not even start.
    let _ = qemu.kill();
    qemu.wait()?;
    let reported = || std::fs::read_to_string(messages).unwrap_or_default();
    Ok(written.with_context(reported)?.duration_since(begun))
}

/// The process of a container's emulator.
fn emulator(container: &str) -> Result<i32> {
    let name = format!("guest=vmlet-{}", &container[..DIGITS]);
    let mut processes = std::fs::read_dir("/proc")?.flatten();
    let found = processes.find_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let command_line = std::fs::read(entry.path().join("cmdline")).ok()?;
        String::from_utf8_lossy(&command_line)
            .contains(&name)
            .then_some(pid)
    });
    found.with_context(|| format!("no process is {name}"))
}
