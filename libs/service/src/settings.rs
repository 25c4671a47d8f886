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

use crate::telemetry::one_line;

mod arguments;
mod file;
#[cfg(test)]
mod tests;

pub use arguments::arguments;
pub use file::{Error, load, read};

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

/// What is wrong with a value, in the words of all programs.
///
/// `origin` is who said it, such as `flag --listen` or `environment VMLET_LISTEN`.
pub fn refusal(origin: &str, value: &str, reason: &str) -> String {
    let shown: String = value.chars().take(SHOWN).collect();
    format!("{origin}: {shown:?}: {reason}")
}
