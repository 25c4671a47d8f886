//! gRPC as bytes: message frames, bodies, outcomes, and the few fields that decide where a call
//! goes.
//!
//! Invariant: what is passed on is never decoded and encoded again; what is read is bounded.
//! Failure: a value of this module's types; nothing here panics on any bytes.

mod body;
mod fields;
mod frame;
mod messages;
mod outcome;

pub use fields::{Field, Malformed, fields, keep_fields, tagged};
pub use frame::{PREFIX, Unreadable, payload};
pub use messages::*;

pub(crate) use body::{Body, Ending, Tap};
pub(crate) use frame::{Messages, Opening, frame_head, read_opening};
pub(crate) use outcome::{code_of, refusal, refusal_trailers};
