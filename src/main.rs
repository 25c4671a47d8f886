//! The daemon `vmlet`: arguments, configuration, logging, run.
//!
//! Invariant: no logic here; the exit code tells why it ended: 0 asked to, 1 it failed, 64 unusable
//! configuration or command line.
//! Failure: one line on standard error, or one event once logging works.

use std::process::ExitCode;

use daemon::config::{self, Args, Command, Config, ConfigCommand};
use service::telemetry::{Log, one_line};
use service::{settings, telemetry};

fn main() -> ExitCode {
    telemetry::abort_on_panic();
    let args: Args = match settings::arguments() {
        Ok(args) => args,
        Err(code) => return code,
    };
    let loaded = config::load(&args, |name| std::env::var_os(name));
    let effective = match settings::usable("vmlet", loaded) {
        Ok(effective) => effective,
        Err(code) => return code,
    };
    match args.command {
        Some(Command::Config(ConfigCommand::Show)) => print(&config::show(&effective)),
        None => run(&effective.config),
    }
}

fn print(text: &str) -> ExitCode {
    use std::io::Write;
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn run(config: &Config) -> ExitCode {
    let log = Log {
        level: config.log.level.clone(),
        format: config.log.format,
    };
    if let Err(e) = telemetry::init(&log) {
        eprintln!("vmlet: start logging: {e}");
        return ExitCode::FAILURE;
    }
    // Fails only when a provider is installed already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match daemon::run(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            tracing::error!(error = one_line(&e), outcome = "failed", "vmlet");
            ExitCode::FAILURE
        }
    }
}
