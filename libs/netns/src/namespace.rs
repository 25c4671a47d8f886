//! Network namespaces that are kept alive by a mount.
//!
//! Invariant: a namespace made here exists as long as its path is a mount of type nsfs; threads
//! that enter one never return to the caller's pool.
//! Failure: [`Namespace::delete`] may be repeated at will; a path that is no mount counts as gone.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::statfs::{NSFS_MAGIC, fstatfs};
use tokio::sync::oneshot;

/// What can go wrong with a namespace.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The directory of namespaces cannot be made.
    #[error("make the directory {path}")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The kernel's reason.
        #[source]
        source: io::Error,
    },
    /// The file to mount on cannot be made; it may exist.
    #[error("make the mount point {path}")]
    MountPoint {
        /// The file.
        path: PathBuf,
        /// The kernel's reason.
        #[source]
        source: io::Error,
    },
    /// The kernel refuses a new namespace.
    #[error("unshare the network namespace")]
    Unshare(#[source] Errno),
    /// The new namespace cannot be mounted.
    #[error("mount the namespace on {path}")]
    Mount {
        /// The file.
        path: PathBuf,
        /// The kernel's reason.
        #[source]
        source: Errno,
    },
    /// The path cannot be opened or examined.
    #[error("open the namespace {path}")]
    Open {
        /// The path.
        path: PathBuf,
        /// The kernel's reason.
        #[source]
        source: io::Error,
    },
    /// The path is something else.
    #[error("{0} is not a namespace")]
    NotANamespace(PathBuf),
    /// The mount or its file does not go away.
    #[error("remove the namespace {path}")]
    Remove {
        /// The path.
        path: PathBuf,
        /// The kernel's reason.
        #[source]
        source: io::Error,
    },
    /// The helper thread cannot be started.
    #[error("start a thread")]
    Thread(#[source] io::Error),
    /// The helper thread cannot enter the namespace.
    #[error("enter the namespace")]
    Enter(#[source] Errno),
    /// The helper thread ended.
    #[error("the thread inside the namespace panicked")]
    Panicked,
}

/// An open network namespace; cheap to clone.
#[derive(Debug, Clone)]
pub struct Namespace {
    path: Arc<Path>,
    fd: Arc<OwnedFd>,
}

impl Namespace {
    /// Makes a namespace and mounts it on `dir/name`, which must not exist.
    ///
    /// # Errors
    /// The step that failed; nothing is left behind then.
    pub async fn create(dir: &Path, name: &str) -> Result<Self, Error> {
        let path = dir.join(name);
        let dir = dir.to_owned();
        on_thread(move || create(&dir, &path)).await?
    }

    /// Opens the namespace at `path`; `None` when nothing is there or the file is no mount.
    ///
    /// # Errors
    /// When the path cannot be examined.
    pub fn open(path: &Path) -> Result<Option<Self>, Error> {
        let open_error = |source: io::Error| Error::Open {
            path: path.to_owned(),
            source,
        };
        let file = match File::open(path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(open_error(e)),
        };
        let kind = fstatfs(&file)
            .map_err(|e| open_error(e.into()))?
            .filesystem_type();
        Ok((kind == NSFS_MAGIC).then(|| Self {
            path: path.into(),
            fd: Arc::new(file.into()),
        }))
    }

    /// Unmounts and removes what is at `path`; success when nothing is there.
    ///
    /// Processes and descriptors inside keep the namespace alive until they no longer exist.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub async fn delete(path: &Path) -> Result<(), Error> {
        let path = path.to_owned();
        on_thread(move || delete(&path)).await?
    }

    /// Where the namespace is mounted.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs `job` on a thread of its own inside the namespace.
    ///
    /// # Errors
    /// When the thread cannot be started, cannot enter, or panics.
    pub async fn run<T, F>(&self, job: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let fd = Arc::clone(&self.fd);
        on_thread(move || {
            setns(&*fd, CloneFlags::CLONE_NEWNET).map_err(Error::Enter)?;
            Ok(job())
        })
        .await?
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Runs `job` on a fresh thread and waits for it without blocking the runtime.
pub(crate) async fn on_thread<T, F>(job: F) -> Result<T, Error>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    let (tx, rx) = oneshot::channel();
    std::thread::Builder::new()
        .name("netns".to_owned())
        .spawn(move || {
            // A dropped receiver belongs to a cancelled caller; the result is not needed.
            let _ = tx.send(job());
        })
        .map_err(Error::Thread)?;
    rx.await.map_err(|_| Error::Panicked)
}

fn create(dir: &Path, path: &Path) -> Result<Namespace, Error> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(dir)
        .map_err(|source| Error::Directory {
            path: dir.to_owned(),
            source,
        })?;
    OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o444)
        .open(path)
        .map_err(|source| Error::MountPoint {
            path: path.to_owned(),
            source,
        })?;
    let made = unshare(CloneFlags::CLONE_NEWNET)
        .map_err(Error::Unshare)
        .and_then(|()| {
            let none: Option<&str> = None;
            mount(
                Some("/proc/thread-self/ns/net"),
                path,
                none,
                MsFlags::MS_BIND,
                none,
            )
            .map_err(|source| Error::Mount {
                path: path.to_owned(),
                source,
            })?;
            Namespace::open(path)?.ok_or_else(|| Error::NotANamespace(path.to_owned()))
        });
    if made.is_err() {
        // The first error is the one to report; this one would only repeat it.
        let _ = delete(path);
    }
    made
}

fn delete(path: &Path) -> Result<(), Error> {
    let remove_error = |source: io::Error| Error::Remove {
        path: path.to_owned(),
        source,
    };
    loop {
        match umount2(path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
            // Mounts can be stacked: continue until none is left.
            Ok(()) => {}
            Err(Errno::EINVAL) => break,
            Err(Errno::ENOENT) => return Ok(()),
            Err(e) => return Err(remove_error(e.into())),
        }
    }
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(remove_error(e)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
