//! The journal for recovery after a crash: one file per sandbox.
//!
//! Invariant: an entry on disk is whole (written beside, synced, renamed) and says at least as much
//! as has been done; files are readable by root only, because they hold tokens.
//! Failure: a file that does not parse is kept and reported as [`Loaded::Broken`]; it can be
//! removed like any other. A journal with a file of a later version is refused before anything is
//! changed.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use netns::bridge_setup::LinkRecord;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};
use service::boot_clock::Deadline;
use service::files;
use tapmanager::wire::{AddRequest, Network, StartRequest, TOKEN_LIFE};

/// Layout of the files.
const VERSION: u32 = 1;
const SUFFIX: &str = "json";
/// The file that is locked; it stays.
const LOCK: &str = "lock";

/// How far a sandbox has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Phase {
    /// ADD has begun; whatever exists of it is to be undone.
    Adding,
    /// The network serves.
    Up,
    /// DEL has begun; it is to be finished.
    Removing,
}

/// One sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    version: u32,
    /// How far it has got.
    pub(crate) phase: Phase,
    /// What was requested.
    pub(crate) request: AddRequest,
    /// Path of the namespace.
    pub(crate) netns: PathBuf,
    /// How the plugins left the links; empty before they were checked.
    pub(crate) links: Vec<LinkRecord>,
    /// The answer to ADD, once there is one.
    pub(crate) network: Option<Network>,
    /// The start that is allowed and has not happened.
    pub(crate) start: Option<Start>,
    /// The boot of the node in which it was made; empty when that is not known.
    #[serde(default)]
    pub(crate) boot: String,
}

/// One allowed start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Start {
    /// 64 hexadecimal digits.
    pub(crate) token: String,
    /// Where the process is to be placed; empty for nowhere.
    pub(crate) cgroup_parent: String,
    /// Bytes of memory that this cgroup must allow; 0: as it is.
    #[serde(default)]
    pub(crate) memory_bytes: u64,
    /// The only user that may use the token; QEMU's when `None`.
    #[serde(default)]
    pub(crate) uid: Option<u32>,
    /// Seconds since the start of the node from which on it is void. Earlier versions wrote seconds
    /// since 1970, which is later than any start can last: those are void.
    pub(crate) expires: u64,
}

impl Start {
    /// A start that is allowed for [`TOKEN_LIFE`] from `now` on, the time since the node started,
    /// which no step of the wall clock changes.
    pub(crate) fn new(token: String, request: StartRequest, now: Duration) -> Self {
        Self {
            token,
            cgroup_parent: request.cgroup_parent,
            memory_bytes: request.memory_bytes,
            uid: request.uid,
            expires: (now + TOKEN_LIFE).as_secs(),
        }
    }

    /// Whether it is void.
    pub(crate) fn is_expired(&self, now: Duration) -> bool {
        let left = Deadline::at(Duration::from_secs(self.expires)).left_at(now);
        left.is_zero() || left > TOKEN_LIFE
    }
}

impl Entry {
    /// Whether it was made in another boot than `now`: no namespace, tap or token of it can be
    /// left.
    pub(crate) fn is_of_another_boot(&self, now: &str) -> bool {
        !self.boot.is_empty() && !now.is_empty() && self.boot != now
    }

    /// A sandbox of which nothing exists yet.
    pub(crate) fn new(request: AddRequest, netns: PathBuf) -> Self {
        let links = Vec::new();
        let network = None;
        let start = None;
        Self {
            version: VERSION,
            phase: Phase::Adding,
            request,
            netns,
            links,
            network,
            start,
            boot: String::new(),
        }
    }
}

/// What a file held.
#[derive(Debug)]
pub(crate) enum Loaded {
    /// A sandbox.
    Entry(Box<Entry>),
    /// Something else, for this reason; the name of the file still contains the sandbox.
    Broken(String),
}

/// The journal could not be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(
        "journal entry {path} is of a later version ({found}, and this one knows {VERSION}): all \
         networks stay as they are; start that version again, or a later one"
    )]
    Later { path: PathBuf, found: u64 },
    #[error("make the journal's directory {path}")]
    Directory { path: PathBuf, source: io::Error },
    #[error("lock the journal {path}; does another tapmanager use it?")]
    Lock { path: PathBuf, source: io::Error },
    #[error("read the journal {path}")]
    Read { path: PathBuf, source: io::Error },
    #[error("write the journal {path}")]
    Write { path: PathBuf, source: io::Error },
    #[error("remove {path} from the journal")]
    Remove { path: PathBuf, source: io::Error },
    #[error("put a journal entry into words")]
    Encode(#[source] serde_json::Error),
    #[error("the writer of the journal was interrupted")]
    Interrupted(#[source] tokio::task::JoinError),
}

/// The directory, locked as long as this lives.
#[derive(Debug)]
pub(crate) struct Journal {
    dir: PathBuf,
    _lock: Flock<File>,
}

impl Journal {
    /// Opens the directory, which is made if needed, and keeps others from doing so.
    pub(crate) fn open(dir: &Path) -> Result<Self, Error> {
        refuse_later(dir)?;
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .and_then(|()| make_private(dir))
            .map_err(|source| Error::Directory {
                path: dir.to_owned(),
                source,
            })?;
        let path = dir.join(LOCK);
        let lock = open_lock(&path)
            .and_then(|file| {
                Flock::lock(file, FlockArg::LockExclusiveNonblock)
                    .map_err(|(_, errno)| errno.into())
            })
            .map_err(|source| Error::Lock { path, source })?;
        Ok(Self {
            dir: dir.to_owned(),
            _lock: lock,
        })
    }

    /// Every sandbox with its id, sorted. Files that a crash left half-written are removed.
    pub(crate) fn load(&self) -> Result<Vec<(String, Loaded)>, Error> {
        let read = |source| Error::Read {
            path: self.dir.clone(),
            source,
        };
        let mut found = Vec::new();
        for file in std::fs::read_dir(&self.dir).map_err(read)? {
            let path = file.map_err(read)?.path();
            let stem = path.file_stem().and_then(|stem| stem.to_str());
            let suffix = path.extension().and_then(|suffix| suffix.to_str());
            match (stem, suffix) {
                (Some(id), Some(SUFFIX)) => {
                    let entry = match std::fs::read(&path) {
                        Ok(text) => parse(id, &text),
                        Err(error) => Loaded::Broken(error.to_string()),
                    };
                    found.push((id.to_owned(), entry));
                }
                (_, Some("part")) => {
                    // It was never announced; if it stays, the next write replaces it.
                    let _ = std::fs::remove_file(&path);
                }
                _ => {}
            }
        }
        found.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(found)
    }

    /// Writes an entry; when this returns it survives a crash.
    pub(crate) async fn put(&self, entry: &Entry) -> Result<(), Error> {
        let text = serde_json::to_vec_pretty(entry).map_err(Error::Encode)?;
        let path = self.path(&entry.request.id);
        let write = move || write(&path, &text).map_err(|source| Error::Write { path, source });
        tokio::task::spawn_blocking(write)
            .await
            .map_err(Error::Interrupted)?
    }

    /// Removes an entry, which need not exist.
    pub(crate) async fn remove(&self, id: &str) -> Result<(), Error> {
        let path = self.path(id);
        match tokio::fs::remove_file(&path).await {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(Error::Remove { path, source })
            }
            _ => Ok(()),
        }
    }

    fn path(&self, id: &str) -> PathBuf {
        self.dir.join(format!("{id}.{SUFFIX}"))
    }
}

/// A program that guesses at entries of a later one would leave their guests without addresses.
fn refuse_later(dir: &Path) -> Result<(), Error> {
    let read = |source| Error::Read {
        path: dir.to_owned(),
        source,
    };
    let files = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        files => files.map_err(read)?,
    };
    for file in files {
        let path = file.map_err(read)?.path();
        if path.extension().is_none_or(|suffix| suffix != SUFFIX) {
            continue;
        }
        // What cannot be read is not of a later version; loading reports it.
        let text = std::fs::read(&path).unwrap_or_default();
        let written: Option<Versioned> = serde_json::from_slice(&text).ok();
        if let Some(Versioned { version: found }) = written
            && found > VERSION.into()
        {
            return Err(Error::Later { path, found });
        }
    }
    Ok(())
}

/// The field that all versions have.
#[derive(Deserialize)]
struct Versioned {
    version: u64,
}

fn parse(id: &str, text: &[u8]) -> Loaded {
    match serde_json::from_slice::<Entry>(text) {
        Ok(entry) if entry.version != VERSION => {
            Loaded::Broken(format!("version is {}, we know {VERSION}", entry.version))
        }
        Ok(entry) if entry.request.id != id => {
            Loaded::Broken("it is about another sandbox".to_owned())
        }
        Ok(entry) => Loaded::Entry(Box::new(entry)),
        Err(error) => Loaded::Broken(error.to_string()),
    }
}

fn write(path: &Path, text: &[u8]) -> io::Result<()> {
    let part = path.with_extension("part");
    files::replace(path, &part, text).inspect_err(|_| {
        // A part of it would keep the last blocks of a full disk. The next start removes it else.
        let _ = std::fs::remove_file(&part);
    })
}

/// Names of files are ids of sandboxes. Changes nothing that is right: a file system may take no
/// writes.
fn make_private(dir: &Path) -> io::Result<()> {
    if std::fs::metadata(dir)?.permissions().mode() & 0o777 == 0o700 {
        return Ok(());
    }
    std::fs::set_permissions(dir, Permissions::from_mode(0o700))
}

fn open_lock(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    match options.open(path) {
        // Networks are to be removed there, too.
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => File::open(path),
        other => other,
    }
}

#[cfg(test)]
mod state;
#[cfg(test)]
mod tests;
