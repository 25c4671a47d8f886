//! Three minutes of chaos with eight machines on two nodes; twenty minutes with ten in the long form. Each run
//! has another seed. `cargo xtask chaos` takes any plan, and the printed seed.
//!
//! Invariant: as in `e2e::chaos`.
//! Failure: the finding, the seed to repeat it with, and the folder with what programs and objects
//! said.

use std::time::{Duration, Instant};

use anyhow::Result;
use e2e::chaos::{Plan, run};
use e2e::{Cluster, Options};

/// Requests the long form.
const LONG: &str = "VMLET_TEST_LONG";

#[tokio::test]
#[ignore = "needs root"]
async fn machines_reach_their_desired_state_while_programs_are_killed() -> Result<()> {
    let is_long = std::env::var(LONG).is_ok_and(|value| value == "1");
    let plan = Plan {
        duration: Duration::from_secs(if is_long { 1200 } else { 180 }),
        seed: u64::from(fastrand::u32(..)),
        machines: if is_long { 10 } else { 8 },
        nodes: 2,
    };
    let begun = Instant::now();
    let cluster = Cluster::with(Options {
        nodes: plan.nodes,
        ..Options::default()
    })?;
    let seed = plan.seed;
    eprintln!("chaos: seed {seed}; cluster up: {:.0?}", begun.elapsed());
    let report = run(&cluster, plan).await?;
    let begun = Instant::now();
    cluster.down()?;
    eprintln!("chaos: cluster down: {:.0?}\n{report}", begun.elapsed());
    Ok(())
}
