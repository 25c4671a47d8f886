//! The proxy `vmlet-criproxy`: arguments, configuration, logging, run.
//!
//! Invariant: no logic here; the exit code tells why it ended: 0 asked to, 1 it failed, 64 unusable
//! configuration or command line.
//! Failure: one line on standard error, or one event once logging works.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::SUCCESS
}
