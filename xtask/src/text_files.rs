//! Text files of a folder, as what is put together of them and compared.
//!
//! Invariant: paths are relative to the folder, and in the order of their names.
//! Failure: names the file that cannot be read, or is no text.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Texts by their path.
pub(crate) type TextFiles = BTreeMap<PathBuf, String>;

/// All files below a folder; none if it does not exist.
pub(crate) fn below(folder: &Path) -> Result<TextFiles> {
    let mut files = TextFiles::new();
    for path in paths(folder)? {
        let text = fs::read_to_string(folder.join(&path));
        let text = text.with_context(|| format!("read {}", folder.join(&path).display()))?;
        files.insert(path, text);
    }
    Ok(files)
}

/// The paths of all files below a folder, whatever is in them.
pub(crate) fn paths(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    if folder.exists() {
        walk(folder, Path::new(""), &mut found)?;
    }
    found.sort();
    Ok(found)
}

fn walk(root: &Path, below: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    let folder = root.join(below);
    let context = || format!("list {}", folder.display());
    for entry in fs::read_dir(&folder).with_context(context)? {
        let entry = entry.with_context(context)?;
        let path = below.join(entry.file_name());
        if entry.file_type().with_context(context)?.is_dir() {
            walk(root, &path, found)?;
        } else {
            found.push(path);
        }
    }
    Ok(())
}
