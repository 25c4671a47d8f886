//! The programs that are killed, and their restarts.
//!
//! Invariant: a program ends only because it was killed, except a controller whose lease is lost:
//! it stops in order, and its supervisor starts it again. Kubernetes' scheduler is not one of our
//! programs.
//! Failure: a program that ended by itself, by name.

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;

use super::script::{PROGRAMS, Round};
use crate::stack::Stack;

const CONTROLLER: &str = "vmlet-controller";
const SCHEDULER: &str = "kube-scheduler";
/// The last message of a controller that is not the leader any more.
const FAREWELL: &str = "the lease is lost";

/// Kills the victims of a round, and brings them back when they have been dead for long enough.
pub(super) async fn blow(stack: &Stack, round: &Round) -> Result<u32> {
    let mut lost = supervise(stack)?;
    for program in &round.victims {
        let killed = stack.kill(program, Signal::SIGKILL).await;
        // The lease may be lost at any moment.
        if killed.is_err() && *program == CONTROLLER {
            lost += supervise(stack)?;
            continue;
        }
        killed.with_context(|| format!("kill {program}"))?;
    }
    // How long they are dead is part of the chaos; nothing is awaited.
    tokio::time::sleep(round.dead).await;
    for program in &round.victims {
        let back = stack.restart(program);
        back.with_context(|| format!("restart {program}"))?;
    }
    Ok(lost + supervise(stack)?)
}

/// Starts a controller again that stopped for lack of a lease, and a scheduler that ended; gives
/// how many controllers did.
pub(super) fn supervise(stack: &Stack) -> Result<u32> {
    // A scheduler that misses some of what happens while there is no API server takes its memory
    // for corrupted, and ends.
    if !stack.is_alive(SCHEDULER) {
        let back = stack.restart(SCHEDULER);
        back.with_context(|| format!("restart {SCHEDULER}"))?;
    }
    let mut lost = 0;
    for program in PROGRAMS {
        if stack.is_alive(program) {
            continue;
        }
        let log = stack.log(program);
        let last = log.lines().next_back().unwrap_or_default();
        let is_lease = program == CONTROLLER && last.contains(FAREWELL);
        ensure!(is_lease, "{program} ended by itself: {last}");
        let back = stack.restart(program);
        back.with_context(|| format!("restart {program}"))?;
        lost += 1;
    }
    Ok(lost)
}
