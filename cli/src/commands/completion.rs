//! `completion`: a script that lets a shell complete our commands and names.
//!
//! Invariant: the script asks this program for each word, so that it fits the commands of any
//! version.
//! Failure: none.

use std::env;
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::Args as ClapArgs;
use clap_complete::Shell;
use clap_complete::env::Shells;

/// The variable by which the script requests candidates; it holds the shell's name.
pub(crate) const VARIABLE: &str = "VMLETCTL_COMPLETE";
/// The name of the program in the script.
pub(crate) const PROGRAM: &str = "vmletctl";

/// Shell to print the script for.
#[derive(Debug, ClapArgs)]
pub(crate) struct CompletionArgs {
    /// Shell to print the script for.
    shell: Shell,
}

pub(crate) fn run(args: &CompletionArgs) -> anyhow::Result<ExitCode> {
    super::print(&script(args.shell)?)?;
    Ok(ExitCode::SUCCESS)
}

/// The script that makes a shell call this program.
fn script(shell: Shell) -> io::Result<String> {
    let shells = Shells::builtins();
    let shell = shells
        .completer(&shell.to_string())
        .ok_or(io::ErrorKind::Unsupported)?;
    let program = program(env::args_os().next());
    let mut script = Vec::new();
    shell.write_registration(VARIABLE, PROGRAM, PROGRAM, &program, &mut script)?;
    Ok(String::from_utf8_lossy(&script).into_owned())
}

/// The program's path, from wherever the shell will be; a plain name is found by PATH.
fn program(called: Option<OsString>) -> String {
    let called = called.unwrap_or_else(|| PROGRAM.into());
    let path = Path::new(&called);
    let is_plain = path.components().count() < 2;
    let whole = std::path::absolute(path).ok().filter(|_| !is_plain);
    let path = whole.as_deref().unwrap_or(path);
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completion_scripts_call_this_program() {
        for shell in [
            Shell::Bash,
            Shell::Elvish,
            Shell::Fish,
            Shell::PowerShell,
            Shell::Zsh,
        ] {
            let script = script(shell).unwrap();
            assert!(script.contains(VARIABLE), "{script}");
            assert!(script.contains(PROGRAM), "{script}");
        }
        assert_eq!(program(Some("vmletctl".into())), "vmletctl");
        assert_eq!(
            program(Some("/opt/kubectl-vmlet".into())),
            "/opt/kubectl-vmlet"
        );
        assert!(program(Some("./vmletctl".into())).starts_with('/'));
    }
}
