//! Measures a running node stack; `cargo xtask bench start` starts it and judges what it says.
//!
//! Invariant: prints one JSON object, see [`Samples`]; what a part makes in the stack it takes away
//! again, but for the rows of `record`, which `clear` takes away.
//! Failure: exit code 1 and one line on stderr; `cargo xtask down` then clears the stack.

#![allow(clippy::print_stdout, reason = "the samples are this program's output")]

mod backups;
mod by_hand;
mod console;
mod deploy;
mod first_write;
mod lists;
mod marker;
mod memory;
mod record;
mod snapshots;
mod starts;
mod trial;
mod wrapper;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use e2e::samples::{self, Samples};

use e2e::bench::Stack;

/// Measures one thing in a running node stack.
#[derive(Debug, Parser)]
struct Args {
    /// The stack's directory.
    #[arg(long)]
    dir: PathBuf,
    /// The name of its network namespace.
    #[arg(long, env = "VMLET_NETNS")]
    netns: String,
    /// The image that boots.
    #[arg(long, env = "VMLET_TEST_IMAGE")]
    image: String,
    /// Where the stack's web server has it.
    #[arg(long, env = "VMLET_TEST_IMAGE_URL")]
    url: String,
    /// The image of Debian.
    #[arg(long, env = "VMLET_DEBIAN_IMAGE")]
    debian: String,
    /// How often, or how many.
    #[arg(long)]
    count: u32,
    /// What.
    part: Part,
}

/// What can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The three calls that start a machine, and the helpers' share of each.
    Starts,
    /// The first byte on a guest's console, with and without us.
    Console,
    /// User data of Debian, with and without us.
    Marker,
    /// Guests of virtual machines that run, for one machine and for many, with and without us.
    Deploy,
    /// Snapshots of a running guest, and reverts.
    Snapshots,
    /// Backups of a running guest.
    Backups,
    /// The detour over vmwrapper.
    Wrapper,
    /// Both lists, and resident memory afterwards.
    Lists,
    /// Resident memory before and while machines run.
    Machines,
    /// Ends the daemon and writes ended machines into its database.
    Record,
    /// Takes them away again.
    Clear,
}

#[tokio::main]
async fn main() -> ExitCode {
    match measure(Args::parse()).await {
        Ok(samples) => {
            println!("{}", samples.to_json());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("bench-stack: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn measure(args: Args) -> Result<Samples> {
    let image = match args.part {
        Part::Marker => args.debian,
        _ => args.image,
    };
    let stack = Stack::new(&args.dir, args.netns, image)?;
    match args.part {
        Part::Starts => starts::measure(&stack, args.count).await,
        Part::Console => console::measure(&stack, args.count).await,
        Part::Marker => marker::measure(&stack, args.count).await,
        Part::Deploy => deploy::measure(&stack, &args.url, args.count).await,
        Part::Snapshots => snapshots::measure(&stack, args.count).await,
        Part::Backups => backups::measure(&stack, args.count).await,
        Part::Wrapper => wrapper::measure(&stack, args.count).await,
        Part::Lists => lists::measure(&stack, args.count).await,
        Part::Machines => memory::measure(&stack, args.count).await,
        Part::Record => record::record(&stack, args.count).await,
        Part::Clear => record::clear(&stack, args.count).await,
    }
    .with_context(|| format!("{:?}", args.part))
}
