//! Files that the program may read while a machine has them.
//!
//! Invariant: the owner of a file stays as it is, so that an emulator can open it meanwhile, and libvirt, which
//! compares owners, finds the one that it has set. The users of the runs get the right to read from an access
//! control list, which has the present readers of this process, and goes with the last one; what a process before it
//! left goes with the next one.
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

/// The users of the readers that a file has in this process. It is locked while the list of the file changes, by threads
/// that may wait for the file system.
type Users = Arc<Mutex<Vec<u32>>>;

/// The readers of all files; clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Readers(Arc<Mutex<BTreeMap<Inode, Users>>>);

/// A right to read a file.
#[derive(Debug)]
pub(super) struct Reader {
    all: Readers,
    inode: Inode,
    user: u32,
    users: Users,
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
                let permit = |users: &[u32]| permit(file, users);
                let entered = readers.enter((is.dev(), is.ino()), user.uid, permit);
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
    /// One more reader of a file; `permit` gives all of them the right to read. Blocks.
    pub(super) fn enter(
        &self,
        inode: Inode,
        user: u32,
        permit: impl FnOnce(&[u32]) -> Result<(), Errno>,
    ) -> Result<Reader, Errno> {
        let users = Arc::clone(self.all().entry(inode).or_default());
        let permitted = {
            let mut users = locked(&users);
            users.push(user);
            let permitted = permit(&users);
            if permitted.is_err() {
                users.pop();
            }
            permitted
        };
        let reader = Reader {
            all: self.clone(),
            inode,
            user,
            users,
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

    fn all(&self) -> MutexGuard<'_, BTreeMap<Inode, Users>> {
        locked(&self.0)
    }
}

impl Reader {
    /// Takes the right of this reader back. Blocks.
    pub(super) fn leave(self, file: &File) {
        {
            let mut users = locked(&self.users);
            if let Some(at) = users.iter().position(|user| *user == self.user) {
                users.swap_remove(at);
            }
            let left = if users.is_empty() {
                remove(file)
            } else {
                permit(file, &users).map_err(Into::into)
            };
            if let Err(error) = left {
                let error = crate::one_line(&error);
                tracing::warn!(error, "access control list of layer not removed");
            }
        }
        self.forget();
    }

    /// A file without readers is known no more.
    fn forget(self) {
        let Self {
            all, inode, users, ..
        } = self;
        let mut all = all.all();
        // Readers take and return it under this lock: the last of two that end together finds no other.
        drop(users);
        let is_last = |users: &Users| Arc::strong_count(users) == 1;
        if all.get(&inode).is_some_and(is_last) {
            all.remove(&inode);
        }
    }
}

/// Lets these users read a file, and no other one but its owner.
fn permit(file: &File, users: &[u32]) -> Result<(), Errno> {
    fsetxattr(file, LIST, &list(users), XattrFlags::empty())
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

/// A list that lets users read, and the owner read and write.
fn list(users: &[u32]) -> Vec<u8> {
    let mut users = users.to_vec();
    users.sort_unstable();
    users.dedup();
    let named = users.into_iter().map(|user| (0x02_u16, 4_u16, user));
    // Tags of owner, user, group, greatest right, others, with rights and the user.
    let owner = [(0x01, 6, NO_ONE)].into_iter();
    let others = [(0x04, 0, NO_ONE), (0x10, 4, NO_ONE), (0x20, 0, NO_ONE)];
    let mut value = VERSION.to_le_bytes().to_vec();
    for (tag, rights, user) in owner.chain(named).chain(others) {
        value.extend(tag.to_le_bytes());
        value.extend(rights.to_le_bytes());
        value.extend(user.to_le_bytes());
    }
    value
}
