//! Files that the program may read while a machine has them.
//!
//! Invariant: the owner of a file stays as it is, so that an emulator can open it meanwhile, and libvirt, which
//! compares owners, finds the one that it has set. The user of the program gets the right to read from an access
//! control list, which goes with the last reader of this process, and what a process before it left with the next one.
//! Failure: file systems without such lists; a list that is not removed is logged.

use std::collections::BTreeMap;
use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::unistd::geteuid;
use rustix::fs::{XattrFlags, fremovexattr, fsetxattr};
use rustix::io::Errno;

use super::QemuImg;
use super::lent::{Guard, Lent, Loan, look};
use crate::foreign::Open;

/// The extended attribute that is a file's access control list.
const LIST: &str = "system.posix_acl_access";

/// The form of its value.
const VERSION: u32 = 2;

/// An entry that names no user.
const NO_ONE: u32 = u32::MAX;

/// The mode of a layer without a list.
const OWNER_ONLY: u32 = 0o600;

/// Device and inode of a file.
type Inode = (u64, u64);

/// How many readers of this process a file has. It is locked while the list of the file changes, by threads that may
/// wait for the file system.
type Count = Arc<Mutex<usize>>;

/// The readers of all files; clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Readers(Arc<Mutex<BTreeMap<Inode, Count>>>);

/// A right to read a file.
#[derive(Debug)]
pub(super) struct Reader {
    all: Readers,
    inode: Inode,
    count: Count,
}

impl QemuImg {
    /// Lets the helper's user read a file that another user owns, until the loan ends.
    pub(super) async fn share(
        &self,
        file: &Open<File>,
        guard: Option<Guard>,
    ) -> Result<Lent, String> {
        let user = self.helper.user();
        let readers = self.readers.clone();
        let share = move |file: &File| {
            let is = file.metadata()?;
            let has_access = !geteuid().is_root() || [0, is.uid()].contains(&user.uid);
            let reader = if has_access {
                None
            } else {
                let permit = || fsetxattr(file, LIST, &list(user.uid), XattrFlags::empty());
                let entered = readers.enter((is.dev(), is.ino()), permit);
                Some(entered.map_err(refusal)?)
            };
            Loan::shared(file, reader, guard)
        };
        let loan = file.keep(look(file, "share it with qemu-img", share).await?);
        let is_device = false;
        Ok(Lent { loan, is_device })
    }
}

impl Readers {
    /// One more reader of a file, which `permit` gives the right to read. Blocks.
    pub(super) fn enter(
        &self,
        inode: Inode,
        permit: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<Reader, Errno> {
        let count = Arc::clone(self.all().entry(inode).or_default());
        let permitted = {
            let mut readers = locked(&count);
            let permitted = permit();
            *readers += usize::from(permitted.is_ok());
            permitted
        };
        let reader = Reader {
            all: self.clone(),
            inode,
            count,
        };
        if let Err(error) = permitted {
            reader.forget();
            return Err(error);
        }
        Ok(reader)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.all().is_empty()
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<Inode, Count>> {
        locked(&self.0)
    }
}

impl Reader {
    /// Removes the list of a file without another reader. Blocks.
    pub(super) fn leave(self, file: &File) {
        {
            let mut readers = locked(&self.count);
            *readers = readers.saturating_sub(1);
            if *readers == 0
                && let Err(error) = remove(file)
            {
                let error = crate::one_line(&error);
                tracing::warn!(error, "access control list of layer not removed");
            }
        }
        self.forget();
    }

    /// A file without readers is known no more.
    fn forget(self) {
        let Self { all, inode, count } = self;
        let mut all = all.all();
        // Readers take and return it under this lock: the last of two that end together finds no other.
        drop(count);
        let is_last = |count: &Count| Arc::strong_count(count) == 1;
        if all.get(&inode).is_some_and(is_last) {
            all.remove(&inode);
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes the list of a file. The mode first: its part for the group is what the list allows at most, and would be the
/// group's without it.
fn remove(file: &File) -> io::Result<()> {
    file.set_permissions(Permissions::from_mode(OWNER_ONLY))?;
    match fremovexattr(file, LIST) {
        Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn refusal(error: Errno) -> io::Error {
    if error == Errno::OPNOTSUPP {
        return io::Error::other(
            "its file system has no access control lists (POSIX ACLs), which a snapshot is read by",
        );
    }
    error.into()
}

/// A list that lets a user read, and the owner read and write.
fn list(user: u32) -> Vec<u8> {
    // Tags of owner, user, group, greatest right, others, with rights and the user.
    let entries: [(u16, u16, u32); 5] = [
        (0x01, 6, NO_ONE),
        (0x02, 4, user),
        (0x04, 0, NO_ONE),
        (0x10, 4, NO_ONE),
        (0x20, 0, NO_ONE),
    ];
    let mut value = VERSION.to_le_bytes().to_vec();
    for (tag, rights, user) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(rights.to_le_bytes());
        value.extend(user.to_le_bytes());
    }
    value
}
