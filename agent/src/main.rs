//! The agent `vmlet-agent`: arguments, configuration, logging, run.
//!
//! Invariant: no logic here; the exit code tells why it ended: 0 asked to, 1 it failed, 64 unusable configuration
//! or command line.
//! Failure: one line on standard error, or one event once logging works.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use agent::config::{self, Overrides};
use clap::Parser;
use service::signals::Ending;
use service::{settings, telemetry};

/// Runs VirtualMachineTasks on this node and reports the state of guests and node to the cluster.
#[derive(Debug, Parser)]
#[command(name = "vmlet-agent", version)]
struct Args {
    /// Path to the configuration file [default: /etc/vmlet/agent.toml, if it exists].
    #[arg(long, value_name = "FILE", env = "VMLET_AGENT_CONFIG")]
    config: Option<PathBuf>,
    #[command(flatten)]
    overrides: Overrides,
}

fn main() -> ExitCode {
    telemetry::abort_on_panic();
    let args: Args = match settings::arguments() {
        Ok(args) => args,
        Err(code) => return code,
    };
    let config = match settings::usable(
        "vmlet-agent",
        config::load(args.config.as_deref(), args.overrides),
    ) {
        Ok(config) => config,
        Err(code) => return code,
    };
    // Fails only when a provider is there already, and then there is one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match serve(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("vmlet-agent: {}", telemetry::one_line(&*e));
            ExitCode::FAILURE
        }
    }
}

fn serve(config: config::Config) -> Result<(), Box<dyn Error>> {
    telemetry::init(&config.log)?;
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_all().build()?;
    let ended = runtime.block_on(async {
        let ending = Ending::watch()?;
        let shutdown = async move {
            ending.received().await;
            tracing::info!(outcome = "told to end", "agent");
        };
        agent::run(config, shutdown)
            .await
            .map_err(Box::<dyn Error>::from)
    });
    // A call that is still waiting for a peer does not hold the process up.
    runtime.shutdown_background();
    ended
}
