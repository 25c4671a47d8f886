//! `vmletctl`: works with virtual machines of a cluster, runs VM pods without Kubernetes, and
//! checks nodes.
//!
//! Invariant: results go to stdout, everything else to stderr, so that output can be piped.
//! Failure: one line that names the step, one that states what to do where that is known, exit code
//! 1.

mod args;
mod called;
mod candidates;
mod cluster;
mod colour;
mod commands;
mod console;
mod context;
mod interrupt;
mod logs;
mod manifest;
mod pods;
mod request;
mod runtime;
mod table;
mod terminal;

use std::process::ExitCode;

fn main() -> ExitCode {
    // An error means that one is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    if let Some(answered) = candidates::answer() {
        return answered;
    }
    let args = args::parse();
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return report(&anyhow::Error::from(error).context("start")),
    };
    let outcome = runtime.block_on(commands::dispatch(args));
    // A write to a terminal without a reader must not block the exit.
    runtime.shutdown_background();
    outcome.unwrap_or_else(|error| report(&error))
}

/// Prints an error with its advice and chooses the exit code.
fn report(error: &anyhow::Error) -> ExitCode {
    if commands::is_unread(error) {
        return ExitCode::SUCCESS;
    }
    let text = format!("error: {error:#}");
    eprintln!("{}", called::adapted(&text));
    if let Some(advice) = context::advice(error).or_else(|| cluster::advice(error)) {
        eprintln!("  {}", called::adapted(advice));
    }
    ExitCode::from(commands::exit_code(error))
}
