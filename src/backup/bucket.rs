//! A target that is a bucket, as far as it has backups of one machine.
//!
//! ```text
//! PREFIX/MACHINE/machine                  the machine has, or had, backups here
//! PREFIX/MACHINE/BACKUP/0.qcow2, …        without one of the next two: an attempt has left it
//! PREFIX/MACHINE/BACKUP/manifest.json     the last one that is written: the backup is complete
//! PREFIX/MACHINE/BACKUP/removed.json      without a manifest: the backup is being removed; it is removed last
//! ```
//!
//! Invariant: nothing is given another name, since buckets have no such request: a manifest is what makes a backup of
//! objects, and one that is copied before it is removed is what keeps a removal from being forgotten.
//! Failure: [`Error`]; a step that was cut short can be repeated.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use podspec::VmUid;

use super::copy::{Copied, Named, Output, Sum};
use super::error::{Error, Result};
use super::manifest::{LONGEST, Manifest, is_file_name};
use super::s3::{Client, blocking};
use super::write::MANIFEST;
use super::{Original, Step};

/// The manifest of a backup that is being removed.
const HIDDEN: &str = "removed.json";

/// An object that says that a machine is known.
const MACHINE: &str = "machine";

/// How much of a file is read at once, in bytes.
const PIECE: u64 = 8 << 20;

/// The bucket of a target.
#[derive(Debug, Clone)]
pub(super) struct Bucket {
    client: Arc<Client>,
    vm: VmUid,
}

/// An object of a backup.
#[derive(Debug)]
struct Part {
    uid: VmUid,
    name: String,
    bytes: u64,
}

impl Bucket {
    pub(super) const fn new(client: Arc<Client>, vm: VmUid) -> Self {
        Self { client, vm }
    }

    pub(super) async fn knows_machine(&self) -> Result<bool> {
        self.client.has_any(&self.machine()).await
    }

    /// Shows that the bucket takes objects.
    pub(super) async fn begin(&self, _uid: VmUid) -> Result<()> {
        let key = self.machine() + MACHINE;
        self.client.put(&key, Bytes::new()).await
    }

    pub(super) async fn put(
        &self,
        uid: VmUid,
        name: String,
        original: Original,
        step: Step<'_>,
    ) -> Result<Copied> {
        let key = self.key(uid, &name);
        self.client.upload(&key, original, step).await
    }

    pub(super) async fn publish(&self, uid: VmUid, text: Vec<u8>) -> Result<()> {
        let key = self.key(uid, MANIFEST);
        self.client.put(&key, text.into()).await
    }

    /// Looks whether a backup that was just published is there, and what an earlier request that was given up has not
    /// changed it.
    pub(super) async fn settle(&self, manifest: &Manifest, text: u64) -> Result<()> {
        let uid = manifest.uid;
        let parts = self.parts(&self.key(uid, "")).await?;
        let has = |name: &str, bytes: u64| {
            let mut parts = parts.iter();
            parts.any(|part| part.name == name && part.bytes == bytes)
        };
        let mut files = manifest.files.iter();
        let is_whole = has(MANIFEST, text) && files.all(|file| has(&file.name, file.bytes));
        if is_whole && parts.iter().all(|part| part.name != HIDDEN) {
            return Ok(());
        }
        Err(Error::Bucket {
            target: self.client.target().to_owned(),
            step: "find all of",
            object: self.key(uid, MANIFEST),
            reason: "a request that was given up has changed it, or another program".to_owned(),
        })
    }

    pub(super) async fn unpublish(&self, uid: VmUid) -> Result<()> {
        self.client.delete(&self.key(uid, MANIFEST)).await
    }

    pub(super) async fn has(&self, uid: VmUid) -> Result<bool> {
        let length = self.client.length(&self.key(uid, MANIFEST)).await?;
        Ok(length.is_some())
    }

    pub(super) async fn sweep(&self) -> Result<()> {
        let machine = self.machine();
        self.abort_all(&machine).await?;
        let parts = self.parts(&machine).await?;
        let whole = parts.iter().filter(|part| part.is_mark());
        let whole: BTreeSet<_> = whole.map(|part| part.uid).collect();
        let left = parts.iter().filter(|part| !whole.contains(&part.uid));
        let left: BTreeSet<_> = left.map(|part| part.uid).collect();
        for uid in left {
            self.remove_left(uid, &parts).await?;
        }
        Ok(())
    }

    pub(super) async fn discard(&self, uid: VmUid) -> Result<()> {
        let folder = self.key(uid, "");
        self.abort_all(&folder).await?;
        let parts = self.parts(&folder).await?;
        if parts.iter().any(Part::is_mark) {
            return Ok(());
        }
        self.remove_left(uid, &parts).await
    }

    pub(super) async fn backups(&self) -> Result<Vec<VmUid>> {
        let parts = self.parts(&self.machine()).await?;
        let published = parts.iter().filter(|part| part.name == MANIFEST);
        Ok(published.map(|part| part.uid).collect())
    }

    pub(super) async fn hide(&self, uid: VmUid) -> Result<()> {
        self.renamed(uid, MANIFEST, HIDDEN).await
    }

    pub(super) async fn is_hidden(&self, uid: VmUid) -> Result<bool> {
        let length = self.client.length(&self.key(uid, HIDDEN)).await?;
        Ok(length.is_some())
    }

    pub(super) async fn show(&self, uid: VmUid) -> Result<()> {
        self.renamed(uid, HIDDEN, MANIFEST).await
    }

    pub(super) async fn erase(&self, uid: VmUid) -> Result<()> {
        let folder = self.key(uid, "");
        self.abort_all(&folder).await?;
        let parts = self.parts(&folder).await?;
        for part in parts.iter().filter(|part| part.name != HIDDEN) {
            self.client.delete(&self.key(uid, &part.name)).await?;
        }
        self.client.delete(&self.key(uid, HIDDEN)).await
    }

    pub(super) async fn manifest(&self, uid: VmUid) -> Result<Option<Vec<u8>>> {
        self.text(uid, MANIFEST).await
    }

    pub(super) async fn length(&self, uid: VmUid, name: String) -> Result<Option<u64>> {
        self.client.length(&self.key(uid, &name)).await
    }

    /// Reads so many bytes of a file.
    pub(super) async fn get(
        &self,
        uid: VmUid,
        name: String,
        bytes: u64,
        to: Option<Named>,
        step: Step<'_>,
    ) -> Result<Option<Copied>> {
        let key = self.key(uid, &name);
        let mut sum = Sum::default();
        let mut output = to.map(Output::new);
        let mut at = 0;
        while at < bytes {
            let _memory = self.client.memory(PIECE).await?;
            let length = PIECE.min(bytes - at);
            let size = usize::try_from(length).unwrap_or(usize::MAX);
            let Some(piece) = self.client.get_range(&key, at, size).await? else {
                return Ok(None);
            };
            let taken = blocking(move || {
                sum.take(&piece);
                if let Some(output) = &mut output {
                    output.write(&piece, at)?;
                }
                Ok((sum, output))
            });
            (sum, output) = taken.await?;
            at += length;
            step(length);
        }
        if let Some(output) = output {
            blocking(move || output.end(bytes)).await?;
        }
        Ok(Some(sum.end()))
    }

    /// Removes the objects of a backup that is neither complete nor being removed.
    async fn remove_left(&self, uid: VmUid, parts: &[Part]) -> Result<()> {
        // A list is not of one moment, and another node may hide or show the backup meanwhile: one of its marks is there
        // at each moment, and in each order of these looks and that one is seen.
        if self.is_hidden(uid).await? || self.has(uid).await? || self.is_hidden(uid).await? {
            return Ok(());
        }
        for part in parts.iter().filter(|part| part.uid == uid) {
            self.client.delete(&self.key(uid, &part.name)).await?;
        }
        Ok(())
    }

    /// Copies a manifest, and then removes it; nothing to do when there is none.
    async fn renamed(&self, uid: VmUid, from: &str, to: &str) -> Result<()> {
        let Some(text) = self.text(uid, from).await? else {
            return Ok(());
        };
        self.client.put(&self.key(uid, to), text.into()).await?;
        self.client.delete(&self.key(uid, from)).await
    }

    async fn text(&self, uid: VmUid, name: &str) -> Result<Option<Vec<u8>>> {
        let most = usize::try_from(LONGEST + 1).unwrap_or(usize::MAX);
        self.client.get(&self.key(uid, name), most).await
    }

    /// The objects of backups with this prefix.
    async fn parts(&self, prefix: &str) -> Result<Vec<Part>> {
        let all = self.client.list(prefix).await?;
        let parts = all.iter().filter_map(|object| {
            let (uid, name) = self.part(&object.key)?;
            let name = name.to_owned();
            let bytes = object.size;
            Some(Part { uid, name, bytes })
        });
        Ok(parts.collect())
    }

    async fn abort_all(&self, prefix: &str) -> Result<()> {
        let is_ours = |key: &str| self.part(key).is_some();
        self.client.abort_all(prefix, is_ours).await
    }

    /// The backup and the name of an object of ours; none: another program has written it.
    fn part<'a>(&self, key: &'a str) -> Option<(VmUid, &'a str)> {
        let (uid, name) = key.strip_prefix(&self.machine())?.split_once('/')?;
        let is_mark = [MANIFEST, HIDDEN].contains(&name);
        let uid = uid.parse().ok()?;
        (is_mark || is_file_name(name)).then_some((uid, name))
    }

    fn machine(&self) -> String {
        format!("{}{}/", self.client.prefix(), self.vm)
    }

    fn key(&self, uid: VmUid, name: &str) -> String {
        format!("{}{uid}/{name}", self.machine())
    }
}

impl Part {
    /// Whether it says that its backup is complete, or is being removed.
    fn is_mark(&self) -> bool {
        [MANIFEST, HIDDEN].contains(&self.name.as_str())
    }
}
