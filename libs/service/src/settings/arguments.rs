//! The command line, and the environment beside it.
//!
//! Invariant: a value that cannot be used is told with who said it, the flag or the variable.
//! Failure: one line, or clap's own message with the usage, on standard error, and an exit code.

use std::error::Error as _;
use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::{UNUSABLE, refusal};

/// Parses the command line and the variables of its options.
///
/// # Errors
///
/// The exit code with which the program ends, once it was said why: 0 for help and version, else [`UNUSABLE`].
pub fn arguments<A: Parser>() -> Result<A, ExitCode> {
    let words: Vec<_> = std::env::args_os().collect();
    parse(&words).map_err(|refused| match refused {
        Refused::Value(line) => {
            eprintln!("{}: {line}", A::command().get_name());
            ExitCode::from(UNUSABLE)
        }
        Refused::Other(e) => {
            // Nothing can be done when printing fails.
            let _ = e.print();
            let is_error = e.use_stderr();
            ExitCode::from(if is_error { UNUSABLE } else { 0 })
        }
    })
}

/// Why there are no arguments.
#[derive(Debug)]
pub(crate) enum Refused {
    /// A value, in words.
    Value(String),
    /// The line as a whole, or help is wanted.
    Other(clap::Error),
}

pub(crate) fn parse<A: Parser>(words: &[OsString]) -> Result<A, Refused> {
    A::try_parse_from(words).map_err(|e| match blame(&A::command(), &e, words) {
        Some(line) => Refused::Value(line),
        None => Refused::Other(e),
    })
}

/// Says whose value was refused; nothing if that is not what happened.
fn blame(command: &clap::Command, error: &clap::Error, words: &[OsString]) -> Option<String> {
    if !matches!(
        error.kind(),
        ErrorKind::InvalidValue | ErrorKind::ValueValidation
    ) {
        return None;
    }
    let (Some(ContextValue::String(argument)), Some(ContextValue::String(value))) = (
        error.get(ContextKind::InvalidArg),
        error.get(ContextKind::InvalidValue),
    ) else {
        return None;
    };
    // It is named as in the usage: `--workers <COUNT>`.
    let flag = argument.split(' ').next()?;
    let mut arguments = command.get_arguments();
    let argument = arguments.find(|a| a.get_long() == flag.strip_prefix("--"))?;
    let is_flag = |word: &OsString| {
        let rest = word.to_str().and_then(|word| word.strip_prefix(flag));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    };
    let origin = match argument.get_env() {
        Some(variable) if !words.iter().any(is_flag) => {
            format!("environment {}", variable.to_string_lossy())
        }
        _ => format!("flag {flag}"),
    };
    let reason = match (error.source(), error.get(ContextKind::ValidValue)) {
        (Some(source), _) => source.to_string(),
        (None, Some(ContextValue::Strings(valid))) if !valid.is_empty() => {
            format!("one of {} is allowed", valid.join(", "))
        }
        // A flag without its value: clap says it better.
        (None, _) => return None,
    };
    Some(refusal(&origin, value, &reason))
}
