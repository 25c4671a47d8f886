//! The controller under an API server that loses answers, watches that lag, nodes that are silent, clocks
//! that step and processes that are killed.
//!
//! ```text
//!  users ─► API server ─► watches (lag, relists) ─► feeds, intake, queue, passes ─► requests (lost, refused) ─┐
//!             ▲  ▲                                        killed after any write                              │
//!             │  └──────────────────────────────────────────────────────────────────────────────────────────┘
//!             └─ scheduler, kubelets, agents, garbage collector: nodes with disks and guests
//! ```
//!
//! A schedule is a plan ([`plan::Plan`]): some minutes of faults, then none, in virtual time on one thread.
//! On the way no guest runs twice, no disk is made twice, deleted under a machine that stays or reverted under a
//! guest, no saved memory is lost, and no object goes before what nodes have for it ([`nodes::Nodes`],
//! [`verdict`]). In the end everything is as desired within half an hour, though nothing is repeated on a timer,
//! and then no write comes twice ([`verdict`]).
//!
//! `VMLET_SIMULATION=1000+5000` runs 5000 schedules from seed 1000,
//! `VMLET_SIMULATION=7/3/Lag,Crashes/Snapshots` one plan.
//!
//! Invariant: the number of schedules is fixed; none depends on real time; a plan decides everything, so that it
//! has the same trace each time.
//! Failure: the smallest plan that still fails, what it found, and the end of its trace.

mod agent;
mod cluster;
mod kubelet;
mod layers;
mod nodes;
mod plan;
mod process;
mod requests;
mod signal;
mod target;
mod users;
mod verdict;
mod watches;
mod world;

use std::collections::BTreeSet;
use std::sync::Arc;

use rstest::rstest;
use tokio::runtime::Builder;
use tokio::task::JoinSet;

use self::nodes::NODE_NAMES;
use self::plan::{Kind, Plan};
use self::world::World;
use super::bench::{CLASSES, IMAGES, NODES, class, image};

/// Schedules of each test.
const SCHEDULES: u64 = 15;
/// Runs that look for a smaller plan.
const ATTEMPTS: usize = 40;
/// What runs instead.
const CHOICE: &str = "VMLET_SIMULATION";

/// Lines of a trace that are shown, from its end.
const SHOWN: usize = 150;

/// What came of a schedule.
struct Record {
    plan: Plan,
    findings: Vec<String>,
    trace: Vec<String>,
}

impl Record {
    fn has_failed(&self) -> bool {
        !self.findings.is_empty()
    }
}

#[rstest]
fn machines_become_what_is_desired_and_nothing_twice(#[values(0, 1, 2, 3)] part: u64) {
    let chosen = std::env::var(CHOICE).unwrap_or_default();
    match chosen.as_str() {
        "" => many(part * SCHEDULES, SCHEDULES),
        _ if part > 0 => {}
        text => choice(text),
    }
}

fn choice(text: &str) {
    let Some((first, count)) = text.split_once('+') else {
        return show(run(&text.parse().unwrap()));
    };
    many(first.parse().unwrap(), count.parse().unwrap());
}

fn many(first: u64, count: u64) {
    let plans = (first..first + count).map(Plan::new);
    let mut records = plans.map(|plan| run(&plan));
    if let Some(failed) = records.find(Record::has_failed) {
        show(smallest(failed));
    }
}

/// Panics with what a record has found.
fn show(record: Record) {
    if record.has_failed() {
        let Record {
            plan,
            findings,
            trace,
        } = record;
        let start = trace.len().saturating_sub(SHOWN);
        let trace = trace[start..].join("\n");
        panic!("{trace}\n{}\n{CHOICE}={plan}", findings.join("\n"));
    }
}

/// The record of a plan that fails with as little as it needs.
fn smallest(mut failed: Record) -> Record {
    let mut left = ATTEMPTS;
    'smaller: loop {
        for plan in failed.plan.smaller() {
            if left == 0 {
                return failed;
            }
            left -= 1;
            let smaller = run(&plan);
            if smaller.has_failed() {
                failed = smaller;
                continue 'smaller;
            }
        }
        return failed;
    }
}

#[rstest]
fn a_seed_decides_everything(#[values(0, 1, 2, 3, 4, 5)] seed: u64) {
    let plan = Plan::new(seed);
    let traces = [run(&plan).trace, run(&plan).trace];
    let mut lines = traces[0].iter().zip(&traces[1]).enumerate();
    let differing = lines.find(|(_, (one, other))| one != other);
    assert_eq!(differing, None, "{plan}");
    assert_eq!(traces[0].len(), traces[1].len(), "{plan}");
}

/// A schedule in which a kind does nothing finds nothing about it.
#[test]
fn all_kinds_take_part() {
    let whole = |seed| Plan {
        kinds: Kind::ALL.into(),
        ..Plan::new(seed)
    };
    let lines: Vec<_> = (0..8).flat_map(|seed| run(&whole(seed)).trace).collect();
    let done: BTreeSet<_> = lines.iter().filter_map(|line| done_by(line)).collect();
    for kind in [
        "snapshot",
        "revert",
        "delete-snapshot",
        "backup",
        "delete-backup",
        "inspect-image",
        "pull-image",
    ] {
        assert!(done.contains(kind), "{kind}: {done:?}");
    }
    let group = "virtualmachinegroups/grp/status: 200";
    for write in ["virtualmachines/web-2/status: 200", group] {
        assert!(lines.iter().any(|line| line.contains(write)), "{write}");
    }
}

/// The kind of the task of which a line says that it succeeded.
fn done_by(line: &str) -> Option<&str> {
    let name = line.split_whitespace().nth(1)?;
    let kind = name.rsplit_once('-')?.0.split_once('-')?.1;
    line.contains(" Ok(").then_some(kind)
}

fn run(plan: &Plan) -> Record {
    let mut runtime = Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    runtime.block_on(live(plan))
}

async fn live(plan: &Plan) -> Record {
    let world = World::new(plan.clone());
    world.on_server(|server| {
        for node in NODE_NAMES {
            server.create(NODES.to_owned(), cluster::node(node));
        }
        server.create(CLASSES.to_owned(), class("small", 1));
        server.create(IMAGES.to_owned(), image("debian"));
    });
    let mut actors = JoinSet::new();
    actors.spawn(cluster::schedule(Arc::clone(&world)));
    actors.spawn(cluster::collect_garbage(Arc::clone(&world)));
    actors.spawn(cluster::step_clock(Arc::clone(&world)));
    actors.spawn(cluster::silence_nodes(Arc::clone(&world)));
    actors.spawn(verdict::watch(Arc::clone(&world)));
    for node in NODE_NAMES {
        actors.spawn(kubelet::run(Arc::clone(&world), node));
        actors.spawn(agent::run(Arc::clone(&world), node));
    }
    let controller = process::run(Arc::clone(&world));
    let schedule = async {
        let wanted = users::change_their_minds(&world).await;
        world.calm_down();
        verdict::settles(&world, &wanted).await;
    };
    tokio::select! {
        biased;
        () = controller => {}
        () = schedule => {}
    }
    while let Some(ended) = actors.try_join_next() {
        world.ended("a part of the world", ended);
    }
    Record {
        plan: plan.clone(),
        findings: world.findings(),
        trace: world.trace(),
    }
}
