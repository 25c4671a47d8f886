//! The command line of a program.
//!
//! Invariant: help and version end with 0, a line that cannot be parsed with [`UNUSABLE`].
//! Failure: clap's message with the usage on standard error, and an exit code.

use std::process::ExitCode;

use clap::Parser;

use super::UNUSABLE;

/// Parses the command line.
///
/// # Errors
///
/// The exit code with which the program ends, once clap has printed the reason: 0 for help and
/// version, else [`UNUSABLE`].
pub fn arguments<A: Parser>() -> Result<A, ExitCode> {
    A::try_parse().map_err(|e| {
        // Nothing can be done when printing fails.
        let _ = e.print();
        ExitCode::from(if e.use_stderr() { UNUSABLE } else { 0 })
    })
}
