//! One module per verb; each parses its arguments, asks the daemon and prints.
//!
//! Invariant: a command connects only after its arguments have been checked.
//! Failure: errors go up to `main`, which prints them once.

pub(crate) mod console;
pub(crate) mod doctor;
pub(crate) mod logs;
pub(crate) mod ps;
pub(crate) mod rm;
pub(crate) mod run;
pub(crate) mod stop;

use std::io::{Write, stdout};
use std::process::ExitCode;

use crate::args::{Args, Command};

/// Exit code of a run that the user broke off, as shells give it for Ctrl-C.
const INTERRUPTED: u8 = 130;

/// Runs the chosen command.
pub(crate) async fn dispatch(args: Args) -> anyhow::Result<ExitCode> {
    let endpoint = &args.endpoint;
    match args.command {
        Command::Run(args) => run::run(endpoint, args).await,
        Command::Ps(args) => ps::run(endpoint, &args).await,
        Command::Logs(args) => logs::run(endpoint, &args).await,
        Command::Console(args) => console::run(endpoint, &args).await,
        Command::Stop(args) => stop::run(endpoint, &args).await,
        Command::Rm(args) => rm::run(endpoint, &args).await,
        Command::Doctor(args) => doctor::run(endpoint, &args).await,
    }
}

/// What the process exits with after an error.
pub(crate) fn exit_code(error: &anyhow::Error) -> u8 {
    match error.downcast_ref::<run::RunError>() {
        Some(run::RunError::Interrupted) => INTERRUPTED,
        _ => 1,
    }
}

/// Prints a result.
fn print(text: &str) -> std::io::Result<()> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
