//! The errors of a console.
//!
//! Invariant: a variant per step; the guest's bytes appear in none.
//! Failure: does not apply.

use std::io;
use std::path::PathBuf;

/// A step of following a console that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket for clients on the node cannot be made.
    #[error("failed to make the socket of a console")]
    Serve(#[source] service::listener::Error),
    /// The raw file cannot be opened or created.
    #[error("open raw console file {}", path.display())]
    OpenRaw {
        /// The raw file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// Something else has the raw file's name.
    #[error("raw console file {} is not a regular file", path.display())]
    NotAFile {
        /// The raw file.
        path: PathBuf,
    },
    /// Another follower, perhaps of another process, has not let go of the raw file yet.
    #[error("raw console file {} is being followed already", path.display())]
    Busy {
        /// The raw file.
        path: PathBuf,
    },
    /// The raw file cannot be read.
    #[error("read raw console file {}", path.display())]
    ReadRaw {
        /// The raw file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// The kernel refuses to watch the raw file; usually the limit of inotify watches.
    #[error("watch raw console file {}", path.display())]
    Watch {
        /// The raw file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// The saved position cannot be read.
    #[error("load the position in raw console file {}", raw.display())]
    LoadPosition {
        /// The raw file.
        raw: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// The position cannot be saved.
    #[error("save the position in raw console file {}", raw.display())]
    SavePosition {
        /// The raw file.
        raw: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// The log, or its directory, cannot be opened or created.
    #[error("open console log {}", path.display())]
    OpenLog {
        /// The log.
        path: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// The log cannot be written.
    #[error("write console log {}", path.display())]
    WriteLog {
        /// The log.
        path: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// A file that belongs to the console cannot be removed.
    #[error("remove console file {}", path.display())]
    Remove {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// The deadline passed; a disk does not answer, or the raw file is still being written.
    #[error("console files do not answer in time")]
    Stuck,
    /// Other consoles use all threads, as they do when a disk does not answer.
    #[error("no thread for console files became free in time: a disk of consoles does not answer")]
    Crowded,
    /// The follower has ended before, or a blocking thread of it was lost.
    #[error("console follower has ended")]
    Ended,
}

impl Error {
    /// Whether no write to the file system of the log or the position can succeed for now.
    pub(super) fn is_unwritable(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
        match self {
            Self::SavePosition { source, .. }
            | Self::OpenLog { source, .. }
            | Self::WriteLog { source, .. } => {
                matches!(
                    source.kind(),
                    QuotaExceeded | ReadOnlyFilesystem | StorageFull
                )
            }
            _ => false,
        }
    }
}

/// Outcome of a console step.
pub type Result<T, E = Error> = std::result::Result<T, E>;
