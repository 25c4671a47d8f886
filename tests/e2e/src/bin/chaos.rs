//! `cargo xtask chaos`: a chaos run on a cluster of its own.
//!
//! Invariant: the cluster is taken down in the end, and must have leaked nothing.
//! Failure: exit code 1 with the finding, the seed and the folder of the evidence.

use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, ensure};
use clap::Parser;
use e2e::chaos::{FEWEST, Plan, run};
use e2e::{Cluster, Options};

/// Kills programs, changes desired states, takes and reverts to snapshots at random; then every machine must
/// match its object.
#[derive(Debug, Parser)]
struct Arguments {
    /// Minutes of chaos.
    #[arg(long, default_value_t = 20)]
    minutes: u64,
    /// Seed of all choices; the same seed and number of machines repeat them. Default: the clock.
    #[arg(long)]
    seed: Option<u64>,
    /// How many machines.
    #[arg(long, default_value_t = 10)]
    machines: usize,
    /// How many nodes.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=9))]
    nodes: u8,
}

#[tokio::main]
async fn main() -> ExitCode {
    match chaos(&Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("chaos: FAILED: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[allow(clippy::print_stdout, reason = "its output is its purpose")]
async fn chaos(arguments: &Arguments) -> Result<()> {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    // Before the cluster, which takes a while.
    ensure!(
        arguments.machines >= FEWEST,
        "--machines must be {FEWEST} at least"
    );
    let plan = Plan {
        duration: Duration::from_secs(arguments.minutes * 60),
        seed: arguments.seed.unwrap_or(clock),
        machines: arguments.machines,
        nodes: arguments.nodes,
    };
    println!("chaos: --seed {}", plan.seed);
    let cluster = Cluster::with(Options {
        nodes: plan.nodes,
        ..Options::default()
    })?;
    let report = run(&cluster, plan).await?;
    cluster.down()?;
    println!("{report}");
    Ok(())
}
