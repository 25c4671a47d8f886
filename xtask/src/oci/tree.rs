//! The files of a layer, and how they become a tar stream.
//!
//! Invariant: entries are written in the order of their paths, hard links last, with one time
//! and owned by root; every entry has its folders.
//! Failure: a path that leaves the tree or a file that cannot be read is an error with its name.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail};
use tar::{EntryType, Header};

/// A file system tree, by paths relative to its root.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    entries: BTreeMap<PathBuf, Entry>,
    /// Seconds since 1970 at which all of it changed last.
    time: u64,
}

#[derive(Debug)]
enum Entry {
    Folder { mode: u32 },
    Bytes { mode: u32, content: Vec<u8> },
    Copy { mode: u32, from: PathBuf },
    Link { target: PathBuf },
    Name { of: PathBuf },
}

impl Tree {
    /// A tree with nothing in it.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// The same with another time than 1970.
    pub(crate) fn at(self, time: u64) -> Self {
        Self { time, ..self }
    }

    /// Adds a folder.
    pub(crate) fn folder(&mut self, path: impl AsRef<Path>, mode: u32) -> Result<()> {
        self.add(path.as_ref(), Entry::Folder { mode })
    }

    /// Adds a file with this content.
    pub(crate) fn bytes(
        &mut self,
        path: impl AsRef<Path>,
        mode: u32,
        content: impl Into<Vec<u8>>,
    ) -> Result<()> {
        let content = content.into();
        self.add(path.as_ref(), Entry::Bytes { mode, content })
    }

    /// Adds a copy of a file, which is read when the layer is written.
    pub(crate) fn copy(&mut self, path: impl AsRef<Path>, mode: u32, from: &Path) -> Result<()> {
        let from = from.to_owned();
        self.add(path.as_ref(), Entry::Copy { mode, from })
    }

    /// Adds a symbolic link.
    pub(crate) fn link(&mut self, path: impl AsRef<Path>, target: impl AsRef<Path>) -> Result<()> {
        let target = target.as_ref().to_owned();
        self.add(path.as_ref(), Entry::Link { target })
    }

    /// Adds one more name of a file of the tree (a hard link).
    pub(crate) fn name(&mut self, path: impl AsRef<Path>, of: impl AsRef<Path>) -> Result<()> {
        let of = of.as_ref().to_owned();
        self.add(path.as_ref(), Entry::Name { of })
    }

    /// Whether something has this path.
    pub(crate) fn holds(&self, path: impl AsRef<Path>) -> bool {
        self.entries.contains_key(path.as_ref())
    }

    /// Writes the tree as a tar stream.
    pub(crate) fn write(&self, out: &mut dyn Write) -> Result<()> {
        let mut tar = tar::Builder::new(out);
        let is_name = |entry: &Entry| matches!(entry, Entry::Name { .. });
        let files = self.entries.iter().filter(|(_, entry)| !is_name(entry));
        let names = self.entries.iter().filter(|(_, entry)| is_name(entry));
        for (path, entry) in files.chain(names) {
            self.append(&mut tar, path, entry)
                .with_context(|| format!("pack {}", path.display()))?;
        }
        tar.finish().context("finish the layer")
    }

    fn add(&mut self, path: &Path, entry: Entry) -> Result<()> {
        let plain = |part: Component<'_>| matches!(part, Component::Normal(_));
        if !path.components().all(plain) || path.as_os_str().is_empty() {
            bail!("{} is no path inside of an image", path.display());
        }
        for folder in path
            .ancestors()
            .skip(1)
            .filter(|f| !f.as_os_str().is_empty())
        {
            self.entries
                .entry(folder.to_owned())
                .or_insert(Entry::Folder { mode: 0o755 });
        }
        self.entries.insert(path.to_owned(), entry);
        Ok(())
    }

    fn append(
        &self,
        tar: &mut tar::Builder<&mut dyn Write>,
        path: &Path,
        entry: &Entry,
    ) -> Result<()> {
        match entry {
            Entry::Folder { mode } => {
                let mut header = self.header(EntryType::Directory, *mode, 0);
                tar.append_data(&mut header, path, std::io::empty())?;
            }
            Entry::Bytes { mode, content } => {
                let mut header = self.header(EntryType::Regular, *mode, content.len().try_into()?);
                tar.append_data(&mut header, path, content.as_slice())?;
            }
            Entry::Copy { mode, from } => {
                let file = File::open(from).with_context(|| format!("open {}", from.display()))?;
                let mut header = self.header(EntryType::Regular, *mode, file.metadata()?.len());
                tar.append_data(&mut header, path, file)?;
            }
            Entry::Link { target } => {
                let mut header = self.header(EntryType::Symlink, 0o777, 0);
                tar.append_link(&mut header, path, target)?;
            }
            Entry::Name { of } => {
                let mut header = self.header(EntryType::Link, 0o755, 0);
                tar.append_link(&mut header, path, of)?;
            }
        }
        Ok(())
    }

    /// Everything else that would differ from build to build is left at zero.
    fn header(&self, kind: EntryType, mode: u32, size: u64) -> Header {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(size);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(self.time);
        header
    }
}
