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

use std::io::{ErrorKind, Write, stdout};
use std::process::ExitCode;

use crate::args::{Args, Command};
use crate::console::ConsoleError;
use crate::logs::LogError;

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

/// A result that could not be printed.
#[derive(Debug, thiserror::Error)]
#[error("print the result")]
struct PrintError(#[source] std::io::Error);

/// Prints a result.
fn print(text: &str) -> Result<(), PrintError> {
    let mut out = stdout().lock();
    let written = out.write_all(text.as_bytes());
    written.and_then(|()| out.flush()).map_err(PrintError)
}

/// Whether the reader of our output went away, which is not an error: it has seen enough.
///
/// A daemon that hangs up breaks a pipe too; only what we print counts.
pub(crate) fn is_unread(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(printing)
        .any(|io| io.kind() == ErrorKind::BrokenPipe)
}

/// The reason, if this error is one of printing.
fn printing<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a std::io::Error> {
    if let Some(PrintError(io)) = error.downcast_ref() {
        return Some(io);
    }
    if let Some(LogError::Print(io)) = error.downcast_ref() {
        return Some(io);
    }
    match error.downcast_ref() {
        Some(ConsoleError::Print(io)) => Some(io),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Error;

    use super::*;

    #[test]
    fn only_a_reader_of_ours_that_went_away_is_no_error() {
        let broken = || Error::from(ErrorKind::BrokenPipe);
        assert!(is_unread(&PrintError(broken()).into()));
        assert!(is_unread(&LogError::Print(broken()).into()));
        assert!(is_unread(
            &anyhow::Error::from(ConsoleError::Print(broken())).context("show")
        ));
        assert!(!is_unread(
            &PrintError(Error::from(ErrorKind::StorageFull)).into()
        ));
        assert!(!is_unread(&ConsoleError::Write(broken()).into()));
        assert!(!is_unread(
            &anyhow::Error::from(broken()).context("Version")
        ));
    }
}
