//! Image translations in the files of two directories: `images.translations_dir`, and a directory of
//! the daemon for `ImageMapping` objects. Each pull reads both again.
//!
//! Invariant: the rules of the settings precede those of files, the first directory precedes the
//! second, and in a directory files are in the order of their names. A file that is not usable keeps
//! its last usable rules; a file that is gone has none. A file with the same content is not parsed
//! again, so that its clients keep their connections.
//! One thread at a time works on the directories: others wait without one.
//! Failure: none for a pull; the log and a metric report a file that is refused. A directory that
//! does not answer leaves the last rules in use.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use sha2::{Digest as _, Sha256};

use super::adjustable::Live;
use super::client::Clients;
use super::translate::{Rule, Translator};
use super::transport::{Profile, Transport};
use crate::foreign::Foreign;
use crate::metrics::{Metrics, TranslationFiles};

mod cluster;
mod file;

pub use cluster::ClusterMapping;
pub(super) use file::{Problem, parse};

/// Whose turn it is to work on the directories.
const OWNER: &str = "the directory of image translations";

/// The rules of the settings and of all files.
pub(super) struct Mappings {
    /// The administrator's, and that of the cluster.
    directories: [PathBuf; 2],
    live: Arc<Live>,
    clients: Clients,
    metrics: Arc<Metrics>,
    /// The rules of the settings.
    settings: Translator,
    /// Threads that work on the directories.
    foreign: Foreign,
    /// Held while the directories are read, by the thread that has the turn.
    known: Mutex<Known>,
    current: Mutex<Arc<Translator>>,
}

/// What was found by the last reading.
#[derive(Default)]
struct Known {
    /// By directory and name.
    files: BTreeMap<(usize, OsString), Entry>,
    /// Why directories cannot be read.
    unreadable: [Option<String>; 2],
}

#[derive(Default)]
struct Entry {
    /// Of the content that was looked at last.
    digest: Option<[u8; 32]>,
    rules: Option<Arc<[Rule]>>,
    refused: Option<Problem>,
}

impl Mappings {
    pub(super) fn new(
        directories: [PathBuf; 2],
        live: Arc<Live>,
        settings: Translator,
        clients: Clients,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            directories,
            live,
            clients,
            metrics,
            current: Mutex::new(Arc::new(settings.clone())),
            settings,
            foreign: Foreign::default(),
            known: Mutex::default(),
        }
    }

    /// A client for a profile, as those of the files have one. Blocks.
    pub(super) fn transport(&self, profile: &Profile) -> Result<Transport, String> {
        Transport::new(profile, &self.clients)
    }

    /// The directories do not answer until what this returns is dropped.
    #[cfg(test)]
    pub(super) fn hang(&self) -> impl Drop + use<> {
        self.foreign.hold(OWNER.to_owned())
    }

    /// The rules as of the last reading.
    pub(super) fn latest(&self) -> Arc<Translator> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(other) = current.with_protocol(self.live.get().protocol) {
            *current = Arc::new(other);
        }
        Arc::clone(&current)
    }

    /// Reads the directories in turn, on a thread and within a deadline.
    pub(super) async fn read_in_turn(self: &Arc<Self>) -> Arc<Translator> {
        let this = Arc::clone(self);
        match self.foreign.look(OWNER, move || this.read()).await {
            Ok(translator) => translator,
            Err(error) => {
                let error = crate::one_line(&error);
                tracing::warn!(
                    error,
                    "image translations not read: the previous ones stay in use"
                );
                self.latest()
            }
        }
    }

    /// Puts these mappings of the cluster in the place of those that were there, in turn and on a
    /// thread. Why each is refused, in order.
    pub(super) async fn replace_in_turn(
        self: &Arc<Self>,
        mappings: Vec<ClusterMapping>,
    ) -> io::Result<Vec<Option<String>>> {
        let this = Arc::clone(self);
        let replace = move || this.replace_cluster(&mappings);
        let replaced = self.foreign.run(OWNER, replace).await;
        replaced.map_err(io::Error::other)?
    }

    /// Reads the directories. Blocks; the caller has the turn.
    pub(super) fn read(&self) -> Arc<Translator> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = (0..self.directories.len())
            .map(|number| self.refresh(&mut known, number))
            .fold(false, std::ops::BitOr::bitor);
        if changed {
            let entries = known.files.values();
            let rules = entries.clone().filter_map(|entry| entry.rules.clone());
            let is_incomplete = known.unreadable.iter().any(Option::is_some)
                || entries.clone().any(|e| e.refused.is_some());
            let translator = Arc::new(self.settings.with(rules, is_incomplete));
            let mut count = TranslationFiles::default();
            for entry in entries {
                match (&entry.refused, &entry.rules) {
                    (None, _) => count.current += 1,
                    (Some(_), Some(_)) => count.outdated += 1,
                    (Some(_), None) => count.refused += 1,
                }
            }
            self.metrics.translation_files(count);
            *self.current.lock().unwrap_or_else(PoisonError::into_inner) = translator;
        }
        drop(known);
        self.latest()
    }

    /// Whether anything of a directory changed.
    fn refresh(&self, known: &mut Known, number: usize) -> bool {
        let dir = &self.directories[number];
        let unreadable = &mut known.unreadable[number];
        let names = match names(dir) {
            Ok(names) => names,
            Err(error) => {
                let error = error.to_string();
                let is_new = unreadable.as_ref() != Some(&error);
                if is_new {
                    let dir = dir.display();
                    tracing::warn!(%dir, error, "image translations not read: the previous ones stay in use");
                    *unreadable = Some(error);
                }
                return is_new;
            }
        };
        let mut changed = unreadable.take().is_some();
        known.files.retain(|(of, name), _| {
            let stays = *of != number || names.contains(name);
            if !stays {
                let file = dir.join(name);
                tracing::info!(file = %file.display(), "image translation file removed");
                changed = true;
            }
            stays
        });
        for name in names {
            let path = dir.join(&name);
            changed |= self.look(&path, known.files.entry((number, name)).or_default());
        }
        changed
    }

    /// Looks at one file; whether anything changed.
    fn look(&self, path: &Path, entry: &mut Entry) -> bool {
        let content = content(path);
        let digest = content
            .as_ref()
            .ok()
            .map(|text| Sha256::digest(text).into());
        if digest.is_some() && digest == entry.digest {
            return false;
        }
        entry.digest = digest;
        let parsed = content.and_then(|content| {
            let text = std::str::from_utf8(&content);
            let text = text.map_err(|_| Problem::of_file("the file is not UTF-8"))?;
            self.parse(text)
        });
        let file = path.display();
        match parsed {
            Ok(rules) => {
                tracing::info!(%file, rules = rules.len(), "image translation file read");
                entry.rules = Some(rules);
                entry.refused = None;
                true
            }
            Err(problem) if entry.refused.as_ref() == Some(&problem) => false,
            Err(problem) => {
                let in_use = match entry.rules {
                    Some(_) => "previous",
                    None => "none",
                };
                tracing::error!(%file, error = %problem, in_use, "image translation file refused");
                entry.refused = Some(problem);
                true
            }
        }
    }

    fn parse(&self, text: &str) -> Result<Arc<[Rule]>, Problem> {
        parse(text, self.live.get().protocol, |profile| {
            Transport::new(profile, &self.clients).map(Some)
        })
    }
}

/// Names of the files that count, in their order. A name that begins with a dot is hidden, as those
/// of a mounted ConfigMap's own folders are.
fn names(dir: &Path) -> io::Result<Vec<OsString>> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let is_hidden = name.as_encoded_bytes().starts_with(b".");
        if !is_hidden && !entry.path().is_dir() {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn content(path: &Path) -> Result<Vec<u8>, Problem> {
    let unreadable =
        |error: io::Error| Problem::of_file(format!("the file cannot be read: {error}"));
    let found = std::fs::metadata(path).map_err(unreadable)?;
    if !found.is_file() {
        return Err(Problem::of_file("it is not a regular file"));
    }
    let mut content = Vec::new();
    let mut reader = File::open(path)
        .map_err(unreadable)?
        .take(file::LONGEST + 1);
    reader.read_to_end(&mut content).map_err(unreadable)?;
    if content.len() as u64 > file::LONGEST {
        Err(Problem::of_file(format!(
            "the file is longer than {} bytes",
            file::LONGEST
        )))
    } else {
        Ok(content)
    }
}

impl std::fmt::Debug for Mappings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mappings")
            .field("directories", &self.directories)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
