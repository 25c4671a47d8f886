//! `completion`: a script that lets a shell complete our commands and names.
//!
//! Invariant: the script asks this program for each word, so that it fits the commands of any
//! version.
//! Failure: none.

use std::process::ExitCode;

use clap::Args as ClapArgs;
use clap_complete::Shell;

use crate::candidates;

/// Shell to print the script for.
#[derive(Debug, ClapArgs)]
pub(crate) struct CompletionArgs {
    /// Shell to print the script for.
    shell: Shell,
}

pub(crate) fn run(args: &CompletionArgs) -> anyhow::Result<ExitCode> {
    super::print(&candidates::script(args.shell)?)?;
    Ok(ExitCode::SUCCESS)
}
