//! Measures the duration of a start, and the part of each program.
//!
//! Invariant: plugins' and libvirt's time are what our programs waited for them, as they log it;
//! all the rest of the three calls is ours.
//! Failure: a call that failed, or an event that is missing in a log.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::samples::Samples;
use e2e::bench::field;
use e2e::bench::{Booted, Calls, Stack};

/// Starts and removes `count` machines, one after the other.
pub(crate) async fn measure(stack: &Stack, count: u32) -> Result<Samples> {
    let cri = stack.cri_with_image().await?;
    let mut samples = Samples::default();
    samples.fact("accelerator", accelerator(&cri).await?);
    // The first one fills the caches of the kernel and of libvirt.
    for number in 0..=count {
        let pod = stack.pod(&format!("start-{number}"));
        let seen = (
            stack.log_size("vmlet")?,
            stack.log_size("vmlet-tapmanager")?,
        );
        let (booted, calls) = stack.boot(&cri, &pod).await?;
        if number > 0 {
            add(stack, &mut samples, seen, &booted, calls)?;
        }
        stack.remove(&cri, &booted.sandbox).await?;
    }
    Ok(samples)
}

/// What the daemon chose.
async fn accelerator(cri: &e2e::Cri) -> Result<String> {
    let request = e2e::v1::StatusRequest { verbose: true };
    let answer = cri.runtime.clone().status(request).await?.into_inner();
    let info = answer.info.get("info").context("no verbose status")?;
    let info: serde_json::Value = serde_json::from_str(info)?;
    let choice = &info["accelerator"]["choice"];
    Ok(choice.as_str().unwrap_or("not chosen").to_owned())
}

fn add(
    stack: &Stack,
    samples: &mut Samples,
    seen: (usize, usize),
    booted: &Booted,
    calls: Calls,
) -> Result<()> {
    let daemon = stack.log_from("vmlet", seen.0)?;
    let running = |name| field(&daemon, &booted.container, "container started", name);
    let tapmanager = stack.log_from("vmlet-tapmanager", seen.1)?;
    let added = |name| field(&tapmanager, &booted.sandbox, "network added", name);

    let plugins = added("plugins")?;
    let libvirt = running("define")? + running("start")?;
    let all = calls.run + calls.create + calls.start;
    let ours = |whole: Duration, helpers: Duration| whole.saturating_sub(helpers);
    samples.time("run", calls.run);
    samples.time("create", calls.create);
    samples.time("start", calls.start);
    samples.time("plugins", plugins);
    samples.time("libvirt", libvirt);
    samples.time("run_ours", ours(calls.run, plugins));
    samples.time("network_ours", ours(added("took")?, plugins));
    samples.time("start_ours", ours(calls.start, libvirt));
    samples.time("ours", ours(all, plugins + libvirt));
    Ok(())
}
