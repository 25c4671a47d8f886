//! Files that the program may write to while it runs.
//!
//! Invariant: a file is as it was once its loan has ended, by whatever end; a thread of its owner
//! ends it.
//! Failure: a file that cannot be taken back is logged.

use std::any::Any;
use std::fs::{File, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown, fchown};
use std::path::Path;
use std::sync::Arc;

use nix::errno::Errno;
use nix::unistd::geteuid;

use super::shared::Reader;
use super::{QemuImg, blocks};
use crate::foreign::Open;

/// The mode of a file that its group reads.
const READERS: u32 = 0o640;

/// A file that the user of the helper may write to for as long as this lives.
#[derive(Debug)]
pub(super) struct Lent {
    pub(super) loan: Open<Loan>,
    pub(super) is_device: bool,
}

/// What keeps others from a file until it is taken back.
pub type Guard = Arc<dyn Any + Send + Sync>;

/// Takes its file back when it ends, which blocks.
#[derive(Debug)]
pub(super) struct Loan {
    pub(super) file: File,
    before: Option<Before>,
    /// The right to read it, where its owner stays.
    reader: Option<Reader>,
    /// Dropped after the file is taken back.
    _guard: Option<Guard>,
}

/// How a file was before it was lent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Before {
    /// It belonged to this user and group.
    Owner(u32, u32),
    /// It had this mode.
    Mode(u32),
}

impl QemuImg {
    /// Lets the program read a file of ours, which stays ours.
    pub(crate) async fn let_read(&self, path: &Path) -> io::Result<()> {
        let group = self.helper.user().gid;
        let path = path.to_owned();
        let permit = move || {
            if geteuid().is_root() {
                chown(&path, None, Some(group))?;
            }
            std::fs::set_permissions(&path, Permissions::from_mode(READERS))
        };
        let permitted = tokio::task::spawn_blocking(permit).await;
        permitted.unwrap_or_else(|e| Err(io::Error::other(e)))
    }

    /// Lets the helper's user write to a file, whatever user owns it.
    pub(super) async fn lend(&self, file: &Open<File>) -> Result<Lent, String> {
        self.lend_with(file, None).await
    }

    /// As [`Self::lend`], with what ends after the loan.
    pub(super) async fn lend_with(
        &self,
        file: &Open<File>,
        guard: Option<Guard>,
    ) -> Result<Lent, String> {
        let user = self.helper.user();
        let lend = move |file: &File| {
            let is = file.metadata()?;
            let has_access = !geteuid().is_root() || [0, is.uid()].contains(&user.uid);
            let mut loan = Loan {
                file: file.try_clone()?,
                before: None,
                reader: None,
                _guard: guard,
            };
            if !has_access {
                let give = |file: &File| fchown(file, Some(user.uid), Some(user.gid));
                loan.before = Some(grant(file, &is, give)?);
            }
            Ok((loan, is.file_type().is_block_device()))
        };
        let (loan, is_device) = look(file, "lend it to qemu-img", lend).await?;
        let loan = file.keep(loan);
        Ok(Lent { loan, is_device })
    }
}

impl Loan {
    /// Of a file that its owner keeps.
    pub(super) fn shared(
        file: &File,
        reader: Option<Reader>,
        guard: Option<Guard>,
    ) -> io::Result<Self> {
        let file = match file.try_clone() {
            Ok(file) => file,
            Err(error) => {
                reader.into_iter().for_each(|reader| reader.leave(file));
                return Err(error);
            }
        };
        Ok(Self {
            file,
            before: None,
            reader,
            _guard: guard,
        })
    }
}

impl Lent {
    /// Another descriptor of the file, for the program.
    pub(super) fn inherited(&self) -> Result<Open<File>, String> {
        let file = self.loan.local().file.try_clone();
        let file = file.map_err(|e| format!("duplicate its descriptor: {e}"))?;
        Ok(self.loan.keep(file))
    }

    /// Whether this file, which is empty, can have the blocks of another one.
    pub(super) async fn can_share_blocks_of(&self, source: &Open<File>) -> Result<bool, String> {
        let source = source.clone();
        let shared = move |loan: &Loan| blocks::shared(source.local(), &loan.file);
        look(&self.loan, "empty it", shared).await
    }

    /// Waits until the file is taken back; one that does not answer in time is when it does.
    pub(super) async fn take_back(self) {
        if let Err(error) = self.loan.close().await {
            tracing::warn!(
                error = crate::one_line(&error),
                "file not taken back from qemu-img yet"
            );
        }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.leave(&self.file);
        }
        let returned = match self.before {
            None => Ok(()),
            Some(Before::Owner(uid, gid)) => fchown(&self.file, Some(uid), Some(gid)),
            Some(Before::Mode(mode)) => self.file.set_permissions(Permissions::from_mode(mode)),
        };
        if let Err(error) = returned {
            // A machine's file that stays with QEMU's user, as after a kill of the daemon, goes to
            // the machine's user when libvirt starts the machine.
            tracing::warn!(
                error = crate::one_line(&error),
                "file not taken back from qemu-img"
            );
        }
    }
}

/// Lets another user write to a file, which `give` makes its owner; what is to be put back afterwards.
pub(super) fn grant(
    file: &File,
    is: &Metadata,
    give: impl FnOnce(&File) -> io::Result<()>,
) -> io::Result<Before> {
    match give(file) {
        Ok(()) => Ok(Before::Owner(is.uid(), is.gid())),
        Err(error) if keeps_owner(&error) => {
            let mode = is.mode() & 0o7777;
            file.set_permissions(Permissions::from_mode(mode | 0o006))?;
            Ok(Before::Mode(mode))
        }
        Err(error) => Err(error),
    }
}

/// Whether storage refuses to give a file away by this error: it maps root to another user, does not know the
/// number of the user (NFS with names, mapped owners), or has no owners.
fn keeps_owner(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error().map(Errno::from_raw),
        Some(Errno::EPERM | Errno::EACCES | Errno::EINVAL | Errno::EOVERFLOW | Errno::EOPNOTSUPP)
    )
}

/// Works on what is open within a deadline; an error begins with the step.
pub(super) async fn look<T: Send + Sync + 'static, R: Send + 'static>(
    open: &Open<T>,
    step: &str,
    work: impl FnOnce(&T) -> io::Result<R> + Send + 'static,
) -> Result<R, String> {
    let looked = open.look(work).await;
    let looked = looked.map_err(|e| format!("{step}: {}", crate::one_line(&e)))?;
    looked.map_err(|e| format!("{step}: {e}"))
}
