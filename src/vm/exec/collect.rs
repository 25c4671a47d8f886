//! A command that `vmlet-guest` runs, collected to its end.
//!
//! Invariant: at most [`LONGEST_STREAM`] bytes of each stream are held; the rest is read and
//! dropped, so that the command can go on. A command that is given up is killed by the guest.
//! Failure: [`Error`].

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::command::LONGEST_STREAM;
use super::{Budget, Error, Output, Stream};
use crate::guest;

/// Bytes that are read at once.
const PIECE: usize = 16 << 10;

/// When a command is given up.
#[derive(Debug)]
pub(super) struct Limits {
    /// The client's time-out, for the error.
    pub(super) timeout: Duration,
    /// When it has passed.
    pub(super) deadline: Instant,
    /// The client has disconnected.
    pub(super) gone: CancellationToken,
    /// What all output may take.
    pub(super) budget: Budget,
}

/// Collects the output of a command that runs, and its exit code.
pub(super) async fn collect(command: guest::Command, limits: &Limits) -> Result<Output, Error> {
    let guest::Command {
        mut stdout,
        mut stderr,
        mut ended,
        ..
    } = command;
    let end = async {
        let (out, err) = tokio::try_join!(read(&mut stdout, limits), read(&mut stderr, limits))?;
        Ok((out, err, ended.wait().await))
    };
    let error = tokio::select! {
        ended = end => match ended {
            Ok((out, err, end)) => return Ok(Output { out, err, code: end?.code }),
            Err(error) => error,
        },
        () = tokio::time::sleep_until(limits.deadline) => Error::Timeout(limits.timeout),
        () = limits.gone.cancelled() => Error::Abandoned,
    };
    ended.kill().await;
    Err(error)
}

async fn read(output: &mut guest::Output, limits: &Limits) -> Result<Stream, Error> {
    let mut all = Stream::default();
    let mut piece = vec![0; PIECE];
    // An error of a pipe in memory is its end.
    while let Ok(length @ 1..) = output.read(&mut piece).await {
        all.push(&limits.budget, &piece[..length], LONGEST_STREAM)?;
    }
    Ok(all)
}
