//! Backups of disks, in directories that the configuration of the node names.
//!
//! ```text
//! TARGET/MACHINE/.new-BACKUP/             is being written, or was left by an attempt
//! TARGET/MACHINE/BACKUP/manifest.json     complete
//! TARGET/MACHINE/BACKUP/0.qcow2           the layers of the disk, the upper one first
//! TARGET/MACHINE/BACKUP/1.raw             the image under the last one
//! TARGET/MACHINE/.old-BACKUP/             is being removed
//! ```
//!
//! Invariant: a backup has its name only when all of it, and its manifest, is on the device. Others may write to a
//! target, too: no link in it is followed, nothing in it is opened but plain files, and what is read is compared with
//! the manifest, whose digest names the one before. No thread of the runtime works on a target, or closes what is open
//! in it: it may never answer.
//! Failure: [`Error`]; what was begun of a backup has another name, and is removed by the next attempt.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use podspec::VmUid;
use tokio::sync::Semaphore;

mod chain;
mod copy;
mod directory;
mod error;
mod manifest;
mod read;
mod remove;
mod write;

pub use chain::{Chain, Staged};
pub use error::{Error, Result};
pub use manifest::{Entry, Manifest, Parent};
pub use write::{Draft, Original};

use crate::foreign::Foreign;
use directory::Directory;

/// Time for a target to take in, or to give, a few megabytes.
const DEADLINE: Duration = Duration::from_secs(120);

/// Threads that work on one target at once: one that hangs keeps so many, and no more.
const THREADS: usize = 8;

/// The directories of this node; clones share what waits for them.
#[derive(Debug, Clone, Default)]
pub struct Targets {
    all: Arc<BTreeMap<String, Place>>,
    foreign: Foreign,
}

/// A directory, and the places of threads that work on it.
#[derive(Debug)]
struct Place {
    path: PathBuf,
    threads: Arc<Semaphore>,
}

/// One of them, as far as it has backups of one machine.
#[derive(Debug, Clone)]
pub struct Target {
    name: String,
    path: PathBuf,
    vm: VmUid,
    foreign: Foreign,
    threads: Arc<Semaphore>,
}

/// How far a copy is: a step of so many bytes was made.
pub(crate) type Step<'a> = &'a mut (dyn FnMut(u64) + Send);

impl Targets {
    /// Directories by their names.
    pub fn new(all: BTreeMap<String, PathBuf>) -> Self {
        let place = |path| Place {
            path,
            threads: Arc::new(Semaphore::new(THREADS)),
        };
        let all = all.into_iter().map(|(name, path)| (name, place(path)));
        Self {
            all: Arc::new(all.collect()),
            foreign: Foreign::default(),
        }
    }

    /// The names of all.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.all.keys().map(String::as_str)
    }

    /// The target of that name, for backups of a machine.
    pub fn find(&self, name: &str, vm: VmUid) -> Result<Target> {
        let place = self.all.get(name);
        let place = place.ok_or_else(|| Error::NoTarget(name.to_owned()))?;
        Ok(Target {
            name: name.to_owned(),
            path: place.path.clone(),
            vm,
            foreign: self.foreign.clone(),
            threads: Arc::clone(&place.threads),
        })
    }
}

impl Target {
    /// The machine whose backups it has.
    pub const fn vm(&self) -> VmUid {
        self.vm
    }

    /// Works on a thread, which what does not answer keeps from other work for this machine alone.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let owner = self.owner();
        let this = self.clone();
        // It may have files of the target open: to close one waits for the server, too.
        let unclaimed = self.foreign.unclaimed(owner.clone(), work);
        let worked = async {
            let aborted = |error: &dyn std::fmt::Display| Error::Aborted(error.to_string());
            let place = Arc::clone(&self.threads).acquire_owned().await;
            let place = place.map_err(|error| aborted(&error))?;
            let work = move || {
                // One that never returns keeps its place.
                let _place = place;
                unclaimed.claim()(&this)
            };
            let worked = self.foreign.run(&owner, work).await;
            worked.unwrap_or_else(|error| Err(aborted(&error)))
        };
        let in_time = tokio::time::timeout(DEADLINE, worked).await;
        in_time.unwrap_or_else(|_| Err(Error::Hung(self.name.clone())))
    }

    /// Whom threads work for, one at a time.
    fn owner(&self) -> String {
        format!("backup target {}, machine {}", self.name, self.vm)
    }

    /// The directory of the machine; none: it has no backup. Blocks.
    fn machine(&self) -> Result<Option<Directory>> {
        let root = Directory::open(&self.path)?;
        root.find(&self.vm.to_string())
    }

    /// The same, made where there is none. Blocks.
    fn made_machine(&self) -> Result<Directory> {
        let root = Directory::open(&self.path)?;
        let name = self.vm.to_string();
        if let Some(machine) = root.find(&name)? {
            return Ok(machine);
        }
        let machine = root.make(&name)?;
        root.sync()?;
        Ok(machine)
    }

    /// The file of a backup, for people.
    fn shown(&self, backup: VmUid, file: &str) -> PathBuf {
        let machine = self.path.join(self.vm.to_string());
        machine.join(backup.to_string()).join(file)
    }
}

/// The names of a backup that is not complete.
fn unfinished(backup: VmUid) -> String {
    format!(".new-{backup}")
}

fn removed(backup: VmUid) -> String {
    format!(".old-{backup}")
}

/// Whether a name is that of something that an attempt to write a backup has left.
fn is_left(name: &str) -> bool {
    let uid = name.strip_prefix(".new-");
    uid.is_some_and(|uid| uid.parse::<VmUid>().is_ok())
}

#[cfg(test)]
mod tests;
