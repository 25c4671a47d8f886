//! How a program gets its settings: defaults, then a TOML file, then the environment, then flags.
//!
//! A program's settings are a type with serde's defaults, which [`load`] fills from the file; its flags are a
//! [`clap::Parser`] whose options name a variable each, which [`arguments`] parses. What they say goes on top by
//! [`set`]; [`usable`] ends a program whose settings are refused.
//!
//! Invariant: only a file that somebody named must exist; nothing that was said is passed over: who said what cannot be
//! used is named.
//! Failure: [`Error`] for the file; for the rest a line on standard error and the exit code [`UNUSABLE`].

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
pub use file::{Error, load, read};
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

/// The settings of a program: a type with serde's names and defaults, whose doc comments are the documentation.
///
/// Each key has an environment variable and a flag of its own, except tables; all of them follow from the type.
pub trait Settings: DeserializeOwned + Serialize + JsonSchema {
    /// Name of the program, such as `vmlet-agent`.
    const PROGRAM: &'static str;
    /// What the names of its environment variables begin with, without the underscore: `VMLET_AGENT`.
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
    /// A sentence that names the keys and says what is allowed.
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

/// Replaces what a lower layer said by what this one says, if it says anything.
pub fn set<T>(value: &mut T, reported: Option<T>) {
    if let Some(reported) = reported {
        *value = reported;
    }
}

/// Reads the settings of a program that starts.
///
/// # Errors
///
/// The exit code with which the program ends, [`UNUSABLE`], once the reason is on standard error.
pub fn effective<T: Settings>(flags: &Flags<T>) -> Result<Effective<T>, ExitCode> {
    usable(T::PROGRAM, layered(flags, std::env::vars_os()))
}

/// What is wrong with a value, in the words of all programs.
///
/// `origin` is who said it, such as `flag --listen` or `environment VMLET_LISTEN`.
pub fn refusal(origin: &str, value: &str, reason: &str) -> String {
    let shown: String = value.chars().take(SHOWN).collect();
    format!("{origin}: {shown:?}: {reason}")
}
