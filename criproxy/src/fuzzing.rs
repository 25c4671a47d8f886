//! What the checks of `tests/fuzz` reach of this crate, besides its public modules.
//!
//! Invariant: nothing here is used by the program; each function is the one that reads calls.
//! Failure: that of the function behind it.

use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming;

use crate::wire::{Messages, Unreadable, read_opening};

/// The only message of a request.
///
/// # Errors
///
/// [`Unreadable`] for anything else.
pub async fn only(body: Incoming, timeout: Duration) -> Result<Bytes, Unreadable> {
    read_opening(body, timeout).await.only(timeout).await
}

/// The messages of an answer, and why there are no more.
///
/// # Errors
///
/// [`Unreadable`], with the messages before it, when the answer does not end behind a message.
pub async fn messages(body: Incoming) -> (Vec<Bytes>, Result<(), Unreadable>) {
    let mut messages = Messages::new(body);
    let mut all = Vec::new();
    loop {
        match messages.next().await {
            Ok(Some(message)) => all.push(message),
            Ok(None) => return (all, Ok(())),
            Err(error) => return (all, Err(error)),
        }
    }
}
