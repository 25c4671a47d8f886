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
    from: Input,
    /// None: nothing is written.
    to: Option<Output>,
    buffer: Vec<u8>,
}

/// A file that is read in order.
#[derive(Debug)]
pub(super) struct Input {
    from: Named,
    /// The most bytes that the file has; one that has more grows while it is read.
    most: u64,
    sum: Sum,
}

/// A file that is written in order.
#[derive(Debug)]
pub(super) struct Output {
    to: Named,
    unsynced: u64,
}

/// What the bytes are that were copied so far.
#[derive(Debug)]
pub(super) struct Sum {
    hash: Sha256,
    bytes: u64,
    data: u64,
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
            from: Input::new(from, most),
            to: to.map(Output::new),
            buffer: Vec::new(),
        }
    }

    /// The next step; none: there is nothing left. Blocks.
    pub(super) fn step(&mut self) -> Result<Option<u64>> {
        self.buffer.resize(STEP, 0);
        let at = self.from.sum.bytes;
        let filled = self.from.read(&mut self.buffer)?;
        if filled == 0 {
            return Ok(None);
        }
        if let Some(to) = &mut self.to {
            to.write(&self.buffer[..filled], at)?;
        }
        Ok(Some(filled as u64))
    }

    /// Blocks.
    pub(super) fn end(self) -> Result<Copied> {
        let copied = self.from.end();
        if let Some(to) = self.to {
            to.end(copied.bytes)?;
        }
        Ok(copied)
    }
}

impl Input {
    pub(super) fn new(from: Named, most: u64) -> Self {
        let sum = Sum::default();
        Self { from, most, sum }
    }

    /// Fills a buffer as far as the file has bytes; returns how many these are. Blocks.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            let at = self.sum.bytes + filled as u64;
            let read = self.from.file.read_at(&mut buffer[filled..], at);
            match read {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(files::failed("read", &self.from.path)(e).into()),
            }
        }
        if self.sum.bytes + filled as u64 > self.most {
            return Err(Error::Grown(self.from.path.clone()));
        }
        self.sum.take(&buffer[..filled]);
        Ok(filled)
    }

    pub(super) fn end(self) -> Copied {
        self.sum.end()
    }
}

impl Output {
    pub(super) const fn new(to: Named) -> Self {
        Self { to, unsynced: 0 }
    }

    /// Writes the next bytes, which begin so far from the beginning. Blocks.
    pub(super) fn write(&mut self, piece: &[u8], mut at: u64) -> Result<()> {
        let to = &self.to;
        for block in piece.chunks(BLOCK) {
            if !is_zero(block) {
                let written = to.file.write_all_at(block, at);
                written.map_err(files::failed("write", &to.path))?;
                self.unsynced += block.len() as u64;
            }
            at += block.len() as u64;
        }
        if self.unsynced >= SYNC {
            let synced = to.file.sync_data();
            synced.map_err(files::failed("write", &to.path))?;
            self.unsynced = 0;
        }
        Ok(())
    }

    /// Gives the file its length, and writes all to the device. Blocks.
    pub(super) fn end(self, bytes: u64) -> Result<()> {
        let Named { file, path } = self.to;
        let sized = file.set_len(bytes).and_then(|()| file.sync_all());
        Ok(sized.map_err(files::failed("write", &path))?)
    }
}

impl Sum {
    pub(super) fn take(&mut self, piece: &[u8]) {
        self.hash.update(piece);
        self.bytes += piece.len() as u64;
        let data = piece.chunks(BLOCK).filter(|block| !is_zero(block));
        self.data += data.map(|block| block.len() as u64).sum::<u64>();
    }

    pub(super) fn end(self) -> Copied {
        Copied {
            bytes: self.bytes,
            data: self.data,
            sha256: Digest::from_bytes(self.hash.finalize().into()),
        }
    }
}

impl Default for Sum {
    fn default() -> Self {
        Self {
            hash: Sha256::new(),
            bytes: 0,
            data: 0,
        }
    }
}

fn is_zero(block: &[u8]) -> bool {
    block.iter().all(|byte| *byte == 0)
}
