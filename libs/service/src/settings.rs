//! The settings of a program: defaults, then a TOML file, then the environment, then flags.
//!
//! A program describes its settings by one type with the derives of serde and schemars
//! ([`Settings`]). Everything else follows from that type: the keys of the file, a variable and a
//! flag for each key ([`Flags`]), `config show` ([`show()`]) and the reference page
//! ([`check_page`]).
//!
//! Invariant: only a file that was named must exist; every value that is given is used, or refused
//! with its source.
//! Failure: [`Error`] in one line; the program prints it and exits with [`UNUSABLE`].

use std::io::Write as _;
use std::process::ExitCode;

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::telemetry::one_line;

mod arguments;
mod file;
mod flags;
mod layers;
mod schema;
mod show;
#[cfg(test)]
mod tests;
mod timespan;

pub use arguments::arguments;
pub use file::Error;
pub use flags::{ConfigCommand, Flags};
pub use layers::{Effective, Source, layered};
pub use show::{check_page, page, show};
pub use timespan::Timespan;

/// Why settings that can be read cannot be used together.
pub type Problem = Box<dyn std::error::Error + Send + Sync>;

/// The commands of a program that has no others than `config`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::Subcommand)]
pub enum Command {
    /// Commands for the configuration.
    #[command(subcommand)]
    Config(ConfigCommand),
}

/// The settings of a program: a type with serde's names and defaults, whose doc comments are the
/// documentation.
///
/// Each key has an environment variable and a flag of its own, except tables; all of them follow
/// from the type.
pub trait Settings: DeserializeOwned + Serialize + JsonSchema {
    /// Name of the program, such as `vmlet-agent`.
    const PROGRAM: &'static str;
    /// What the names of its environment variables begin with, without the underscore:
    /// `VMLET_AGENT`.
    const PREFIX: &'static str;
    /// The configuration file that is read when none is named.
    const FILE: &'static str;
    /// Whether that file must exist, since it has settings without a default.
    const IS_FILE_REQUIRED: bool = false;
    /// The settings without a default, as a file; for the reference page.
    const MINIMAL: &'static str = "";

    /// Checks what no single value shows, such as two settings that contradict each other.
    ///
    /// # Errors
    ///
    /// A sentence that names the keys and states what is allowed.
    fn check(&self) -> Result<(), Problem> {
        Ok(())
    }

    /// Whether a variable is meant for this program, so that it must be a setting.
    #[must_use]
    fn owns(variable: &str) -> bool {
        let rest = variable.strip_prefix(Self::PREFIX);
        rest.is_some_and(|rest| rest.starts_with('_'))
    }
}

/// Exit code of a program whose settings or command line cannot be used (`EX_USAGE`).
pub const UNUSABLE: u8 = 64;

/// Longest part of a bad value that a message repeats, in characters.
const SHOWN: usize = 120;

/// What the settings come to, for a program of this name.
///
/// # Errors
///
/// The exit code with which the program ends, [`UNUSABLE`], once the reason is on standard error.
pub fn usable<T>(program: &str, loaded: Result<T, impl std::error::Error>) -> Result<T, ExitCode> {
    loaded.map_err(|e| {
        eprintln!("{program}: {}", one_line(&e));
        ExitCode::from(UNUSABLE)
    })
}

/// Reads the settings of a program that starts.
///
/// # Errors
///
/// The exit code with which the program ends, [`UNUSABLE`], once the reason is on standard error.
pub fn effective<T: Settings>(flags: &Flags<T>) -> Result<Effective<T>, ExitCode> {
    usable(T::PROGRAM, layered(flags, std::env::vars_os()))
}

/// Prints a text on standard output.
///
/// # Errors
///
/// The exit code of a program whose output is closed.
pub fn print(text: &str) -> Result<ExitCode, ExitCode> {
    let written = std::io::stdout().write_all(text.as_bytes());
    written.map_or(Err(ExitCode::FAILURE), |()| Ok(ExitCode::SUCCESS))
}

/// What is wrong with a value, in the form that all programs use.
///
/// `origin` is who said it, such as `flag --listen` or `environment VMLET_LISTEN`.
pub fn refusal(origin: &str, value: &str, reason: &str) -> String {
    let shown: String = value.chars().take(SHOWN).collect();
    format!("{origin}: {shown:?}: {reason}")
}
