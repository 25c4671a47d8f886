//! The programs that are killed, and their restarts.
//!
//! Invariant: a program ends only because it was killed, except a controller whose lease is lost:
//! it stops in order, and its supervisor starts it again. Kubernetes' scheduler is not one of our
//! programs.
//! Failure: a program that ended by itself, by name.

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;

use super::script::{PROGRAMS, Place, Round};
use crate::Cluster;
use crate::stack::Stack;

const CONTROLLER: &str = "vmlet-controller";
const SCHEDULER: &str = "kube-scheduler";
/// The last message of a controller that is not the leader any more.
const FAREWELL: &str = "the lease is lost";

/// Kills the victims of a round, and brings them back when they have been dead for long enough.
pub(super) async fn blow(cluster: &Cluster, round: &Round) -> Result<u32> {
    let mut lost = supervise(cluster)?;
    for victim in &round.victims {
        let stack = cluster.node(victim.node);
        let killed = stack.kill(victim.program, Signal::SIGKILL).await;
        // The lease may be lost at any moment.
        if killed.is_err() && victim.program == CONTROLLER {
            lost += supervise(cluster)?;
            continue;
        }
        killed.with_context(|| format!("kill {}", victim.program))?;
    }
    // How long they are dead is part of the chaos; nothing is awaited.
    tokio::time::sleep(round.dead).await;
    for victim in &round.victims {
        restart(cluster.node(victim.node), victim.program)?;
    }
    Ok(lost + supervise(cluster)?)
}

/// Starts a controller again that stopped for lack of a lease, and a scheduler that ended; gives
/// how many controllers did.
pub(super) fn supervise(cluster: &Cluster) -> Result<u32> {
    let control = cluster.stack();
    // A scheduler that misses some of what happens while there is no API server takes its memory
    // for corrupted, and ends.
    if !control.is_alive(SCHEDULER) {
        restart(control, SCHEDULER)?;
    }
    let mut lost = 0;
    for (program, place) in PROGRAMS {
        let nodes = match place {
            Place::Cluster => 1,
            Place::Node => usize::MAX,
        };
        for stack in cluster.nodes().take(nodes) {
            if stack.is_alive(program) {
                continue;
            }
            let log = stack.log(program);
            let last = log.lines().next_back().unwrap_or_default();
            let is_lease = program == CONTROLLER && last.contains(FAREWELL);
            ensure!(
                is_lease,
                "{program} in {} ended by itself: {last}",
                stack.dir().display()
            );
            restart(stack, program)?;
            lost += 1;
        }
    }
    Ok(lost)
}

fn restart(stack: &Stack, program: &str) -> Result<()> {
    let back = stack.restart(program);
    back.with_context(|| format!("restart {program} in {}", stack.dir().display()))
}
