//! The undo journal: `<prefix>/installer/journal`, a record of JSON on each line, and the earlier contents
//! of files in `<prefix>/installer/saved`, by their digests.
//!
//! Invariant: a record is on the disk before the effect that it announces, and the earlier content before
//! the record. A finished operation leaves one record.
//! Failure: names the file. A last line without its end was never followed by an effect: it is dropped.

mod record;
mod state;

use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

pub(crate) use self::record::{FileRecord, Operation, Record, Saved, Target};
pub(crate) use self::state::{FileState, State};
use anyhow::{Context as _, Result, bail};

use crate::changes::Change;
use crate::content::Content;
use crate::crash;
use crate::root::{self, Root};

/// The journal of a node.
#[derive(Debug)]
pub(crate) struct Journal {
    root: Root,
    prefix: PathBuf,
    state: State,
    /// Held while this process may write.
    lock: Option<File>,
}

impl Journal {
    /// Reads the journal, and changes nothing.
    pub(crate) fn read(root: &Root, prefix: &Path) -> Result<Self> {
        let mut journal = Self {
            root: root.clone(),
            prefix: prefix.to_owned(),
            state: State::default(),
            lock: None,
        };
        journal.load()?;
        Ok(journal)
    }

    fn load(&mut self) -> Result<()> {
        let path = self.path();
        let text = self.root.text(&path)?.unwrap_or_default();
        self.state = State::default();
        for (number, line) in whole(&text).lines().enumerate() {
            let record = serde_json::from_str(line);
            let record = record.with_context(|| {
                format!("failed to read {}, line {}", path.display(), number + 1)
            })?;
            self.state.apply(record);
        }
        Ok(())
    }

    pub(crate) fn state(&self) -> &State {
        &self.state
    }

    /// Makes the journal if it is not there, keeps other installers out, and removes what a crash has
    /// left of writes.
    pub(crate) fn open(&mut self) -> Result<()> {
        let path = self.path();
        let mut folders = self.empty_folders()?;
        for folder in self.root.missing_above(&path)? {
            self.root.create_folder(&folder)?;
            crash::point();
            folders.push(folder);
        }
        self.lock()?;
        // What another installer did until it gave up the lock.
        self.load()?;
        if !self.root.exists(&path)? {
            let records = folders.into_iter().map(|path| Record::Folder { path });
            return self.replace(&records.collect::<Vec<_>>());
        }
        if self.state.unfinished.is_none() {
            self.discard_contents()?;
        }
        self.root.discard_temporary(&path)?;
        for path in self.state.files.keys() {
            self.root.discard_temporary(path)?;
        }
        if let Some(content) = self.root.read(&path)? {
            let text = content.text().unwrap_or_default();
            let whole = whole(text);
            if whole.len() < text.len() {
                self.root
                    .write(&path, &content.with_text(whole.to_owned()))?;
            }
        }
        Ok(())
    }

    fn lock(&mut self) -> Result<()> {
        let folder = self.root.place(&self.folder())?;
        let file =
            File::open(&folder).with_context(|| format!("failed to open {}", folder.display()))?;
        match file.try_lock() {
            Ok(()) => self.lock = Some(file),
            Err(TryLockError::WouldBlock) => bail!(
                "another vmlet-installer is at work on this node: repeat this when it has ended"
            ),
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("failed to lock {}", folder.display()));
            }
        }
        Ok(())
    }

    /// Folders of a call that was killed before its first record, or behind its last: the prefix if nothing
    /// else is in it, and the folder of the journal.
    fn empty_folders(&self) -> Result<Vec<PathBuf>> {
        let folder = self.folder();
        if !self.root.exists(&self.prefix)? {
            return Ok(Vec::new());
        }
        let is_there = self.root.exists(&folder)?;
        let mut names = self.root.list(&folder)?.into_iter();
        if names.any(|name| name != root::temporary_name("journal")) {
            return Ok(Vec::new());
        }
        let is_alone = self.root.list(&self.prefix)?.len() == usize::from(is_there);
        let prefix = is_alone.then(|| self.prefix.clone());
        let folder = is_there.then_some(folder);
        Ok(prefix.into_iter().chain(folder).collect())
    }

    /// Whether contents are saved that nothing needs: a call was killed when it had finished.
    pub(crate) fn has_waste(&self) -> Result<bool> {
        let names = self.root.list(&self.contents())?;
        Ok(self.state.unfinished.is_none() && names.iter().any(|name| !self.state.needs(name)))
    }

    /// Whether there is anything of a call that was killed at once.
    pub(crate) fn has_remains(&self) -> Result<bool> {
        Ok(self.root.exists(&self.path())? || !self.empty_folders()?.is_empty())
    }

    pub(crate) fn begin(&mut self, operation: Operation, target: Target) -> Result<()> {
        self.append(&[Record::Begin { operation, target }])
    }

    pub(crate) fn folder_made(&mut self, path: &Path) -> Result<()> {
        self.append(&[Record::Folder {
            path: path.to_owned(),
        }])
    }

    pub(crate) fn called(&mut self, systemctl: String) -> Result<()> {
        self.append(&[Record::Call { systemctl }])
    }

    /// Saves the earlier content of a file, then announces the change.
    pub(crate) fn changed(&mut self, change: &Change) -> Result<()> {
        let before = change.from.as_ref().map(|content| self.save(content));
        let record = FileRecord {
            path: change.path.clone(),
            reader: change.reader,
            before: before.transpose()?,
            after: change.to.as_ref().map(Content::digest),
            edit: change.edit.clone(),
        };
        self.append(&[Record::File(record)])
    }

    /// One record in the place of all, and only the contents that it names.
    pub(crate) fn finish(&mut self, target: Target) -> Result<()> {
        self.replace(&[self.state.installed_as(target)])
    }

    fn replace(&mut self, records: &[Record]) -> Result<()> {
        let content = Content::new(lines(records)?, 0o600);
        self.root.write(&self.path(), &content)?;
        crash::point();
        self.state = State::default();
        for record in records {
            self.state.apply(record.clone());
        }
        self.discard_contents()
    }

    fn discard_contents(&self) -> Result<()> {
        for name in self.root.list(&self.contents())? {
            if !self.state.needs(&name) {
                self.root.remove(&self.contents().join(name))?;
                crash::point();
            }
        }
        Ok(())
    }

    /// Removes what is left of the installation: its folders, then the journal. Returns folders that are
    /// not empty.
    pub(crate) fn forget(&mut self) -> Result<Vec<PathBuf>> {
        let path = self.path();
        let folders = std::mem::take(&mut self.state.folders);
        let (above, beside): (Vec<_>, Vec<_>) =
            (folders.into_iter().rev()).partition(|folder| path.starts_with(folder));
        let mut left = self.remove_folders(&beside)?;
        // From here on there is nothing to restore.
        let records = above
            .iter()
            .rev()
            .map(|path| Record::Folder { path: path.clone() });
        self.replace(&records.collect::<Vec<_>>())?;
        self.root.remove_folder(&self.contents())?;
        crash::point();
        self.root.remove(&path)?;
        crash::point();
        left.extend(self.remove_folders(&above)?);
        Ok(left)
    }

    /// Returns those that are not empty.
    fn remove_folders(&self, folders: &[PathBuf]) -> Result<Vec<PathBuf>> {
        let mut left = Vec::new();
        for folder in folders {
            if !self.root.remove_folder(folder)? {
                left.push(folder.clone());
            }
            crash::point();
        }
        Ok(left)
    }

    /// A content that was saved.
    pub(crate) fn saved(&self, saved: &Saved) -> Result<Content> {
        let path = self.contents().join(&saved.sha256);
        let Some(content) = self.root.read(&path)? else {
            bail!("failed to find {}, which is needed to undo", path.display());
        };
        if content.digest() != saved.sha256 {
            bail!("{} was changed: it cannot be restored", path.display());
        }
        Ok(Content {
            bytes: content.bytes,
            mode: saved.mode,
            owner: saved.owner,
        })
    }

    fn save(&self, content: &Content) -> Result<Saved> {
        let sha256 = content.digest();
        let folder = self.contents();
        self.root.create_folder(&folder)?;
        let copy = Content::new(content.bytes.clone(), 0o600);
        self.root.write(&folder.join(&sha256), &copy)?;
        crash::point();
        Ok(Saved {
            sha256,
            mode: content.mode,
            owner: content.owner,
        })
    }

    fn append(&mut self, records: &[Record]) -> Result<()> {
        let path = self.path();
        self.write_lines(records)
            .with_context(|| format!("failed to write {}", path.display()))?;
        crash::point();
        for record in records {
            self.state.apply(record.clone());
        }
        Ok(())
    }

    fn write_lines(&self, records: &[Record]) -> Result<()> {
        let mut options = OpenOptions::new();
        let options = options.append(true).create(true).mode(0o600);
        let mut file = options.open(self.root.place(&self.path())?)?;
        crash::point();
        file.write_all(&lines(records)?)?;
        file.sync_all()?;
        File::open(self.root.place(&self.folder())?)?.sync_all()?;
        Ok(())
    }

    fn folder(&self) -> PathBuf {
        self.prefix.join("installer")
    }

    fn path(&self) -> PathBuf {
        self.folder().join("journal")
    }

    fn contents(&self) -> PathBuf {
        self.folder().join("saved")
    }
}

fn lines(records: &[Record]) -> Result<Vec<u8>> {
    let mut lines = Vec::new();
    for record in records {
        serde_json::to_writer(&mut lines, record).context("failed to write a record")?;
        lines.push(b'\n');
    }
    Ok(lines)
}

/// The lines that have an end.
fn whole(text: &str) -> &str {
    let end = text.rfind('\n').map_or(0, |at| at + 1);
    &text[..end]
}

#[cfg(test)]
mod tests;
