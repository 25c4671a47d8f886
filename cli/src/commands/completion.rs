//! `completion`: a script that lets a shell complete our commands.
//!
//! Invariant: it is made from the same description as the commands themselves.
//! Failure: none.

use std::process::ExitCode;

use clap::Args as ClapArgs;
use clap_complete::Shell;

/// For which shell.
#[derive(Debug, ClapArgs)]
pub(crate) struct CompletionArgs {
    /// The shell.
    shell: Shell,
}

pub(crate) fn run(args: &CompletionArgs) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(
        args.shell,
        &mut crate::args::command(),
        "vmletctl",
        &mut script,
    );
    super::print(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}
