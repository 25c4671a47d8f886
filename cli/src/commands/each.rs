//! Applies a verb to each of the machines that it names.
//!
//! Invariant: a machine that is refused does not keep the others from being done.
//! Failure: the last error is the command's; those before it are printed.

use std::process::ExitCode;

use crate::cluster::{ClusterError, Names};

/// Calls `act` for each name, and prints `done` after each success.
pub(super) async fn machine(
    names: &Names,
    done: &str,
    mut act: impl AsyncFnMut(&str) -> Result<(), ClusterError>,
) -> anyhow::Result<ExitCode> {
    let mut last: Option<ClusterError> = None;
    for name in names.of_machines() {
        match act(name).await {
            Ok(()) => super::print(&format!("virtualmachine.vmlet.dev/{name} {done}\n"))?,
            Err(error) => {
                if let Some(error) = last.replace(error) {
                    eprintln!("error: {error:#}");
                }
            }
        }
    }
    match last {
        Some(error) => Err(error.into()),
        None => Ok(ExitCode::SUCCESS),
    }
}
