//! Three minutes of chaos; `cargo xtask chaos` does more.
//!
//! Invariant: as in `e2e::chaos`.
//! Failure: the finding, the seed to repeat it with, and the folder with what programs and objects said.

use std::time::Duration;

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
    let cluster = Cluster::up()?;
    let report = run(&cluster, plan).await?;
    cluster.down()?;
    eprintln!("{report}");
    Ok(())
}
