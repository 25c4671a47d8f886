//! The directory of a machine's sockets.
//!
//! Invariant: the machine's user cannot change the directory until everything that the daemon makes there is
//! made, and the daemon follows no name in it afterwards.
//! Failure: an error of the file system with its path; the start is undone.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;

use crate::files;
use crate::platform::Platform;
use crate::vm::error::Result;
use crate::vm::model::Container;
use crate::vm::service::Containers;
use crate::vm::users::Owner;

impl<P: Platform> Containers<P> {
    /// A new directory for the machine's sockets. The machine's user cannot change it until everything
    /// that the daemon makes there is made: nothing of an earlier start is left in it.
    pub(super) async fn prepare_sockets(&self, row: &Container) -> Result<()> {
        let directory = self.paths.sockets(&row.id);
        let path = directory.clone();
        let prepare = move || {
            match std::fs::remove_dir_all(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            DirBuilder::new().recursive(true).mode(0o700).create(&path)
        };
        let done = tokio::task::spawn_blocking(prepare)
            .await
            .map_err(crate::tasks::Aborted::from)?;
        Ok(done.map_err(files::failed("prepare", &directory))?)
    }

    /// Lets QEMU make its sockets in the directory. From here on no name in it is followed.
    pub(super) async fn give_sockets(&self, row: &Container) -> Result<()> {
        let directory = self.paths.sockets(&row.id);
        let Owner { uid, gid } = self.owner(row);
        let path = directory.clone();
        let give = move || std::os::unix::fs::lchown(&path, Some(uid), Some(gid));
        let done = tokio::task::spawn_blocking(give)
            .await
            .map_err(crate::tasks::Aborted::from)?;
        Ok(done.map_err(files::failed("prepare", &directory))?)
    }
}
