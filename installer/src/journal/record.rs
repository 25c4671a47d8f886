//! The lines of a journal.
//!
//! Invariant: the journal of an older installer can be read; a field that is added has a default.
//! Failure: serde's, which the journal reports with the line.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::changes::Reader;
use crate::endpoint::Edit;
use crate::platform::Name;

/// What was begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Operation {
    Install,
    Withdraw,
}

/// Whose kubelet it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Target {
    pub(crate) platform: Name,
    /// The unit that runs kubelet.
    pub(crate) service: String,
    /// The socket of kubelet's own runtime.
    pub(crate) primary: PathBuf,
}

/// A file as it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Saved {
    pub(crate) sha256: String,
    pub(super) mode: u32,
    pub(super) owner: Option<(u32, u32)>,
}

/// A file before and after a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileRecord {
    pub(crate) path: PathBuf,
    pub(crate) reader: Reader,
    /// None: there was no file.
    pub(crate) before: Option<Saved>,
    /// The digest that it gets.
    pub(crate) after: Option<String>,
    pub(crate) edit: Option<Edit>,
}

/// A line of the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "lowercase")]
pub(crate) enum Record {
    /// An operation begins; it ends with `Installed`, or with the journal itself.
    Begin {
        operation: Operation,
        #[serde(flatten)]
        target: Target,
    },
    /// A folder is made.
    Folder { path: PathBuf },
    /// A file is changed.
    File(FileRecord),
    /// systemctl is called; for people.
    Call { systemctl: String },
    /// All that is installed. `before` of the files is the content before the first installation.
    Installed {
        #[serde(flatten)]
        target: Target,
        folders: Vec<PathBuf>,
        files: Vec<FileRecord>,
    },
}
