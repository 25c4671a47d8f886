//! Three minutes of chaos; `cargo xtask chaos` does more.
//!
//! Invariant: as in `e2e::chaos`.
//! Failure: the finding, the seed to repeat it with, and the folder with what programs and objects said.

use std::time::{Duration, Instant};

use anyhow::Result;
use e2e::Cluster;
use e2e::chaos::{Plan, run};

#[tokio::test]
#[ignore = "needs root"]
async fn machines_become_what_their_objects_say_whatever_dies() -> Result<()> {
    let plan = Plan {
        duration: Duration::from_secs(180),
        seed: 5,
        machines: 6,
    };
    let begun = Instant::now();
    let cluster = Cluster::up()?;
    eprintln!("chaos: cluster up: {:.0?}", begun.elapsed());
    let report = run(&cluster, plan).await?;
    let begun = Instant::now();
    cluster.down()?;
    eprintln!("chaos: cluster down: {:.0?}\n{report}", begun.elapsed());
    Ok(())
}
