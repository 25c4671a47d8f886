//! What is kept of a test that failed, before its stack is taken down: logs, consoles, the daemon's
//! database, objects.
//!
//! Invariant: below the folder that the environment names; without that variable nothing is kept.
//! Failure: what cannot be kept is left out, so that it does not hide why the test failed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The variable by which the runner names the folder.
const FOLDER: &str = "VMLET_TEST_FAILURES";

/// What a stack has to say, below its directory.
const PARTS: [&str; 5] = [
    "log",
    "logs/pods",
    "libvirt/log",
    "state/console",
    "vmlet.toml",
];

/// The folder for the test that runs.
pub(crate) fn folder() -> Option<PathBuf> {
    std::env::var_os(FOLDER).map(PathBuf::from)
}

/// Copies the logs of the stack in `dir`; returns where to.
pub(crate) fn keep(dir: &Path) {
    let Some(folder) = folder() else {
        return;
    };
    // A test may have several stacks; below its own directory a node is called after its folder.
    let to = folder.join(
        dir.to_string_lossy()
            .trim_start_matches('/')
            .replace('/', "."),
    );
    for part in PARTS {
        let _ = tree(&dir.join(part), &to.join(part));
    }
    for file in ["vmlet.db", "vmlet.db-wal"] {
        let _ = fs::copy(dir.join("state").join(file), to.join(file));
    }
    eprintln!("--- logs are kept in {}", to.display());
}

/// Copies a file, or a folder with all that is in it; what goes away meanwhile is passed over.
pub(crate) fn tree(from: &Path, to: &Path) -> io::Result<()> {
    if from.is_file() {
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder)?;
        }
        return fs::copy(from, to).map(drop);
    }
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)?.flatten() {
        let kind = entry.file_type()?;
        // Links lead outside, and pipes never end.
        if kind.is_dir() || kind.is_file() {
            let _ = tree(&entry.path(), &to.join(entry.file_name()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_copied_with_what_is_in_them_and_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let from = dir.path().join("from");
        let to = dir.path().join("to");
        fs::create_dir_all(from.join("a/b")).unwrap();
        fs::write(from.join("a/b/c"), "x").unwrap();
        std::os::unix::fs::symlink("/", from.join("root")).unwrap();
        tree(&from, &to).unwrap();
        assert_eq!(fs::read_to_string(to.join("a/b/c")).unwrap(), "x");
        assert!(!to.join("root").exists());
    }
}
