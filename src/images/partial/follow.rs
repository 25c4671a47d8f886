//! Reads a partial download from its first byte while its holder still writes it.
//!
//! Invariant: a follower reads only what the holder has written and waits for the rest by events,
//! without the lock of the partial. It reaches the end only after [`Partial::complete`].
//! Failure: reading fails when the download ends early, or starts again after bytes were read: they
//! are not the beginning of the file then.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt as _;

use tokio::runtime::Handle as Runtime;
use tokio::sync::watch;

use super::Partial;

/// How far the holder is.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Extent {
    bytes: u64,
    /// How often the download started again.
    restarts: u64,
    is_complete: bool,
}

impl Extent {
    pub(super) const fn with_bytes(bytes: u64) -> Self {
        Self {
            bytes,
            restarts: 0,
            is_complete: false,
        }
    }

    pub(super) const fn grow(&mut self, bytes: u64) {
        self.bytes = bytes;
    }

    pub(super) const fn restart(&mut self) {
        *self = Self {
            bytes: 0,
            restarts: self.restarts + 1,
            is_complete: false,
        };
    }

    pub(super) const fn complete(&mut self) {
        self.is_complete = true;
    }

    /// Whether bytes were written since `earlier`, or none will be.
    const fn is_more_than(&self, earlier: &Self) -> bool {
        let before = if self.restarts == earlier.restarts {
            earlier.bytes
        } else {
            0
        };
        self.is_complete || self.bytes > before
    }
}

/// Reads a partial on a blocking thread. It ends with an error when the [`Partial`] is dropped.
#[derive(Debug)]
pub(in crate::images) struct Follower {
    file: File,
    extent: watch::Receiver<Extent>,
    /// As it was when this was made.
    first: Extent,
    restarts: u64,
    offset: u64,
    runtime: Runtime,
}

impl Partial {
    /// Reads the file from its beginning, beside the writer. Blocks. Must be called from the
    /// runtime's threads.
    pub(super) fn follow(&self) -> io::Result<Follower> {
        let extent = self.extent.subscribe();
        let first = *extent.borrow();
        Ok(Follower {
            // An open file of its own, which does not hold the lock.
            file: File::open(&self.path)?,
            extent,
            first,
            restarts: first.restarts,
            offset: 0,
            runtime: Runtime::current(),
        })
    }
}

impl Follower {
    /// Waits until the holder has written bytes since this follower was made, or has all of them;
    /// returns whether it has.
    pub(in crate::images) async fn begun(&mut self) -> bool {
        let first = self.first;
        let begun = self.extent.wait_for(|now| now.is_more_than(&first));
        begun.await.is_ok()
    }

    /// How many bytes may be read now, at most `most`: fewer only at the end. Blocks until then.
    fn ready(&mut self, most: u64) -> io::Result<u64> {
        let wanted = self.offset.saturating_add(most);
        loop {
            let restarts = self.restarts;
            let is_ready =
                |now: &Extent| now.is_complete || now.restarts != restarts || now.bytes >= wanted;
            let waiting = self.extent.wait_for(is_ready);
            let now = self.runtime.block_on(waiting).map(|now| *now);
            let now = now.map_err(|_| ended())?;
            // What is there is of no use then.
            if !now.is_complete && self.extent.has_changed().is_err() {
                return Err(ended());
            }
            if now.restarts == restarts {
                return Ok(now.bytes.saturating_sub(self.offset).min(most));
            }
            if self.offset > 0 {
                return Err(restarted());
            }
            self.restarts = now.restarts;
        }
    }
}

impl Read for Follower {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let ready = self.ready(buffer.len() as u64)?;
        let most = usize::try_from(ready).unwrap_or(usize::MAX);
        if most == 0 {
            return Ok(0);
        }
        let n = self.file.read_at(&mut buffer[..most], self.offset)?;
        // A new start is announced before the file is cut: these bytes are of the same one.
        if self.extent.borrow().restarts != self.restarts {
            return Err(restarted());
        }
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.offset += n as u64;
        Ok(n)
    }
}

fn ended() -> io::Error {
    io::Error::other("the download ended early")
}

fn restarted() -> io::Error {
    io::Error::other("the download started again")
}

#[cfg(test)]
mod tests;
