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
//! On the way no guest runs twice, no disk is made twice or deleted under a machine that stays, no saved
//! memory is lost, and no machine goes before its disk ([`nodes::Nodes`]). In the end every machine is as
//! desired within half an hour, though nothing is repeated on a timer, and then no write comes twice
//! ([`verdict`]).
//!
//! `VMLET_SIMULATION=1000+5000` runs 5000 schedules from seed 1000, `VMLET_SIMULATION=7/3/Lag,Crashes` one
//! plan.
//!
//! Invariant: the number of schedules is fixed; none depends on real time.
//! Failure: the smallest plan that still fails, what it found, and the end of its trace. A plan fixes what goes
//! wrong, not every order: Tokio's `watch` wakes those that wait in an order of chance, kube's stores list
//! objects in one, and the delay after a guest's failure has a random part. A plan may need more than one run to
//! fail again.

mod agent;
mod cluster;
mod kubelet;
mod nodes;
mod plan;
mod process;
mod requests;
mod users;
mod verdict;
mod watches;
mod world;

use std::sync::Arc;

use rstest::rstest;
use tokio::runtime::Builder;
use tokio::task::JoinSet;

use self::nodes::NODE_NAMES;
use self::plan::Plan;
use self::world::World;
use super::bench::{CLASSES, IMAGES, NODES, class, image};

/// Schedules of each test.
const SCHEDULES: u64 = 50;
/// Runs that look for a smaller plan.
const ATTEMPTS: usize = 40;
/// What runs instead.
const CHOICE: &str = "VMLET_SIMULATION";

/// What a schedule found.
struct Failure {
    plan: Plan,
    findings: Vec<String>,
    trace: String,
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
        return fails(run(&text.parse().unwrap()).err());
    };
    many(first.parse().unwrap(), count.parse().unwrap());
}

fn many(first: u64, count: u64) {
    let mut plans = (first..first + count).map(Plan::new);
    fails(plans.find_map(|plan| run(&plan).err().map(smallest)));
}

fn fails(failure: Option<Failure>) {
    if let Some(failure) = failure {
        let findings = failure.findings.join("\n");
        panic!("{}\n{findings}\n{CHOICE}={}", failure.trace, failure.plan);
    }
}

/// The failure of a plan with as little as it needs.
fn smallest(mut failure: Failure) -> Failure {
    let mut left = ATTEMPTS;
    'smaller: loop {
        for plan in failure.plan.smaller() {
            if left == 0 {
                return failure;
            }
            left -= 1;
            if let Err(smaller) = run(&plan) {
                failure = smaller;
                continue 'smaller;
            }
        }
        return failure;
    }
}

fn run(plan: &Plan) -> Result<(), Failure> {
    let mut runtime = Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    runtime.block_on(live(plan))
}

async fn live(plan: &Plan) -> Result<(), Failure> {
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
    actors.spawn(verdict::watch_disks(Arc::clone(&world)));
    for node in NODE_NAMES {
        actors.spawn(kubelet::run(Arc::clone(&world), node));
        actors.spawn(agent::run(Arc::clone(&world), node));
    }
    let controller = process::run(Arc::clone(&world));
    let schedule = async {
        let desired = users::change_their_minds(&world).await;
        world.calm_down();
        verdict::settles(&world, &desired).await;
    };
    tokio::select! {
        biased;
        () = controller => {}
        () = schedule => {}
    }
    while let Some(ended) = actors.try_join_next() {
        world.ended("a part of the world", ended);
    }
    let findings = world.findings();
    if findings.is_empty() {
        return Ok(());
    }
    Err(Failure {
        plan: plan.clone(),
        findings,
        trace: world.trace(),
    })
}
