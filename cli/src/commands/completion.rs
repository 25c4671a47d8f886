//! `completion`: a script that lets a shell complete our commands.
//!
//! Invariant: it is made from the same description as the commands themselves.
//! Failure: none.

use std::process::ExitCode;

use clap::{Args as ClapArgs, CommandFactory};
use clap_complete::Shell;

use crate::args::Args;

/// For which shell.
#[derive(Debug, ClapArgs)]
pub(crate) struct CompletionArgs {
    /// The shell.
    shell: Shell,
}

pub(crate) fn run(args: &CompletionArgs) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), "vmletctl", &mut script);
    super::print(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}
