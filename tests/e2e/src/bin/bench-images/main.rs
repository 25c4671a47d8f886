//! Measures the images of a node; `cargo xtask bench images` starts the node and judges what it
//! says.
//!
//! Invariant: prints one JSON object, see [`Samples`]; what a part makes in the stack it takes away
//! again.
//! Failure: exit code 1 and one line on stderr; `cargo xtask down` then clears the stack.

#![allow(clippy::print_stdout, reason = "the samples are this program's output")]

mod clone;
mod disks;
mod download;
mod files;
mod list;
mod registry;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use e2e::bench::Stack;
use e2e::samples::Samples;

use self::files::Files;

/// Measures one thing of a node's images.
#[derive(Debug, Parser)]
struct Args {
    /// The stack's directory.
    #[arg(long)]
    dir: PathBuf,
    /// The name of its network namespace.
    #[arg(long, env = "VMLET_NETNS")]
    netns: String,
    /// Where its image server has the image that boots.
    #[arg(long, env = "VMLET_TEST_IMAGE_URL")]
    url: String,
    /// How often, or how many.
    #[arg(long)]
    count: u32,
    /// What.
    part: Part,
}

/// What can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The root disk of a machine, from images of three sizes.
    Clone,
    /// A file of a web server, beside curl.
    Download,
    /// A container disk of a registry, beside containerd.
    Registry,
    /// The list of many images.
    List,
    /// Root disks of virtual machines, linked and direct, from images of three sizes.
    Disks,
    /// A disk that a client reads and a file that it sends, beside curl.
    Transfer,
}

#[tokio::main]
async fn main() -> ExitCode {
    match measure(Args::parse()).await {
        Ok(samples) => {
            println!("{}", samples.to_json());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("bench-images: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn measure(args: Args) -> Result<Samples> {
    let stack = Stack::new(&args.dir, args.netns, String::new())?;
    let files = Files::for_server(&stack, &args.url)?;
    let cri = stack.cri().await?;
    cri.await_ready().await?;
    match args.part {
        Part::Clone => clone::measure(&stack, &cri, &files, args.count).await,
        Part::Download => download::measure(&cri, &files, args.count).await,
        Part::Registry => registry::measure(&stack, &cri, args.count).await,
        Part::List => list::measure(&cri, &files, args.count).await,
        Part::Disks => disks::provision(&stack, &cri, &files, args.count).await,
        Part::Transfer => disks::transfer(&stack, &cri, &files, args.count).await,
    }
    .with_context(|| format!("{:?}", args.part))
}
