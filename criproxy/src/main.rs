//! The proxy `vmlet-criproxy`: arguments, configuration, logging, run.
//!
//! Invariant: no logic here; the exit code shows why it ended: 0 on request, 1 it failed or a
//! runtime that `check` asked did not answer, 64 unusable configuration or command line.
//! Failure: one line on standard error, or one event once logging works.

use std::error::Error;
use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use criproxy::check;
use criproxy::config::Config;
use service::settings::ConfigCommand;
use service::signals::Ending;
use service::telemetry::one_line;
use service::{settings, telemetry};

/// One CRI endpoint for kubelet in front of several CRI runtimes.
#[derive(Debug, Parser)]
#[command(name = "vmlet-criproxy", version)]
struct Args {
    #[command(flatten)]
    settings: settings::Flags<Config>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Clone, Copy, Subcommand)]
enum Command {
    /// Serve kubelet until SIGTERM; the default command.
    Serve,
    /// Explain the configuration and check whether each runtime answers.
    Check,
    /// Commands for the configuration.
    #[command(subcommand)]
    Config(ConfigCommand),
}

fn main() -> ExitCode {
    telemetry::abort_on_panic();
    service::files::create_privately();
    start().unwrap_or_else(|code| code)
}

fn start() -> Result<ExitCode, ExitCode> {
    let args: Args = settings::arguments()?;
    let effective = settings::effective(&args.settings)?;
    let ended = match args.command {
        Some(Command::Config(ConfigCommand::Show)) => {
            return settings::print(&settings::show(&effective));
        }
        Some(Command::Check) => run(explain(&effective.config)),
        Some(Command::Serve) | None => match telemetry::init(&effective.config.log) {
            Ok(()) => run(serve(effective.config)),
            Err(e) => Err(e.into()),
        },
    };
    ended.map_err(|e| {
        eprintln!("vmlet-criproxy: {}", one_line(&*e));
        ExitCode::FAILURE
    })
}

type Ended = Result<ExitCode, Box<dyn Error>>;

fn run(work: impl Future<Output = Ended>) -> Ended {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build()?;
    let ended = runtime.block_on(work);
    // Calls that are cut off see the end of their connection.
    runtime.shutdown_background();
    ended
}

async fn serve(config: Config) -> Ended {
    let ending = Ending::watch()?;
    let shutdown = async move {
        ending.received().await;
        tracing::info!("shutdown requested");
    };
    criproxy::serve(config, shutdown).await?;
    tracing::info!("CRI proxy stopped");
    Ok(ExitCode::SUCCESS)
}

async fn explain(config: &Config) -> Ended {
    let report = check::report(config).await;
    std::io::stdout().write_all(report.text.as_bytes())?;
    Ok(if report.well {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
