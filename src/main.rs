//! The daemon `vmlet`: arguments, configuration, logging, run. The daemon starts this program as its
//! decoder, too.
//!
//! Invariant: no logic here; the exit code shows why it ended: 0 on request, 1 it failed, 64
//! unusable configuration or command line.
//! Failure: one line on standard error, or one event once logging works.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use daemon::config::Config;
use daemon::images::{Work, decode};
use daemon::node_settings::Local;
use service::settings::{ConfigCommand, Effective};
use service::telemetry::one_line;
use service::{settings, telemetry};

/// Runs pods as virtual machines: a CRI runtime that uses libvirt.
#[derive(Debug, Parser)]
#[command(name = "vmlet", version)]
struct Args {
    #[command(flatten)]
    settings: settings::Flags<Config>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Settings(settings::Command),
    /// Decodes what is on the socket that is its standard input: for the daemon itself.
    #[command(hide = true)]
    Decode {
        /// What is there.
        work: Work,
    },
}

fn main() -> ExitCode {
    telemetry::abort_on_panic();
    service::files::create_privately();
    start().unwrap_or_else(|code| code)
}

fn start() -> Result<ExitCode, ExitCode> {
    let args: Args = settings::arguments()?;
    if let Some(Command::Decode { work }) = args.command {
        return Ok(decode(work));
    }
    let effective = settings::effective(&args.settings)?;
    if let Some(Command::Settings(settings::Command::Config(ConfigCommand::Show))) = args.command {
        return settings::print(&settings::show(&effective));
    }
    Ok(run(&effective))
}

fn run(effective: &Effective<Config>) -> ExitCode {
    let telemetry = match daemon::telemetry::start(&effective.config) {
        Ok(telemetry) => telemetry,
        Err(e) => {
            eprintln!("vmlet: {}", one_line(&e));
            return ExitCode::FAILURE;
        }
    };
    // Fails only when a provider is installed already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let local = Local::from(effective).with_level(telemetry.level());
    let ended = daemon::run(local, telemetry.requests());
    if let Err(e) = &ended {
        tracing::error!(error = one_line(e), "daemon failed");
    }
    telemetry.stop();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
