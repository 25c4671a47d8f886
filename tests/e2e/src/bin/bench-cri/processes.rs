//! What the stack's programs hold: resident memory, descriptors, threads.
//!
//! Invariant: what `/proc` reports of the process that the stack names.
//! Failure: a program that does not run is named.

use anyhow::{Context, Result};
use e2e::bench::Stack;
use e2e::samples::Samples;

/// Those that live as long as the node.
const PROGRAMS: [&str; 4] = ["vmlet", "vmlet-tapmanager", "libvirtd", "vmlet-criproxy"];

/// Takes one sample of each program.
pub(crate) fn sample(stack: &Stack, samples: &mut Samples) -> Result<()> {
    for program in PROGRAMS {
        let pid = stack.pid(program)?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
        let status = status.with_context(|| format!("{program} does not run"))?;
        let resident = number(&status, "VmRSS:").context("no VmRSS")?;
        let threads = number(&status, "Threads:").context("no Threads")?;
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd"))?.count();
        samples.number(format!("rss_{program}"), resident);
        samples.number(format!("threads_{program}"), threads);
        let descriptors = f64::from(u32::try_from(descriptors)?);
        samples.number(format!("fds_{program}"), descriptors);
    }
    Ok(())
}

fn number(status: &str, name: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}
