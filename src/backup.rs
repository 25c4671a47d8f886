//! Backups of disks, in targets that the configuration of the node names: directories, and buckets of S3; and in claims.
//!
//! ```text
//! TARGET/MACHINE/BACKUP/manifest.json     complete
//! TARGET/MACHINE/BACKUP/0.qcow2           the layers of the disk, the upper one first
//! TARGET/MACHINE/BACKUP/1.raw             the image under the last one
//! ```
//!
//! What is not complete, or is being removed, is marked in a way of each kind: `mount.rs`, `bucket.rs`.
//!
//! Invariant: a backup is published only when all of it is stored. Others may write to a target, too: what is read is
//! compared with the manifest, whose digest names the one before. What a target does not answer delays nothing but the
//! tasks that use it.
//! Failure: [`Error`]; what was begun of a backup is none, and is removed by the next attempt.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use podspec::VmUid;
use tokio::sync::Semaphore;

mod bucket;
mod chain;
mod claim;
mod copy;
mod directory;
mod error;
mod manifest;
mod mount;
mod read;
mod remove;
mod s3;
mod store;
mod write;

pub use chain::{Chain, Staged};
pub use claim::{ClaimTarget, Claims, MountPoint};
pub use error::{Error, Result};
pub use manifest::{Entry, Manifest, Parent};
pub use s3::{Settings as BucketSettings, Style as BucketStyle};
pub use write::{Draft, Original};

use crate::foreign::Foreign;
use bucket::Bucket;
use claim::{ClaimTargets, Found, Root, namespace_of};
use mount::Mount;
use s3::Client;
use store::Store;

/// Time for a target to take in, or to give, a few megabytes.
const DEADLINE: Duration = Duration::from_secs(120);

/// Threads that work on one directory at once: one that hangs keeps so many, and no more.
const THREADS: usize = 8;

/// Where a target is.
#[derive(Debug, Clone)]
pub enum Location {
    /// A directory that the node has mounted.
    Directory(PathBuf),
    /// A bucket of a server that speaks S3.
    Bucket(Box<BucketSettings>),
}

/// The targets of this node; clones share what waits for them.
#[derive(Debug, Clone, Default)]
pub struct Targets {
    all: Arc<BTreeMap<String, Place>>,
    claims: ClaimTargets,
    foreign: Foreign,
}

/// A target, and what its users share.
#[derive(Debug)]
enum Place {
    Directory {
        path: PathBuf,
        /// Places of threads that work on it.
        threads: Arc<Semaphore>,
    },
    Bucket(Arc<Client>),
}

/// One of them, as far as it has backups of one machine.
#[derive(Debug, Clone)]
pub struct Target {
    name: String,
    vm: VmUid,
    store: Store,
}

/// How far a copy is: a step of so many bytes was made.
pub(crate) type Step<'a> = &'a mut (dyn FnMut(u64) + Send);

impl Targets {
    /// Targets by their names.
    pub fn new(all: BTreeMap<String, Location>) -> Self {
        let all = all.into_iter().map(|(name, location)| {
            let place = Place::new(&name, location);
            (name, place)
        });
        Self {
            all: Arc::new(all.collect()),
            claims: ClaimTargets::default(),
            foreign: Foreign::default(),
        }
    }

    /// The same with the claims that these pods have mounted.
    pub fn with_claims(self, pods: Arc<dyn Claims>) -> Self {
        let claims = ClaimTargets::new(pods);
        Self { claims, ..self }
    }

    /// The names of all.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.all.keys().map(String::as_str)
    }

    /// The target of that name, for backups of a machine. `machine`: `namespace/name` of one of the namespace that may use
    /// it.
    pub fn find(&self, name: &str, vm: VmUid, machine: &str) -> Result<Target> {
        let store = match (name.parse::<ClaimTarget>(), self.all.get(name)) {
            (Ok(claim), _) => {
                let namespace = namespace_of(machine);
                let found = self.claims.find(claim, namespace);
                let found = found.ok_or_else(|| Error::NotMounted {
                    claim: claim.uid(),
                    namespace: namespace.to_owned(),
                })?;
                Store::Mount(self.mount(name, vm, found))
            }
            (Err(()), Some(Place::Directory { path, threads })) => {
                let found = Found {
                    root: Root::Directory(path.clone()),
                    threads: Arc::clone(threads),
                    shared: None,
                };
                Store::Mount(self.mount(name, vm, found))
            }
            (Err(()), Some(Place::Bucket(client))) => {
                Store::Bucket(Bucket::new(Arc::clone(client), vm))
            }
            (Err(()), None) => return Err(Error::NoTarget(name.to_owned())),
        };
        Ok(Target {
            name: name.to_owned(),
            vm,
            store,
        })
    }

    fn mount(&self, target: &str, vm: VmUid, found: Found) -> Mount {
        Mount {
            target: target.to_owned(),
            root: found.root,
            vm,
            foreign: self.foreign.clone(),
            threads: found.threads,
            shared: found.shared,
        }
    }
}

impl Place {
    fn new(name: &str, location: Location) -> Self {
        match location {
            Location::Directory(path) => Self::Directory {
                path,
                threads: Arc::new(Semaphore::new(THREADS)),
            },
            Location::Bucket(settings) => Self::Bucket(Arc::new(Client::new(name, *settings))),
        }
    }
}

impl Target {
    /// The machine whose backups it has.
    pub const fn vm(&self) -> VmUid {
        self.vm
    }
}

#[cfg(test)]
mod tests;
