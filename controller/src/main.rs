//! The program `vmlet-controller`: arguments, settings, logging, run.
//!
//! Invariant: no logic here; the exit code shows why it ended: 0 on request, 1 it failed, 64
//! unusable settings or command line, 75 the lease was lost.
//! Failure: one line on standard error, or one event once logging works.

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;
use controller::app;
use controller::config::Config;
use service::settings::{self, ConfigCommand};
use service::signals::Ending;
use service::telemetry::{init, one_line};
use tokio_util::sync::CancellationToken;

/// Manages the life cycle of virtual machines that run as pods.
#[derive(Debug, Parser)]
#[command(name = "vmlet-controller", version)]
struct Args {
    #[command(flatten)]
    settings: settings::Flags<Config>,
    #[command(subcommand)]
    command: Option<settings::Command>,
}

fn main() -> ExitCode {
    service::files::create_privately();
    start().unwrap_or_else(|code| code)
}

fn start() -> Result<ExitCode, ExitCode> {
    let args: Args = settings::arguments()?;
    let effective = settings::effective(&args.settings)?;
    if let Some(settings::Command::Config(ConfigCommand::Show)) = args.command {
        return settings::print(&settings::show(&effective));
    }
    // An error means that there is one already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    run(effective.config).map_err(|e| {
        eprintln!("vmlet-controller: {}", one_line(&*e));
        ExitCode::FAILURE
    })
}

fn run(config: Config) -> Result<ExitCode, Box<dyn Error>> {
    init(&config.log)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let ended = runtime.block_on(async {
        let stop = CancellationToken::new();
        let ending = Ending::watch()?;
        let shutdown = stop.clone();
        tokio::spawn(async move {
            ending.received().await;
            tracing::info!("shutdown requested");
            shutdown.cancel();
        });
        Ok::<_, Box<dyn Error>>(Box::pin(app::run(config, stop)).await)
    })?;
    // What still runs must not delay the end: after a lost lease another controller acts.
    runtime.shutdown_background();
    Ok(match ended {
        Ok(()) => {
            tracing::info!("controller stopped");
            ExitCode::SUCCESS
        }
        Err(error) => {
            tracing::error!(error = one_line(&error), "controller failed");
            error.exit_code()
        }
    })
}
