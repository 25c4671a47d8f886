//! `vmlet-tapmanager`: owns the networks of pods that are virtual machines.
//!
//! Invariant: the program ends without touching any network; only requests take networks down.
//! Failure: exit code 1 with one line when it cannot serve, 2 for wrong arguments.

mod config;
mod failure;
mod journal;
mod network;
mod sandboxes;
mod server;

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;
use tracing_subscriber::EnvFilter;

use config::{Config, Flags, LogFormat};

/// Open files that 1,000 sandboxes need, with room for requests.
const ENOUGH_FILES: u64 = 8192;

fn main() -> ExitCode {
    match start(Flags::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "stopped");
            ExitCode::FAILURE
        }
    }
}

fn start(flags: Flags) -> anyhow::Result<()> {
    let config = match config::load(flags) {
        Ok(config) => config,
        Err(error) => {
            // How to log is part of what could not be read.
            tracing_subscriber::fmt()
                .with_writer(std::io::stderr)
                .init();
            return Err(error.context("settings"));
        }
    };
    log_to_stderr(&config)?;
    allow_open_files();
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("start the runtime")?
        .block_on(server::run(&config))
}

/// A sandbox needs some descriptors: its namespace and its DHCP server's sockets.
fn allow_open_files() {
    match fdpass::raise_open_files() {
        Ok(limit) if limit < ENOUGH_FILES => {
            tracing::warn!(
                limit,
                enough = ENOUGH_FILES,
                "few open files are allowed: raise the hard limit for many sandboxes"
            );
        }
        Ok(limit) => tracing::debug!(limit, "open files allowed"),
        Err(error) => tracing::warn!(error = failure::chain(&error), "open files"),
    }
}

fn log_to_stderr(config: &Config) -> anyhow::Result<()> {
    let filter = EnvFilter::builder()
        .parse(&config.log_level)
        .context("setting log-level")?;
    let log = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(filter);
    match config.log_format {
        LogFormat::Text => log.with_ansi(false).init(),
        LogFormat::Json => log.json().init(),
    }
    Ok(())
}
