//! `vmlet-tapmanager`: manages the networks of pods that are virtual machines.
//!
//! Invariant: the program ends without touching any network; only requests take networks down.
//! Failure: exit code 1 with one line when it cannot serve, 64 for unusable settings or command
//! line.

mod config;
mod consoles;
mod failure;
mod journal;
mod metrics;
mod network;
mod sandboxes;
mod server;

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;
use service::settings::ConfigCommand;
use service::{open_files, settings, telemetry};

use config::Config;

/// Open files that 1,000 sandboxes need, with room for requests.
const ENOUGH_FILES: u64 = 8192;

/// Manages the networks of Vmlet's pods: namespaces, CNI attachments, bridges, taps and DHCP.
#[derive(Debug, Parser)]
#[command(name = "vmlet-tapmanager", version)]
struct Args {
    #[command(flatten)]
    settings: settings::Flags<Config>,
    #[command(subcommand)]
    command: Option<settings::Command>,
}

fn main() -> ExitCode {
    telemetry::abort_on_panic();
    service::files::create_privately();
    start().unwrap_or_else(|code| code)
}

fn start() -> Result<ExitCode, ExitCode> {
    let args: Args = settings::arguments()?;
    let effective = settings::effective(&args.settings)?;
    if let Some(settings::Command::Config(ConfigCommand::Show)) = args.command {
        return settings::print(&settings::show(&effective));
    }
    run(&effective.config).map_err(|error| {
        tracing::error!(error = format!("{error:#}"), "tapmanager failed");
        ExitCode::FAILURE
    })?;
    Ok(ExitCode::SUCCESS)
}

fn run(config: &Config) -> anyhow::Result<()> {
    telemetry::init(&config.log).context("start logging")?;
    allow_open_files();
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("start the runtime")?
        .block_on(server::run(config))
}

/// A sandbox needs some descriptors: its namespace and its DHCP server's sockets.
fn allow_open_files() {
    match open_files::raise() {
        Ok(limit) if limit < ENOUGH_FILES => {
            tracing::warn!(
                limit,
                enough = ENOUGH_FILES,
                "open file limit is low: raise the hard limit for many sandboxes"
            );
        }
        Ok(limit) => tracing::debug!(limit, "open file limit set"),
        Err(error) => tracing::warn!(
            error = telemetry::one_line(&error),
            "open file limit not set"
        ),
    }
}
