//! Why a disk is not exported, as clients get it.
//!
//! Invariant: the sentence says what to do where a client can do something.
//! Failure: none here.

use tonic::{Code, Status};

use super::{CLIENT_TIMEOUT, MOST, Source};
use crate::{backup, disk, files};

/// An export that ended early.
#[derive(Debug, thiserror::Error)]
pub(in crate::node) enum Error {
    /// The disk cannot be copied.
    #[error(transparent)]
    Disk(#[from] disk::Error),
    /// The copy cannot be read.
    #[error(transparent)]
    Files(#[from] files::Error),
    /// Others are served.
    #[error(
        "{MOST} disks are being exported from this node: try again when one of them is complete"
    )]
    Crowded,
    /// Another client fetches the same.
    #[error("another client exports {0} now")]
    Replaced(Source),
    /// The machine or the snapshot is deleted.
    #[error("{0} is deleted: the export is incomplete")]
    Deleted(Source),
    /// The client does not read.
    #[error("the client has read nothing for {} s", CLIENT_TIMEOUT.as_secs())]
    Stalled,
    /// The client has left.
    #[error("the client has left")]
    Left,
    /// The daemon stops.
    #[error("the daemon stops: continue the export when it has started again")]
    Stopping,
}

impl Error {
    /// As the node API says it.
    pub(super) fn status(&self) -> Status {
        let code = match self {
            Self::Disk(disk::Error::Missing(_) | disk::Error::NoSnapshot { .. })
            | Self::Deleted(_) => Code::NotFound,
            Self::Disk(disk::Error::Backup(error)) => of_backup(error),
            Self::Disk(disk::Error::Write(failed)) if failed.is_full() => Code::ResourceExhausted,
            Self::Disk(disk::Error::Write(_) | disk::Error::Files(_) | disk::Error::Db(_)) => {
                Code::Internal
            }
            Self::Disk(disk::Error::Busy { .. }) | Self::Stopping => Code::Unavailable,
            Self::Disk(_) => Code::FailedPrecondition,
            Self::Files(_) => Code::Internal,
            Self::Crowded => Code::ResourceExhausted,
            Self::Replaced(_) => Code::Aborted,
            Self::Stalled | Self::Left => Code::DeadlineExceeded,
        };
        Status::new(code, crate::one_line(self))
    }
}

/// A target that does not answer may do so soon; a node gets a target from its administrator alone.
const fn of_backup(error: &backup::Error) -> Code {
    match error {
        backup::Error::Absent { .. } => Code::NotFound,
        backup::Error::NoTarget(_) => Code::FailedPrecondition,
        other if other.is_transient() => Code::Unavailable,
        _ => Code::FailedPrecondition,
    }
}
