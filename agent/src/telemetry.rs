//! Log lines on standard error, as text or JSON.
//!
//! Invariant: events carry outcomes; one event per outcome.
//! Failure: [`init`] fails when the process already has a subscriber; a line that cannot be written is lost.

use std::error::Error;
use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

use crate::config::{Log, LogFormat};

/// The transport's own talk, which would drown ours: quiet unless the filter names it.
const QUIET: &str =
    "h2=info,hyper=info,hyper_util=info,kube=info,rustls=info,tonic=info,tower=info";

/// Starts logging for the whole process.
///
/// # Errors
///
/// When the process logs already.
pub fn init(log: &Log) -> Result<(), TryInitError> {
    let filter = EnvFilter::new(format!("{QUIET},{}", log.level));
    let registry = tracing_subscriber::registry().with(filter);
    let layer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    match log.format {
        LogFormat::Text => registry
            .with(layer.with_ansi(std::io::stderr().is_terminal()))
            .try_init(),
        LogFormat::Json => registry
            .with(layer.json().flatten_event(true).with_current_span(false))
            .try_init(),
    }
}

/// An error and its causes in one line.
pub fn one_line(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let more = source.to_string();
        // Some errors repeat their source.
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        next = source.source();
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
