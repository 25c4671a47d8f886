//! Copies a file in steps, and computes what its bytes are.
//!
//! Invariant: a step is so small that a target which answers takes it in soon; what was written is on the device at the
//! end. Blocks of zeros are not written: a file may be much longer than what it has.
//! Failure: [`files::Error`] of the file that failed.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use sha2::{Digest as _, Sha256};

use super::error::{Error, Result};
use super::{Step, Target};
use crate::files;
use crate::images::Digest;

/// How much one step copies, in bytes.
const STEP: usize = 4 << 20;

/// How much of it is left out where it is zero.
const BLOCK: usize = 64 << 10;

/// After so many bytes they are written to the device.
const SYNC: u64 = 64 << 20;

/// An open file, and its path for people.
#[derive(Debug)]
pub(super) struct Named {
    pub(super) file: File,
    pub(super) path: PathBuf,
}

/// A copy in progress.
#[derive(Debug)]
pub(super) struct Copying {
    from: Named,
    /// None: nothing is written.
    to: Option<Named>,
    /// The most bytes that the file has; one that has more grows while it is read.
    most: u64,
    hash: Sha256,
    buffer: Vec<u8>,
    bytes: u64,
    data: u64,
    unsynced: u64,
}

/// What was copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Copied {
    /// Length of the file.
    pub(super) bytes: u64,
    /// Of these, in blocks that are not zero.
    pub(super) data: u64,
    pub(super) sha256: Digest,
}

impl Copying {
    pub(super) fn new(from: Named, to: Option<Named>, most: u64) -> Self {
        Self {
            from,
            to,
            most,
            hash: Sha256::new(),
            buffer: Vec::new(),
            bytes: 0,
            data: 0,
            unsynced: 0,
        }
    }

    /// The next step; none: there is nothing left. Blocks.
    fn step(&mut self) -> Result<Option<u64>> {
        self.buffer.resize(STEP, 0);
        let mut filled = 0;
        while filled < STEP {
            let at = self.bytes + filled as u64;
            let read = self.from.file.read_at(&mut self.buffer[filled..], at);
            match read {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(files::failed("read", &self.from.path)(e).into()),
            }
        }
        if filled == 0 {
            return Ok(None);
        }
        if self.bytes + filled as u64 > self.most {
            return Err(Error::Grown(self.from.path.clone()));
        }
        self.hash.update(&self.buffer[..filled]);
        let mut at = self.bytes;
        for block in self.buffer[..filled].chunks(BLOCK) {
            if block.iter().any(|byte| *byte != 0) {
                self.data += block.len() as u64;
                if let Some(to) = &self.to {
                    let written = to.file.write_all_at(block, at);
                    written.map_err(files::failed("write", &to.path))?;
                    self.unsynced += block.len() as u64;
                }
            }
            at += block.len() as u64;
        }
        self.bytes = at;
        if let Some(to) = self.to.as_ref().filter(|_| self.unsynced >= SYNC) {
            let synced = to.file.sync_data();
            synced.map_err(files::failed("write", &to.path))?;
            self.unsynced = 0;
        }
        Ok(Some(filled as u64))
    }

    /// Blocks.
    fn end(self) -> Result<Copied> {
        if let Some(to) = &self.to {
            let sized = to
                .file
                .set_len(self.bytes)
                .and_then(|()| to.file.sync_all());
            sized.map_err(files::failed("write", &to.path))?;
        }
        Ok(Copied {
            bytes: self.bytes,
            data: self.data,
            sha256: Digest::from_bytes(self.hash.finalize().into()),
        })
    }
}

impl Target {
    /// Copies to the end.
    pub(super) async fn copy(&self, mut copying: Copying, step: Step<'_>) -> Result<Copied> {
        loop {
            let worked = self.run(move |_| {
                let bytes = copying.step()?;
                Ok((copying, bytes))
            });
            let (rest, bytes) = worked.await?;
            copying = rest;
            let Some(bytes) = bytes else {
                return self.run(move |_| copying.end()).await;
            };
            step(bytes);
        }
    }
}
