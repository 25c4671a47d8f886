//! Measures what a detour over `vmlet-criproxy` costs; `cargo xtask bench proxy` runs it and
//! judges.
//!
//! Invariant: prints one JSON object, see [`Samples`], with times in milliseconds; starts the proxy
//! and, unless configured for a real one, its backends as processes of their own, and ends them.
//! Failure: exit code 1 and one line on stderr.

#![allow(clippy::print_stdout, reason = "the samples are this program's output")]

mod backend;
mod detour;
mod parts;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use e2e::samples::Samples;

use crate::backend::Serve;
use crate::detour::Call;

/// Measures the proxy.
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Calls a backend directly and through the proxy, in turns.
    Measure(Measure),
    /// Is a backend.
    Serve(Serve),
}

/// What to measure with what.
#[derive(Debug, clap::Args)]
struct Measure {
    /// The proxy's program.
    #[arg(long)]
    proxy: PathBuf,
    /// Socket of a real runtime; without it a server that knows a few lists.
    #[arg(long)]
    endpoint: Option<PathBuf>,
    /// Clients that call at the same time.
    #[arg(long)]
    clients: u32,
    /// Calls of each client, as many of each way.
    #[arg(long)]
    count: u32,
    /// Which call.
    call: Call,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Args::parse().command).await {
        Ok(Some(samples)) => println!("{}", samples.to_json()),
        Ok(None) => {}
        Err(error) => {
            eprintln!("bench-proxy: {error:#}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

async fn run(command: Command) -> Result<Option<Samples>> {
    match command {
        Command::Serve(serve) => serve.run().await.map(|()| None),
        Command::Measure(measure) => {
            let parts = parts::Parts::start(&measure.proxy, measure.endpoint.as_deref())?;
            let call = measure.call;
            let clients = measure.clients;
            let count = measure.count;
            detour::measure(&parts, call, clients, count)
                .await
                .map(Some)
        }
    }
}
