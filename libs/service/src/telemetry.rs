//! Output on standard error: log lines as text or JSON, and errors on one line.
//!
//! Spans carry ids and keys, events carry outcomes; one event per outcome.
//!
//! Invariant: all programs say the same thing in the same form.
//! Failure: [`init`] fails when the process already has a subscriber; a line that cannot be written
//! is lost.

mod causes;
mod log;
mod panics;
#[cfg(test)]
mod tests;
mod traces;

pub use causes::{bounded, one_line};
pub use log::{Filter, Format, Level, Log, init, init_adjustable, init_traced};
pub use panics::abort_on_panic;
pub use traces::{RequestTraces, STEPS, TraceLayer};
