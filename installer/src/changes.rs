//! Files that become others, and the way back from the journal.
//!
//! Invariant: a file that is not as the installer has left it is never replaced as a whole: only the part
//! that is the installer's is taken back, where that is possible.
//! Failure: a file of kubelet that names the proxy and cannot be restored.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use crate::content::Content;
use crate::endpoint::{self, Edit};
use crate::journal::{FileState, Journal, Saved};
use crate::root::Root;

/// Who reads a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Reader {
    Proxy,
    Kubelet,
}

/// A file that is to change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) path: PathBuf,
    pub(crate) reader: Reader,
    pub(crate) from: Option<Content>,
    pub(crate) to: Option<Content>,
    /// The part of the text that is ours, if others may change the rest.
    pub(crate) edit: Option<Edit>,
}

impl Change {
    /// Whether systemd reads the file.
    pub(crate) fn is_unit(&self) -> bool {
        self.path.starts_with("/etc/systemd/system")
    }
}

/// Files that are to change, and what the administrator has to know.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    pub(crate) list: Vec<Change>,
    pub(crate) notes: Vec<String>,
}

/// Back to the files before the first installation.
pub(crate) fn to_baseline(root: &Root, journal: &Journal) -> Result<Changes> {
    undo(root, journal, |file| Some(&file.baseline))
}

/// Back to the files before the unfinished operation.
pub(crate) fn to_start(root: &Root, journal: &Journal) -> Result<Changes> {
    undo(root, journal, |file| file.start.as_ref())
}

fn undo(
    root: &Root,
    journal: &Journal,
    target: impl Fn(&FileState) -> Option<&Option<Saved>>,
) -> Result<Changes> {
    let mut changes = Changes::default();
    for (path, file) in journal.state().files.iter().rev() {
        let Some(target) = target(file) else { continue };
        let current = root.read(path)?;
        let target = target.as_ref().map(|saved| journal.saved(saved));
        let target = target.transpose()?;
        if bytes(current.as_ref()) == bytes(target.as_ref()) {
            continue;
        }
        match back(path, file, current.as_ref(), target)? {
            Back::To(to, note) => {
                changes.notes.extend(note);
                changes.list.push(Change {
                    path: path.clone(),
                    reader: file.reader,
                    from: current,
                    to,
                    edit: None,
                });
            }
            Back::Left(note) => changes.notes.push(note),
        }
    }
    Ok(changes)
}

enum Back {
    To(Option<Content>, Option<String>),
    Left(String),
}

fn back(
    path: &Path,
    file: &FileState,
    current: Option<&Content>,
    target: Option<Content>,
) -> Result<Back> {
    let shown = path.display();
    let Some(current) = current else {
        return Ok(Back::Left(format!(
            "{shown} was removed since the installation: it is not restored"
        )));
    };
    if file.is_ours(current) {
        // Mode and owner that an administrator has given to it since are kept.
        let restored = target.map(|target| Content {
            bytes: target.bytes,
            ..current.clone()
        });
        return Ok(Back::To(restored, None));
    }
    let text = current.text();
    let reverted = text.zip(file.edit.as_ref());
    let reverted = reverted.and_then(|(text, edit)| endpoint::revert(text, edit));
    if let Some(text) = reverted {
        let note = format!(
            "{shown} was changed since the installation: only kubelet's endpoint is restored in it"
        );
        return Ok(Back::To(Some(current.with_text(text)), Some(note)));
    }
    let names_proxy = text.is_none_or(|text| text.contains(endpoint::SOCKET));
    if file.reader == Reader::Kubelet && names_proxy {
        bail!(
            "{shown} was changed since the installation and names {}: restore kubelet's endpoint there by hand, \
             then repeat this",
            endpoint::SOCKET
        );
    }
    Ok(Back::Left(format!(
        "{shown} was changed since the installation: it is left as it is"
    )))
}

fn bytes(content: Option<&Content>) -> Option<&[u8]> {
    content.map(|content| content.bytes.as_slice())
}
