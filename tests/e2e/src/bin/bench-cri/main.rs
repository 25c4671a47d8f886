//! Measures a node's two runtimes side by side; `cargo xtask bench cri` and `bench soak` start the
//! node and judge what it says.
//!
//! Invariant: prints one JSON object, see [`Samples`]; what a part makes in the stack it takes away
//! again.
//! Failure: exit code 1 and one line on stderr; `cargo xtask down` then clears the stack.

#![allow(clippy::print_stdout, reason = "the samples are this program's output")]

mod cycles;
mod exec;
mod forward;
mod listener;
mod monitor;
mod processes;
mod sides;
mod soak;
mod stats;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use e2e::bench::Stack;
use e2e::samples::Samples;

/// Measures one thing of a node with both runtimes.
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
    /// The image of ordinary containers.
    #[arg(long, env = "VMLET_TOOL_IMAGE")]
    tools: String,
    /// How often, or how many.
    #[arg(long)]
    count: u32,
    /// What.
    part: Part,
}

/// What can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The calls of a pod's life, alternating between the runtimes.
    Cycles,
    /// A command that ends at once: by both agents of a guest, and by runc.
    Exec,
    /// Throughput of a forwarded port.
    Forward,
    /// libvirt's messages to QEMU before the guest runs.
    Monitor,
    /// Statistics of all pods and containers.
    Stats,
    /// Life cycles of many pods through the CRI proxy, and what programs hold meanwhile.
    Soak,
    /// Serves bytes to every client, until killed.
    Serve,
}

#[tokio::main]
async fn main() -> ExitCode {
    match measure(Args::parse()).await {
        Ok(samples) => {
            println!("{}", samples.to_json());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("bench-cri: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn measure(args: Args) -> Result<Samples> {
    let stack = Stack::new(&args.dir, args.netns, args.image.clone())?;
    let image = &args.image;
    let tools = &args.tools;
    let count = args.count;
    match args.part {
        Part::Cycles => cycles::measure(&stack, image, tools, count).await,
        Part::Exec => exec::measure(&stack, image, tools, count).await,
        Part::Forward => forward::measure(&stack, image, tools, count).await,
        Part::Monitor => monitor::measure(&stack, count).await,
        Part::Stats => stats::measure(&stack, count).await,
        Part::Soak => soak::measure(&stack, image, count).await,
        Part::Serve => listener::serve(),
    }
    .with_context(|| format!("{:?}", args.part))
}
