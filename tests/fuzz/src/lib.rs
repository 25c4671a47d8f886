//! What must hold for any bytes that a client or a guest sends.
//!
//! Each check takes one input of the fuzzer (`fuzz/targets`, `cargo xtask fuzz`); the tests of this
//! crate run them on the inputs in `fuzz/corpus`.
//!
//! Invariant: a check has no state: the same input has the same result.
//! Failure: a panic; the fuzzer keeps the input.

mod guest;
mod requests;
mod session;
mod spdy_frames;

pub use guest::guest;
pub use requests::{channels, requests, sizes};
pub use session::session;
pub use spdy_frames::spdy_frames;

/// A check.
pub type Check = fn(&[u8]);

/// All checks, by the names of their targets.
pub const CHECKS: &[(&str, Check)] = &[
    ("channels", channels),
    ("guest", guest),
    ("requests", requests),
    ("sizes", sizes),
    ("spdy_frames", spdy_frames),
    ("spdy_session", session),
];

/// The input in pieces: each has the length of one of its own bytes, so that the fuzzer chooses
/// where the network cuts.
fn pieces(mut input: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (length, rest) = input.split_first()?;
        let (piece, rest) = rest.split_at(rest.len().min(usize::from(*length)));
        input = rest;
        Some(piece)
    })
}
