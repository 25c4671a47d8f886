//! The virtual sizes of root disks, as they were made.
//!
//! Invariant: a size is recorded before the disk has it, and forgotten after the disk is removed.
//! Disks are written by QEMU, so that their headers are not trusted: the header of a disk counts
//! when the daemon finds the disk without a record at its start, and, within the bounds of old and new
//! size, when the disk failed to grow.
//! A record that cannot be read counts as none: what is measured takes its place.
//! The record of a disk has also the size of the one that is made beside it to replace it. The larger
//! counts as long as both may be there, and then that of the one that is left.
//! Failure: the database's own; then the disk keeps its size.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

use crate::metadata::{self, Db, Record, RecordStore};

/// Beginning of every qcow2 file up to the virtual size.
const HEADER: usize = 32;
const MAGIC: &[u8] = b"QFI\xfb";
/// The name of a disk.
const DISK: &str = "root.qcow2";
/// What it begins with, as do the names of one that is being made, or that is replaced.
const BEGINNING: &str = "root.";

/// The size of one disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Size {
    /// Its directory, by the last two names of the path.
    place: String,
    virtual_bytes: u64,
    /// Of the disk that is to replace it, as long as both may be there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    replacement_bytes: Option<u64>,
}

impl Size {
    const fn alone(place: String, virtual_bytes: u64) -> Self {
        Self {
            place,
            virtual_bytes,
            replacement_bytes: None,
        }
    }

    fn counted(&self) -> u64 {
        let beside = self.replacement_bytes.unwrap_or_default();
        self.virtual_bytes.max(beside)
    }
}

impl Record for Size {
    type Key = String;
    const TABLE: &'static str = "root_disk_sizes";

    fn key(&self) -> String {
        self.place.clone()
    }
}

/// The sizes of all root disks in files.
#[derive(Debug)]
pub(super) struct Sizes {
    records: RecordStore<Size>,
    /// Directories with a directory for each disk.
    roots: Vec<PathBuf>,
    /// Held from adding the sizes up to recording one more.
    turn: Mutex<()>,
}

impl Sizes {
    /// Reads what is recorded; measures disks without a record, and forgets those that are gone.
    pub(super) async fn open(db: Db, roots: Vec<PathBuf>) -> metadata::Result<Self> {
        let sizes = Self {
            records: RecordStore::load(db).await?,
            roots,
            turn: Mutex::default(),
        };
        let roots = sizes.roots.clone();
        let listed = tokio::task::spawn_blocking(move || list(&roots));
        match listed.await.map_err(metadata::Error::Thread)? {
            Ok(there) => sizes.settle(there).await?,
            Err(e) => tracing::warn!(error = %e, "root disks not measured"),
        }
        Ok(sizes)
    }

    async fn settle(&self, there: BTreeMap<String, PathBuf>) -> metadata::Result<()> {
        for record in self.records.all() {
            if !there.contains_key(&record.place) {
                self.records.remove_if(&record.place, |_| true).await?;
            }
        }
        for (place, directory) in there {
            if self.records.get(&place).is_some() {
                continue;
            }
            let measured = tokio::task::spawn_blocking(move || measure(&directory));
            match measured.await.map_err(metadata::Error::Thread)? {
                Ok(0) => {}
                Ok(size) => {
                    tracing::info!(place, size, "root disk measured");
                    self.put(Size::alone(place, size)).await?;
                }
                Err(e) => tracing::warn!(place, error = %e, "root disk not measured"),
            }
        }
        Ok(())
    }

    /// Records the size that the disk at `path` is going to have, if `allowed` accepts the sum of
    /// all others; returns the size that was recorded before.
    pub(super) async fn record(
        &self,
        path: &Path,
        size: u64,
        allowed: impl FnOnce(u64) -> Result<(), String>,
    ) -> Result<Option<u64>, String> {
        let Some(place) = path.parent().and_then(|disk| self.place(disk)) else {
            return Ok(None);
        };
        let _turn = self.turn.lock().await;
        let others = self.records.all().into_iter();
        let others = others.filter(|record| record.place != place);
        allowed(others.fold(0, |sum, one| sum.saturating_add(one.counted())))?;
        let before = self.records.get(&place).map(|record| record.virtual_bytes);
        let mut record = Size::alone(place, size);
        if is_beside_another(path).await {
            record.virtual_bytes = before.unwrap_or(size);
            record.replacement_bytes = Some(size);
        }
        let recorded = self.put(record).await;
        recorded.map_err(|e| format!("record its size: {}", crate::one_line(&e)))?;
        Ok(before)
    }

    /// Records the size of all layers of the disk in a directory, if `allowed` accepts the sum of all
    /// other disks.
    pub(super) async fn record_layers(
        &self,
        directory: &Path,
        size: u64,
        allowed: impl FnOnce(u64) -> Result<(), String>,
    ) -> Result<(), String> {
        let Some(place) = self.place(directory) else {
            return Ok(());
        };
        let _turn = self.turn.lock().await;
        let others = self.records.all().into_iter();
        let others = others.filter(|record| record.place != place);
        allowed(others.fold(0, |sum, one| sum.saturating_add(one.counted())))?;
        let recorded = self.put(Size::alone(place, size)).await;
        recorded.map_err(|e| format!("record its size: {}", crate::one_line(&e)))
    }

    /// Records the size of the layers that the disk in a directory has.
    pub(super) async fn recount(&self, directory: &Path, size: u64) -> metadata::Result<()> {
        match self.place(directory) {
            Some(place) => self.put(Size::alone(place, size)).await,
            None => Ok(()),
        }
    }

    /// Records what became of the disk at `path` that was to grow from one size to another, and
    /// failed: its header counts within these bounds.
    pub(super) async fn settle_growth(
        &self,
        path: &Path,
        from: u64,
        to: u64,
    ) -> metadata::Result<()> {
        let Some(directory) = path.parent() else {
            return Ok(());
        };
        let Some(place) = self.place(directory) else {
            return Ok(());
        };
        let directory = directory.to_owned();
        let measured = tokio::task::spawn_blocking(move || measure(&directory));
        let measured = measured.await.map_err(metadata::Error::Thread)?;
        let size = measured.unwrap_or(to).max(from).min(to);
        self.put(Size::alone(place, size)).await
    }

    /// Counts the disk in a directory alone: the one that was to replace it is removed.
    pub(super) async fn keep(&self, directory: &Path) -> metadata::Result<()> {
        let without_other = |size: &mut Size| size.replacement_bytes.take().is_some();
        self.change(directory, without_other).await
    }

    /// Counts the one that was made to replace the disk in a directory, which is removed.
    pub(super) async fn replace(&self, directory: &Path) -> metadata::Result<()> {
        let by_other = |size: &mut Size| {
            let replacement = size.replacement_bytes.take();
            size.virtual_bytes = replacement.unwrap_or(size.virtual_bytes);
            replacement.is_some()
        };
        self.change(directory, by_other).await
    }

    async fn change(
        &self,
        directory: &Path,
        change: impl FnOnce(&mut Size) -> bool + Send,
    ) -> metadata::Result<()> {
        match self.place(directory) {
            Some(place) => self.records.change(&place, change).await.map(drop),
            None => Ok(()),
        }
    }

    /// Forgets the disk in a directory that was removed.
    pub(super) async fn forget(&self, directory: &Path) -> metadata::Result<()> {
        match self.place(directory) {
            Some(place) => self.records.remove_if(&place, |_| true).await.map(drop),
            None => Ok(()),
        }
    }

    /// Forgets the disks below a root whose directories have a name that `is_gone` accepts.
    pub(super) async fn forget_gone(
        &self,
        root: &Path,
        is_gone: impl Fn(&str) -> bool,
    ) -> metadata::Result<()> {
        for record in self.records.all() {
            let name = Path::new(&record.place).file_name().and_then(OsStr::to_str);
            let Some(name) = name else {
                continue;
            };
            let is_below = self.place(&root.join(name)).as_ref() == Some(&record.place);
            if is_below && is_gone(name) {
                self.records.remove_if(&record.place, |_| true).await?;
            }
        }
        Ok(())
    }

    async fn put(&self, record: Size) -> metadata::Result<()> {
        let there = self.records.get(&record.place);
        if there.is_none_or(|there| *there != record) {
            self.records.replace(record).await?;
        }
        Ok(())
    }

    /// What is recorded of the disk in a directory.
    pub(super) fn recorded(&self, directory: &Path) -> Option<u64> {
        let record = self.records.get(&self.place(directory)?)?;
        Some(record.counted())
    }

    fn place(&self, directory: &Path) -> Option<String> {
        let root = directory.parent()?;
        self.roots.iter().find(|known| *known == root)?;
        name(root, directory)
    }
}

fn name(root: &Path, directory: &Path) -> Option<String> {
    let names = [
        root.file_name()?.to_str()?,
        directory.file_name()?.to_str()?,
    ];
    Some(names.join("/"))
}

/// Whether the disk at `path` is made beside one that it is to replace.
pub(super) async fn is_beside_another(path: &Path) -> bool {
    let disk = path.with_file_name(DISK);
    path != disk && tokio::fs::try_exists(&disk).await.unwrap_or(true)
}

/// The directories of all disks, by name.
fn list(roots: &[PathBuf]) -> io::Result<BTreeMap<String, PathBuf>> {
    let mut all = BTreeMap::new();
    for root in roots {
        let entries = match std::fs::read_dir(root) {
            Err(e) if e.kind() == ErrorKind::NotFound => continue,
            entries => entries?,
        };
        for entry in entries {
            let directory = entry?.path();
            all.extend(name(root, &directory).map(|name| (name, directory)));
        }
    }
    Ok(all)
}

/// The size in the header of the disk in a directory, the largest where there are several; 0 where there
/// is none.
fn measure(directory: &Path) -> io::Result<u64> {
    let entries = match std::fs::read_dir(directory) {
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(0);
        }
        entries => entries?,
    };
    let mut most = 0;
    for entry in entries {
        let entry = entry?;
        if entry
            .file_name()
            .as_encoded_bytes()
            .starts_with(BEGINNING.as_bytes())
        {
            most = virtual_size(&entry.path())?.max(most);
        }
    }
    Ok(most)
}

fn virtual_size(path: &Path) -> io::Result<u64> {
    match File::open(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(0),
        file => size_in_header(&file?),
    }
}

/// The size in the header of a disk; 0 where it is none.
pub(super) fn size_in_header(mut file: &File) -> io::Result<u64> {
    let mut header = [0; HEADER];
    match file.read_exact(&mut header) {
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(0),
        read => read?,
    }
    Ok(size_in(&header))
}

/// The size in the first bytes of a disk; 0 where they are those of none.
pub(super) fn size_in(head: &[u8]) -> u64 {
    let header = head.first_chunk::<HEADER>();
    let header = header.filter(|header| header.starts_with(MAGIC));
    let size = header.and_then(|header| header.last_chunk());
    size.map_or(0, |size| u64::from_be_bytes(*size))
}
