//! Measures `ExecSync` of a command that ends at once.
//!
//! Invariant: the ways take turns; each way is the one that its name says, which the parent of a
//! command shows (a script, where the QEMU guest agent runs it).
//! Failure: an agent that does not answer, or a command that failed.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::bench::Stack;
use e2e::eventually;
use e2e::samples::Samples;

use crate::sides::{Side, Sides};

const ANNOTATION: &str = "vmlet.dev/guest-agent";
/// A guest boots under software emulation on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Commands of each way that are not counted.
const WARM: u32 = 5;

/// `count` commands each way.
pub(crate) async fn measure(
    stack: &Stack,
    image: &str,
    tools: &str,
    count: u32,
) -> Result<Samples> {
    let sides = Sides::connect(stack, image, tools).await?;
    let agent = sides.pod(stack, "exec-agent")?;
    let mut qemu = sides.pod(stack, "exec-qemu")?;
    qemu.annotations
        .insert(ANNOTATION.to_owned(), "off".to_owned());
    let ways = [
        ("exec_agent", &sides.vmlet, &agent),
        ("exec_qemu", &sides.vmlet, &qemu),
        ("exec_runc", &sides.containerd, &agent),
    ];
    let mut booted = Vec::new();
    for (name, side, pod) in ways {
        let (sandbox, container) = side.boot(pod).await.context(name)?;
        booted.push((name, side, sandbox, container));
    }
    for (name, side, _, container) in &booted {
        let parent = match *name {
            "exec_agent" => Some("vmlet-guest"),
            "exec_qemu" => Some("sh"),
            _ => None,
        };
        await_runner(side, container, parent).await?;
    }
    let mut samples = Samples::default();
    for number in 0..count + WARM {
        for (name, side, _, container) in &booted {
            let begun = Instant::now();
            let answer = side.cri.exec(container, &["true"], 10).await;
            let took = begun.elapsed();
            let answer = answer.with_context(|| (*name).to_owned())?;
            ensure!(answer.exit_code == 0, "{name}: {}", answer.exit_code);
            if number >= WARM {
                samples.time(*name, took);
            }
        }
    }
    for (_, side, sandbox, _) in &booted {
        side.take_away(sandbox).await?;
    }
    Ok(samples)
}

/// Waits until commands are children of `parent`, or simply run.
async fn await_runner(side: &Side, container: &str, parent: Option<&str>) -> Result<()> {
    let Some(parent) = parent else {
        return side.cri.await_agent(container).await;
    };
    eventually(TIMEOUT, &format!("commands run by {parent}"), || async {
        let name = side.cri.shell(container, "cat /proc/$PPID/comm").await?;
        ensure!(name == parent, "it is {name}");
        Ok(())
    })
    .await
}
