//! The file of a copy, as it is sent.
//!
//! Invariant: read once, from beginning to end, and every byte counts in the digest.
//! Failure: [`files::Error`]; a file that is shorter than it was at the beginning is one.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use crate::files;
use crate::images::Digest;

/// Bytes of a message.
const PIECE: u64 = 512 << 10;

/// A file that is being read.
pub(super) struct Reader {
    path: PathBuf,
    /// `None` while a thread reads.
    file: Option<(File, Sha256)>,
    size: u64,
    at: u64,
}

impl Reader {
    /// Opens a file at its beginning.
    pub(super) async fn open(path: &Path) -> Result<Self, files::Error> {
        let name = path.to_owned();
        let open = move || {
            let file = File::open(&name)?;
            let size = file.metadata()?.len();
            Ok((file, size))
        };
        let opened = on_thread(open).await;
        let (file, size) = opened.map_err(files::failed("open", path))?;
        Ok(Self {
            path: path.to_owned(),
            file: Some((file, Sha256::new())),
            size,
            at: 0,
        })
    }

    /// Bytes of the file.
    pub(super) const fn size(&self) -> u64 {
        self.size
    }

    /// Bytes that were read.
    pub(super) const fn at(&self) -> u64 {
        self.at
    }

    /// The next bytes before `end`; none at the end.
    pub(super) async fn next(&mut self, end: u64) -> Result<Option<Bytes>, files::Error> {
        let length = end.min(self.size).saturating_sub(self.at).min(PIECE);
        let Some((mut file, mut sum)) = self.file.take_if(|_| length > 0) else {
            return Ok(None);
        };
        let read = on_thread(move || {
            let mut piece = vec![0; usize::try_from(length).map_err(io::Error::other)?];
            file.read_exact(&mut piece)?;
            sum.update(&piece);
            Ok((file, sum, Bytes::from(piece)))
        });
        let read = read.await.map_err(files::failed("read", &self.path))?;
        let (file, sum, piece) = read;
        self.file = Some((file, sum));
        self.at += length;
        Ok(Some(piece))
    }

    /// The digest of what was read.
    pub(super) fn digest(&self) -> Digest {
        let sum = self.file.as_ref().map(|(_, sum)| sum.clone());
        Digest::from_bytes(sum.unwrap_or_default().finalize().into())
    }
}

async fn on_thread<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let worked = tokio::task::spawn_blocking(work).await;
    worked.unwrap_or_else(|e| Err(io::Error::other(e)))
}
