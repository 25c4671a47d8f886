//! The kinds of failure that a caller acts on: those that pass, and those of a file system without writes.
//!
//! Invariant: an error is judged by its causes, never by its text.
//! Failure: none; an error that no rule names is neither.

use std::io;
use std::sync::Arc;

use super::Error;
use crate::{files, metadata};

impl Error {
    /// Whether the same request may succeed once a helper is back; nothing is decided by this
    /// failure.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Network { source, .. } => {
                !matches!(source, tapmanager::client::Error::Refused(_))
            }
            Self::Hypervisor { source, .. } => source.is_unavailable(),
            Self::Layers(e) => e.is_transient(),
            Self::VmDisk(e) => e.is_transient(),
            Self::DomainLives { .. } | Self::Paused(_) | Self::DiskFails(_) => true,
            // Its sandbox may stay: a stop can fail.
            Self::Stopped(_) => true,
            Self::Db(_) | Self::Table(_) | Self::Aborted(_) => true,
            // Another version may read it.
            Self::Unreadable(_) => true,
            _ => false,
        }
    }

    /// Whether the cause is a file system of the node that takes no writes.
    pub fn is_unwritable(&self) -> bool {
        let first: Option<&(dyn std::error::Error + 'static)> = Some(self);
        let mut causes = std::iter::successors(first, |error| error.source());
        causes.any(|error| {
            let by_kernel = error.downcast_ref::<io::Error>();
            let of_images = error.downcast_ref::<Arc<io::Error>>();
            let by_sqlite = error.downcast_ref::<rusqlite::Error>();
            by_kernel.is_some_and(files::is_unwritable)
                || of_images.is_some_and(|error| files::is_unwritable(error))
                || by_sqlite.is_some_and(metadata::is_unwritable)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::path::Path;

    use podspec::SandboxId;

    use super::*;
    use crate::images;

    #[test]
    fn only_a_file_system_without_writes_is_unwritable() {
        let path = Path::new("/var/lib/vmlet/pods/x");
        let removal = |error: io::Error| files::failed("remove", path)(error);
        let of = |kind: ErrorKind| removal(kind.into());
        for kind in [ErrorKind::ReadOnlyFilesystem, ErrorKind::StorageFull] {
            assert!(Error::from(of(kind)).is_unwritable(), "{kind}");
            assert!(Error::from(crate::disk::Error::from(of(kind))).is_unwritable());
            assert!(Error::from(crate::block::Error::from(of(kind))).is_unwritable());
        }
        let failing = io::Error::from_raw_os_error(nix::libc::EIO);
        assert!(Error::from(removal(failing)).is_unwritable());
        assert!(!Error::from(of(ErrorKind::PermissionDenied)).is_unwritable());

        let code = |code| rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None);
        let database = |error| metadata::Error::Statement(code(error));
        let read_only = rusqlite::ffi::SQLITE_READONLY;
        let record = images::Error::Record(Arc::new(database(read_only)));
        assert!(Error::from(record).is_unwritable());
        assert!(Error::from(database(read_only)).is_unwritable());
        assert!(!Error::from(database(rusqlite::ffi::SQLITE_BUSY)).is_unwritable());
        assert!(!Error::NoSandbox(SandboxId::generate()).is_unwritable());
    }
}
