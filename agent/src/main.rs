//! The agent `vmlet-agent`: arguments, configuration, logging, run.
//!
//! Invariant: no logic here; the exit code shows why it ended: 0 on request, 1 it failed, 64
//! unusable configuration or command line.
//! Failure: one line on standard error, or one event once logging works.

use std::error::Error;
use std::process::ExitCode;

use agent::config::Config;
use clap::Parser;
use service::settings::ConfigCommand;
use service::signals::Ending;
use service::{settings, telemetry};

/// Runs VirtualMachineTasks on this node and reports the state of guests and node to the cluster.
#[derive(Debug, Parser)]
#[command(name = "vmlet-agent", version)]
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
    // Fails only when a provider is there already, and then there is one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    serve(effective.config).map_err(|e| {
        eprintln!("vmlet-agent: {}", telemetry::one_line(&*e));
        ExitCode::FAILURE
    })?;
    Ok(ExitCode::SUCCESS)
}

fn serve(config: Config) -> Result<(), Box<dyn Error>> {
    telemetry::init(&config.log)?;
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_all().build()?;
    let ended = runtime.block_on(async {
        let ending = Ending::watch()?;
        let shutdown = async move {
            ending.received().await;
            tracing::info!("shutdown requested");
        };
        agent::run(config, shutdown)
            .await
            .map_err(Box::<dyn Error>::from)
    });
    // A call that is still waiting for a peer does not hold the process up.
    runtime.shutdown_background();
    ended
}
