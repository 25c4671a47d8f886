//! Stores attachments on disk, in the layout of the reference implementation.
//!
//! Invariant: one file per attachment, `results/NETWORK-CONTAINER-IFNAME`; a file is complete or
//! absent, and on disk before `put` returns. A file without `result` is an ADD that has not ended.
//! Failure: a file that cannot be understood is passed over with a warning, as if it were not
//! there.

mod entry;
#[cfg(test)]
mod state;
#[cfg(test)]
mod tests;

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

pub(crate) use entry::Entry;

use crate::AttachmentId;

/// Largest file that is read: a result and a configuration of a megabyte each, and encoding.
const MAX_FILE: u64 = 4 * 1024 * 1024;

/// An attachment that the cache knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedAttachment {
    /// Name of the network.
    pub network: String,
    /// Container and link.
    pub id: AttachmentId,
    /// Path of the namespace when it was attached.
    pub netns: Option<PathBuf>,
    /// Whether ADD has ended well; if not, only DEL makes sense.
    pub complete: bool,
}

/// What went wrong with the cache.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// An entry could not be written.
    #[error("write {path}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// A file or the directory could not be read.
    #[error("read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// An entry could not be removed.
    #[error("remove {path}")]
    Remove {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// The file is not a cache entry.
    #[error("{path} is not a cache entry: {reason}")]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: &'static str,
        /// The parser's answer, where it is one.
        #[source]
        source: Option<serde_json::Error>,
    },
}

/// The cache below one directory. Every method blocks.
#[derive(Debug, Clone)]
pub(crate) struct Cache {
    dir: PathBuf,
}

impl Cache {
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    fn results(&self) -> PathBuf {
        self.dir.join("results")
    }

    fn path(&self, network: &str, id: &AttachmentId) -> PathBuf {
        self.results()
            .join(format!("{network}-{}-{}", id.container_id, id.ifname))
    }

    /// Writes or replaces an entry.
    pub(crate) fn put(&self, entry: &Entry) -> Result<(), CacheError> {
        let path = self.path(&entry.network_name, &entry.id());
        // Beside the results, so that a half-written file is never taken for an attachment.
        let partial = self.dir.join("partial");
        let temporary = partial.join(path.file_name().unwrap_or_default());
        let write = || {
            for dir in [&partial, &self.results()] {
                DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
            }
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(0o600);
            let mut file = options.open(&temporary)?;
            file.write_all(&entry.to_bytes())?;
            file.sync_all()?;
            std::fs::rename(&temporary, &path)?;
            File::open(self.results())?.sync_all()
        };
        write().map_err(|source| {
            // A part of it would keep the last blocks of a full disk.
            let _ = std::fs::remove_file(&temporary);
            CacheError::Write {
                path: path.clone(),
                source,
            }
        })
    }

    /// Forgets an attachment; success when there is none.
    pub(crate) fn remove(&self, network: &str, id: &AttachmentId) -> Result<(), CacheError> {
        let path = self.path(network, id);
        match std::fs::remove_file(&path) {
            Err(source) if source.kind() != ErrorKind::NotFound => {
                Err(CacheError::Remove { path, source })
            }
            _ => Ok(()),
        }
    }

    /// Entries of one container's link, in whatever network: one, as a rule.
    pub(crate) fn find(&self, id: &AttachmentId) -> Result<Vec<Entry>, CacheError> {
        let end = format!("-{}-{}", id.container_id, id.ifname);
        let mut found = Vec::new();
        for path in self.files()? {
            // Names are joined by a character that they may contain; only the content is certain.
            if path
                .as_os_str()
                .as_encoded_bytes()
                .ends_with(end.as_bytes())
            {
                found.extend(understood(&path)?.filter(|entry| entry.id() == *id));
            }
        }
        Ok(found)
    }

    /// Every attachment, by file name.
    pub(crate) fn all(&self) -> Result<Vec<Entry>, CacheError> {
        let mut found = Vec::new();
        for path in self.files()? {
            found.extend(understood(&path)?);
        }
        Ok(found)
    }

    /// As [`Self::all`], but a file that cannot be parsed is an error: another runtime's attachment
    /// may be in it.
    pub(crate) fn every(&self) -> Result<Vec<Entry>, CacheError> {
        self.files()?
            .iter()
            .filter_map(|path| read(path).transpose())
            .collect()
    }

    fn files(&self) -> Result<Vec<PathBuf>, CacheError> {
        let dir = self.results();
        let failed = |source| CacheError::Read {
            path: self.results(),
            source,
        };
        let entries = match std::fs::read_dir(&dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut paths = Vec::new();
        for entry in entries {
            let entry = entry.map_err(failed)?;
            if entry.file_type().map_err(failed)?.is_file() {
                paths.push(entry.path());
            }
        }
        paths.sort();
        Ok(paths)
    }
}

/// One file; `None` when it no longer exists or is no entry.
fn understood(path: &Path) -> Result<Option<Entry>, CacheError> {
    match read(path) {
        Err(error @ CacheError::Format { .. }) => {
            tracing::warn!(path = %path.display(), %error, "CNI cache entry ignored");
            Ok(None)
        }
        other => other,
    }
}

/// One file; `None` when it no longer exists.
fn read(path: &Path) -> Result<Option<Entry>, CacheError> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_FILE + 1).read_to_end(&mut bytes));
    match read {
        Ok(_) => Entry::parse(&bytes, path).map(Some),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(CacheError::Read {
            path: path.into(),
            source,
        }),
    }
}
