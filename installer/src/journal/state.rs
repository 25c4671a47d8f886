//! What the records of a journal come to.
//!
//! Invariant: the baseline of a file is its last content that the installer has not written; contents
//! that the installer has written are known by their digests until the operation is finished.
//! Failure: none.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::{FileRecord, Operation, Record, Saved, Target};
use crate::changes::Reader;
use crate::content::Content;
use crate::endpoint::Edit;

/// What was done to a node.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// What is installed, if an installation was finished.
    pub(crate) installed: Option<Target>,
    /// What was begun last, and not finished.
    pub(crate) unfinished: Option<Target>,
    /// Whether a withdrawal was begun: it has no way back, whatever follows it.
    is_withdrawing: bool,
    pub(crate) files: BTreeMap<PathBuf, FileState>,
    pub(crate) folders: Vec<PathBuf>,
}

/// What was done to a file.
#[derive(Debug)]
pub(crate) struct FileState {
    pub(crate) reader: Reader,
    /// Its content before the first installation; of a file that an administrator has replaced since,
    /// that content.
    pub(crate) baseline: Option<Saved>,
    /// Its content before the unfinished operation, if that has changed it.
    pub(crate) start: Option<Option<Saved>>,
    pub(crate) edit: Option<Edit>,
    /// Digests that the installer has given to it.
    ours: BTreeSet<String>,
    last: Option<String>,
}

impl FileState {
    /// Whether the installer has left it so.
    pub(crate) fn is_ours(&self, content: &Content) -> bool {
        self.ours.contains(&content.digest())
    }
}

impl State {
    /// Whose kubelet was changed last.
    pub(crate) fn target(&self) -> Option<&Target> {
        self.unfinished.as_ref().or(self.installed.as_ref())
    }

    /// Whether there is a finished installation to go back to.
    pub(crate) fn has_way_back(&self) -> bool {
        self.installed.is_some() && !self.is_withdrawing
    }

    /// Whether the unfinished operations came to kubelet's files.
    pub(crate) fn is_kubelet_touched(&self) -> bool {
        let mut files = self.files.values();
        let is_changed = files.any(|f| f.reader == Reader::Kubelet && f.start.is_some());
        self.is_withdrawing || is_changed
    }

    pub(crate) fn is_ours(&self, path: &Path, content: &Content) -> bool {
        let file = self.files.get(path);
        file.is_some_and(|file| file.is_ours(content))
    }

    /// Whether a saved content has to be kept.
    pub(super) fn needs(&self, sha256: &str) -> bool {
        let mut baselines = self
            .files
            .values()
            .filter_map(|file| file.baseline.as_ref());
        baselines.any(|saved| saved.sha256 == sha256)
    }

    pub(super) fn apply(&mut self, record: Record) {
        match record {
            Record::Begin { operation, target } => {
                self.is_withdrawing |= operation == Operation::Withdraw;
                self.unfinished = Some(target);
            }
            Record::Folder { path } if self.folders.contains(&path) => {}
            Record::Folder { path } => self.folders.push(path),
            Record::File(file) => self.file(file),
            Record::Call { .. } => {}
            Record::Installed {
                target,
                folders,
                files,
            } => {
                for file in files {
                    self.file(file);
                }
                self.folders = folders;
                self.installed = Some(target);
            }
        }
    }

    fn file(&mut self, record: FileRecord) {
        let is_unfinished = self.unfinished.is_some();
        let file = self.files.entry(record.path).or_insert_with(|| FileState {
            reader: record.reader,
            baseline: record.before.clone(),
            start: None,
            edit: None,
            ours: BTreeSet::new(),
            last: None,
        });
        let is_ours =
            (record.before.as_ref()).is_some_and(|saved| file.ours.contains(&saved.sha256));
        if !is_ours {
            file.baseline = record.before.clone();
        }
        if is_unfinished && file.start.is_none() {
            file.start = Some(record.before);
        }
        if record.edit.is_some() {
            file.edit = record.edit;
        }
        file.ours.extend(record.after.clone());
        file.last = record.after;
    }

    /// The record that has all of this in it.
    pub(super) fn installed_as(&self, target: Target) -> Record {
        let is_there = |file: &FileState| file.baseline.is_some() || file.last.is_some();
        let files = self.files.iter().filter(|(_, file)| is_there(file));
        let files = files.map(|(path, file)| FileRecord {
            path: path.clone(),
            reader: file.reader,
            before: file.baseline.clone(),
            after: file.last.clone(),
            edit: file.edit.clone(),
        });
        Record::Installed {
            target,
            folders: self.folders.clone(),
            files: files.collect(),
        }
    }
}
