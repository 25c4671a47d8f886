//! Files of the guest that come from an object of the cluster.
//!
//! Invariant: a path is absolute, without `.` and `..`, and has no control characters.
//! Failure: [`GuestDataError`] names source and key, and repeats no content.

use std::fmt;
use std::path::{Component, Path};

use super::assemble::{GuestDataError, Sources, content, decode, text, unfit};
use super::source::{Encoding, Source};
use crate::paths::clean_path;

const PATH_OF: &str = "_path";
const ENCODING_OF: &str = "_encoding";
/// Readable for every user of the guest.
const MODE: u32 = 0o644;

/// A file that the guest finds at each boot. Debug output shows no content.
#[derive(Clone, PartialEq, Eq)]
pub struct GuestFile {
    /// Absolute path in the guest.
    pub path: String,
    /// Permissions.
    pub mode: u32,
    /// What is in it.
    pub content: Vec<u8>,
}

impl GuestFile {
    /// Whether a guest can have a file at this path.
    pub fn is_path(path: &str) -> bool {
        let mut parts = Path::new(path).components();
        let is_absolute = parts.next() == Some(Component::RootDir);
        let plain = parts.clone().count();
        is_absolute
            && plain > 0
            && parts.all(|part| matches!(part, Component::Normal(_)))
            && !path.chars().any(char::is_control)
            && !path.ends_with('/')
    }
}

impl fmt::Debug for GuestFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, mode, .. } = self;
        write!(f, "{path} ({mode:04o}, {} bytes)", self.content.len())
    }
}

/// The files of an object: for each key `K` the path in `K_path`, and the encoding in `K_encoding`.
pub(super) fn from_source(
    source: &Source,
    all: &Sources,
) -> Result<Vec<GuestFile>, GuestDataError> {
    let keys = &content(all, source)?.0;
    let mut files = Vec::new();
    for (key, value) in keys {
        if key.ends_with(PATH_OF) || key.ends_with(ENCODING_OF) {
            continue;
        }
        let path_key = format!("{key}{PATH_OF}");
        let path = keys.get(&path_key).ok_or_else(|| GuestDataError::NoKey {
            of: source.clone(),
            key: path_key.clone(),
        })?;
        let path = text(source, &path_key, path)?.trim();
        if !GuestFile::is_path(path) {
            let reason = "an absolute path without \".\" and \"..\" is needed".to_owned();
            return Err(unfit(source, &path_key, reason));
        }
        let encoding_key = format!("{key}{ENCODING_OF}");
        let encoding = match keys.get(&encoding_key) {
            None => Encoding::Base64,
            Some(word) => {
                let word = text(source, &encoding_key, word)?.trim();
                let parsed = word.parse::<Encoding>();
                parsed.map_err(|reason| unfit(source, &encoding_key, reason.to_owned()))?
            }
        };
        files.push(GuestFile {
            path: clean_path(path),
            mode: MODE,
            content: decode(source, key, value, encoding)?,
        });
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}
