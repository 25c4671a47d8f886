//! Proves that nothing was built or linked after the build.
//!
//! Invariant: a program that was replaced, written to or removed since then is named, also when its
//! bytes are the same.
//! Failure: each such program is one failed test.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// What distinguishes one version of a file from another: inode, time of the last change in
/// nanoseconds, length.
type Version = Option<(u64, i64, i64, u64)>;

/// Programs as they were at one moment.
#[derive(Debug)]
pub(super) struct Frozen(BTreeMap<PathBuf, Version>);

impl Frozen {
    /// Remembers the programs as they are now.
    pub(super) fn new(files: impl IntoIterator<Item = PathBuf>) -> Self {
        let versions = files.into_iter().map(|file| {
            let version = version(&file);
            (file, version)
        });
        Self(versions.collect())
    }

    /// Those that are not as they were.
    pub(super) fn changed(&self) -> Vec<&PathBuf> {
        let changed = self.0.iter().filter(|(file, then)| version(file) != **then);
        changed.map(|(file, _)| file).collect()
    }
}

fn version(file: &PathBuf) -> Version {
    let data = fs::metadata(file).ok()?;
    Some((data.ino(), data.mtime(), data.mtime_nsec(), data.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_replaced_by_the_same_bytes_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let files = ["kept", "replaced", "removed"].map(|name| dir.path().join(name));
        for file in &files {
            fs::write(file, "program").unwrap();
        }
        let frozen = Frozen::new(files.clone());
        assert!(frozen.changed().is_empty());
        fs::write(dir.path().join("new"), "program").unwrap();
        fs::rename(dir.path().join("new"), &files[1]).unwrap();
        fs::remove_file(&files[2]).unwrap();
        // By name: removed, replaced.
        assert_eq!(frozen.changed(), [&files[2], &files[1]]);
    }
}
