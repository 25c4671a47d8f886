//! Boots a pod by Vmlet, and then the same machine by hand.
//!
//! Invariant: both boot the same fresh disk, and end at what is awaited. Shares of both are served
//! by the same program with the same arguments.
//! Failure: a guest that stays silent, with what QEMU reported.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use e2e::bench::Stack;
use e2e::{Cri, PodOptions};

use crate::by_hand::Recipe;
use crate::first_write::FirstWrite;

/// Software emulation on a busy machine prints something in this time, with room to spare.
const TIMEOUT: Duration = Duration::from_secs(60);
/// A distribution boots in this time.
const BOOT: Duration = Duration::from_secs(300);
/// Digits of an id in the names of its files.
const DIGITS: usize = 20;
/// The user of shares.
const SHARE_USER: &str = "65534";

/// What a guest is to write on its console.
#[derive(Debug, Clone)]
pub(crate) enum Awaited {
    /// Anything.
    FirstByte,
    /// Two texts, one after the other.
    Texts([&'static str; 2]),
}

/// A guest that has written it.
#[derive(Debug)]
pub(crate) struct Seen {
    /// How long after the start it wrote the first byte, or the first text.
    pub(crate) after: Duration,
    /// What else it wrote, when texts were awaited.
    pub(crate) console: String,
}

/// A start by Vmlet, and one by hand.
pub(crate) async fn both(
    stack: &Stack,
    cri: &Cri,
    pod: &PodOptions,
    awaited: &Awaited,
) -> Result<(Seen, Seen)> {
    let scratch = stack.path("by-hand");
    std::fs::create_dir(&scratch)?;
    let sandbox = cri.run(pod.sandbox()).await.context("RunPodSandbox")?;
    let container = stack.create(cri, pod, &sandbox).await?;
    let id = &container[..DIGITS];
    let seeds = stack.path("state/seeds");
    let disks = stack.path("state/pods").join(&sandbox[..DIGITS]);
    let sockets = stack.path("state/console").join(id);
    std::fs::copy(disks.join("root.qcow2"), scratch.join("root.qcow2"))?;
    let seed = format!("{id}.iso");
    std::fs::copy(seeds.join(&seed), scratch.join(&seed))?;

    let console = stack.path(&format!("state/console/{id}.raw"));
    let watch = FirstWrite::to(&console)?;
    let wanted = awaited.clone();
    let waiting = tokio::task::spawn_blocking(move || wanted.wait(&watch, &console));
    let requested = Instant::now();
    cri.start(&container).await.context("StartContainer")?;
    let (at, console) = waiting.await??;
    let ours = Seen {
        after: at.duration_since(requested),
        console,
    };
    let shares = serve(stack, pod, &scratch)?;
    let emulator = emulator(&format!("vmlet-{id}"))?;
    let recipe = Recipe::read(emulator, &[&disks, &seeds, &sockets], &scratch)?;
    let recipe = match awaited {
        Awaited::FirstByte => recipe,
        Awaited::Texts(_) => recipe.with_default_cache(),
    };
    stack.remove(cri, &sandbox).await?;

    let by_hand = tokio::task::block_in_place(|| run(&recipe, &scratch, awaited))?;
    for mut share in shares {
        share.wait()?;
    }
    std::fs::remove_dir_all(&scratch)?;
    Ok((ours, by_hand))
}

fn run(recipe: &Recipe, scratch: &Path, awaited: &Awaited) -> Result<Seen> {
    let messages = scratch.join("messages");
    let watch = FirstWrite::to(&recipe.console)?;
    let begun = Instant::now();
    let mut qemu = recipe.spawn(&messages)?;
    let written = awaited.wait(&watch, &recipe.console);
    // It runs on until it is killed, unless it could not even start.
    let _ = qemu.kill();
    qemu.wait()?;
    let reported = || std::fs::read_to_string(&messages).unwrap_or_default();
    let (at, console) = written.with_context(reported)?;
    Ok(Seen {
        after: at.duration_since(begun),
        console,
    })
}

/// Serves the directories of a pod to the machine that is started by hand.
fn serve(stack: &Stack, pod: &PodOptions, scratch: &Path) -> Result<Vec<Child>> {
    let serve = |(number, (directory, _)): (usize, &(std::path::PathBuf, String))| {
        let tag = format!("vmlet-{number}");
        let listener = UnixListener::bind(scratch.join(format!("{tag}.fs")))?;
        let mut program = Command::new(stack.path("bin/vmlet-virtiofsd"));
        program.args(["serve", "--tag", &tag, "--directory"]);
        program.arg(directory);
        for option in ["--uid", "--gid", "--root-uid", "--root-gid"] {
            program.args([option, SHARE_USER]);
        }
        program.stdin(Stdio::null()).stdout(OwnedFd::from(listener));
        program.spawn().context("serve a directory")
    };
    pod.writable.iter().enumerate().map(serve).collect()
}

impl Awaited {
    /// The time of the first byte or text, and what was written until the last text.
    fn wait(&self, watch: &FirstWrite, console: &Path) -> Result<(Instant, String)> {
        let Self::Texts([first, last]) = self else {
            return Ok((watch.wait(TIMEOUT)?, String::new()));
        };
        let deadline = Instant::now() + BOOT;
        let mut at = None;
        loop {
            let now = watch.wait(deadline.saturating_duration_since(Instant::now()))?;
            let written = std::fs::read(console)?;
            let written = String::from_utf8_lossy(&written);
            if at.is_none() && written.contains(first) {
                at = Some(now);
            }
            if let Some(at) = at.filter(|_| written.contains(last)) {
                return Ok((at, written.into_owned()));
            }
        }
    }
}

/// The process of a domain's emulator.
pub(crate) fn emulator(domain: &str) -> Result<i32> {
    let name = format!("guest={domain}");
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
