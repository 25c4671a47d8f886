//! What a target is, as far as it has backups of one machine: the one place that knows the kinds of targets.
//!
//! Invariant: a backup is published only when all of it is stored; one that is hidden, and one that is not published, is
//! none. Each call can be repeated after it was cut short.
//! Failure: [`Error`](super::Error).

use podspec::VmUid;

use super::bucket::Bucket;
use super::copy::{Copied, Named};
use super::error::Result;
use super::manifest::Manifest;
use super::mount::Mount;
use super::{Original, Step};

/// Where backups are kept.
#[derive(Debug, Clone)]
pub(super) enum Store {
    /// In a directory that the node has mounted.
    Mount(Mount),
    /// In a bucket of a server that speaks S3.
    Bucket(Bucket),
}

/// Calls the same method of the kind.
macro_rules! each {
    ($self:ident, $store:ident => $call:expr) => {
        match $self {
            Store::Mount($store) => $call.await,
            Store::Bucket($store) => $call.await,
        }
    };
}

impl Store {
    /// Whether it has anything of the machine, or had.
    pub(super) async fn knows_machine(&self) -> Result<bool> {
        each!(self, store => store.knows_machine())
    }

    /// Shows that a backup can be written.
    pub(super) async fn begin(&self, uid: VmUid) -> Result<()> {
        each!(self, store => store.begin(uid))
    }

    /// Copies a file of the node to a backup that is being written.
    pub(super) async fn put(
        &self,
        uid: VmUid,
        name: String,
        original: Original,
        step: Step<'_>,
    ) -> Result<Copied> {
        each!(self, store => store.put(uid, name, original, step))
    }

    /// Takes the manifest of a backup whose files are all written.
    pub(super) async fn put_manifest(&self, uid: VmUid, text: Vec<u8>) -> Result<()> {
        match self {
            Self::Mount(mount) => mount.put_manifest(uid, text).await,
            // It is what makes a backup complete.
            Self::Bucket(_) => Ok(()),
        }
    }

    /// Makes a backup of what was written; `text` is its manifest.
    pub(super) async fn publish(&self, uid: VmUid, text: Vec<u8>) -> Result<()> {
        match self {
            Self::Mount(mount) => mount.publish(uid).await,
            Self::Bucket(bucket) => bucket.publish(uid, text).await,
        }
    }

    /// Undoes that.
    pub(super) async fn unpublish(&self, uid: VmUid) -> Result<()> {
        each!(self, store => store.unpublish(uid))
    }

    /// Whether a backup is published.
    pub(super) async fn has(&self, uid: VmUid) -> Result<bool> {
        each!(self, store => store.has(uid))
    }

    /// Makes sure that a backup that was just published stays as it is; its manifest has so many bytes.
    pub(super) async fn settle_new(&self, manifest: &Manifest, text: u64) -> Result<()> {
        match self {
            Self::Mount(mount) => mount.settle(manifest.uid).await,
            Self::Bucket(bucket) => bucket.settle(manifest, text).await,
        }
    }

    /// Makes sure that a power cut takes nothing of a published backup.
    pub(super) async fn settle(&self, uid: VmUid) -> Result<()> {
        match self {
            Self::Mount(mount) => mount.settle(uid).await,
            // A server that has answered has stored it.
            Self::Bucket(_) => Ok(()),
        }
    }

    /// Removes what attempts have left of the machine.
    pub(super) async fn sweep(&self) -> Result<()> {
        each!(self, store => store.sweep())
    }

    /// Removes what attempts have left of one backup.
    pub(super) async fn discard(&self, uid: VmUid) -> Result<()> {
        each!(self, store => store.discard(uid))
    }

    /// The published backups.
    pub(super) async fn backups(&self) -> Result<Vec<VmUid>> {
        each!(self, store => store.backups())
    }

    /// Hides a published backup that is to be removed.
    pub(super) async fn hide(&self, uid: VmUid) -> Result<()> {
        each!(self, store => store.hide(uid))
    }

    /// Whether a backup is hidden.
    pub(super) async fn is_hidden(&self, uid: VmUid) -> Result<bool> {
        each!(self, store => store.is_hidden(uid))
    }

    /// Publishes a hidden backup again.
    pub(super) async fn show(&self, uid: VmUid) -> Result<()> {
        each!(self, store => store.show(uid))
    }

    /// Removes a hidden backup.
    pub(super) async fn erase(&self, uid: VmUid) -> Result<()> {
        each!(self, store => store.erase(uid))
    }

    /// The text of a manifest, which may be longer than one can be, and is empty where there is none; none: there is no
    /// such backup.
    pub(super) async fn manifest(&self, uid: VmUid) -> Result<Option<Vec<u8>>> {
        each!(self, store => store.manifest(uid))
    }

    /// The length of a file of a backup; none: there is no such file.
    pub(super) async fn length(&self, uid: VmUid, name: String) -> Result<Option<u64>> {
        each!(self, store => store.length(uid, name))
    }

    /// Reads a file of a backup, of so many bytes at most, and writes it to a file of the node where there is one; none:
    /// there is no such file.
    pub(super) async fn get(
        &self,
        uid: VmUid,
        name: String,
        most: u64,
        to: Option<Named>,
        step: Step<'_>,
    ) -> Result<Option<Copied>> {
        each!(self, store => store.get(uid, name, most, to, step))
    }
}
