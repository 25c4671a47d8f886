//! Settings of the log, and its start.
//!
//! Invariant: a [`Filter`] was understood when the settings were read, so that no part of it is
//! passed over later.
//! Failure: a sentence that states what is allowed.

use std::fmt::{self, Display};
use std::io::IsTerminal;
use std::ops::Deref;
use std::str::FromStr;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tracing::Subscriber;
use tracing_subscriber::fmt::{Layer as Lines, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{EnvFilter, Layer, reload};

use super::traces::{STEPS, TraceLayer};

/// The transport's own messages, which would hide ours: quiet unless the filter names it.
const QUIET: &str =
    "h2=info,hyper=info,hyper_util=info,kube=info,reqwest=info,rustls=info,tonic=info,tower=info";

/// Log output on standard error.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// Minimum severity that is logged: `error`, `warn`, `info`, `debug` or `trace`; also per
    /// module, such as `info,kube=debug`. The transport libraries (`h2`, `hyper`, `tonic` and so
    /// on) stay at `info` unless they are named.
    pub level: Filter,
    /// Log format: `text` for people, `json` for log collectors.
    pub format: Format,
}

/// Which log events are written, in `tracing`'s filter syntax.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(with = "String")]
pub struct Filter(String);

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", rename_all = "lowercase")]
#[schemars(with = "String")]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// For collectors: one JSON object per line.
    Json,
}

/// Changes which events a log writes. Clones are of the same log.
#[derive(Clone)]
pub struct Level(Arc<dyn Fn(&Filter) -> bool + Send + Sync>);

/// Starts logging for the whole process.
///
/// # Errors
///
/// When the process logs already.
pub fn init(log: &Log) -> Result<(), TryInitError> {
    let is_terminal = std::io::stderr().is_terminal();
    subscriber(log, std::io::stderr, is_terminal).try_init()
}

/// As [`init`], for a log whose level can change.
///
/// # Errors
///
/// When the process logs already.
pub fn init_adjustable(log: &Log) -> Result<Level, TryInitError> {
    let is_terminal = std::io::stderr().is_terminal();
    let (subscriber, level) = adjustable(log, std::io::stderr, is_terminal);
    subscriber.try_init().map(|()| level)
}

/// As [`init_adjustable`], and gives spans to `traces`, whatever the level of the log is.
///
/// # Errors
///
/// When the process logs already.
pub fn init_traced(log: &Log, traces: TraceLayer) -> Result<Level, TryInitError> {
    let is_terminal = std::io::stderr().is_terminal();
    let (subscriber, level) = traced(log, std::io::stderr, is_terminal, traces);
    subscriber.try_init().map(|()| level)
}

/// What writes the lines; in colours only for people at a terminal.
pub(crate) fn subscriber<W>(log: &Log, writer: W, colours: bool) -> impl SubscriberInitExt
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let lines = lines(log.format, writer, colours);
    tracing_subscriber::registry()
        .with(filter(&log.level))
        .with(lines)
}

/// The same with a level that can change.
pub(crate) fn adjustable<W>(
    log: &Log,
    writer: W,
    colours: bool,
) -> (impl SubscriberInitExt + use<W>, Level)
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let lines = lines(log.format, writer, colours);
    let (filter, handle) = reload::Layer::new(filter(&log.level));
    let subscriber = tracing_subscriber::registry().with(filter).with(lines);
    (subscriber, Level::new(handle))
}

/// The same beside `traces`. The filter is that of the lines alone.
pub(crate) fn traced<W>(
    log: &Log,
    writer: W,
    colours: bool,
    traces: TraceLayer,
) -> (impl SubscriberInitExt + use<W>, Level)
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let lines = lines(log.format, writer, colours);
    let (filter, handle) = reload::Layer::new(filter(&log.level));
    let subscriber = tracing_subscriber::registry()
        .with(traces)
        .with(lines.with_filter(filter));
    (subscriber, Level::new(handle))
}

fn filter(level: &Filter) -> EnvFilter {
    EnvFilter::new(format!("{QUIET},{STEPS}=off,{}", &**level))
}

impl Level {
    fn new<S: 'static>(handle: reload::Handle<EnvFilter, S>) -> Self {
        Self(Arc::new(move |level| handle.reload(filter(level)).is_ok()))
    }

    /// Writes what this filter lets pass, from now on. Returns whether the process still logs.
    pub fn set(&self, level: &Filter) -> bool {
        (self.0)(level)
    }
}

impl fmt::Debug for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Level").finish_non_exhaustive()
    }
}

fn lines<W, S>(format: Format, writer: W, colours: bool) -> Box<dyn Layer<S> + Send + Sync>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let lines = Lines::new().with_writer(writer);
    match format {
        Format::Text => lines.with_ansi(colours).boxed(),
        Format::Json => lines.json().flatten_event(true).boxed(),
    }
}

impl Default for Filter {
    fn default() -> Self {
        Self("info".to_owned())
    }
}

impl Deref for Filter {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl FromStr for Filter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match EnvFilter::try_new(text) {
            Ok(_) => Ok(Self(text.to_owned())),
            Err(e) => Err(format!("no log filter such as info or info,h2=warn: {e}")),
        }
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err("one of text, json is allowed".to_owned()),
        }
    }
}

impl TryFrom<String> for Filter {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl TryFrom<String> for Format {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text => "text",
            Self::Json => "json",
        })
    }
}
