//! The life cycle of a container from its creation to its removal.
//!
//! Invariant: a phase is stored before the effect that it announces, and every effect can be
//! repeated; only one request at a time works on a sandbox, and the end of a machine is recorded
//! once.
//! Failure: what a request leaves half-done is settled by the next one for the same sandbox, or by
//! [`recovery`](super::recovery).

mod conflict;
mod create;
pub(super) mod describe;
mod end;
mod generation;
mod placeholder;
mod remove;
pub(super) mod request;
mod start;
mod stop;

pub use conflict::Conflict;
pub(super) use create::log_path;
pub(super) use start::least_memory;

#[cfg(test)]
mod tests;
