//! The list of the node image's packages, kept for the next process: apt-get takes seconds to compute it, and
//! each image of a test needs it.
//!
//! Invariant: a kept list was computed from the same package lists, settings of apt and requirements. It appears
//! by one rename, so that processes at the same time read a whole one.
//! Failure: a kept list that cannot be read is computed again.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process;

use anyhow::{Context, Result};

use super::packages::{self, Package};

/// Where apt has the lists of packages, and its settings.
const OF_APT: [&str; 5] = [
    "/var/lib/apt/lists",
    "/etc/apt",
    "/etc/apt/apt.conf.d",
    "/etc/apt/preferences.d",
    "/etc/apt/sources.list.d",
];
/// The lock of the lists, which each apt-get may touch.
const LOCK: &str = "lock";

/// The packages; `work` is the folder in which the list is kept.
pub(super) fn packages(work: &Path) -> Result<Vec<Package>> {
    let mut inputs = packages::requirements()?;
    for folder in OF_APT {
        versions(Path::new(folder), &mut inputs)?;
    }
    kept_or(&work.join("closure"), &inputs, packages::computed)
}

/// Adds what tells one version of each file in a folder from another.
fn versions(folder: &Path, inputs: &mut String) -> Result<()> {
    let Ok(entries) = fs::read_dir(folder) else {
        // apt does without it, too.
        return Ok(());
    };
    let entries = entries.collect::<Result<Vec<_>, _>>();
    let mut entries = entries.with_context(|| format!("list {}", folder.display()))?;
    entries.retain(|entry| entry.file_name() != LOCK);
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        let file = fs::metadata(&path).with_context(|| format!("look at {}", path.display()))?;
        if file.is_file() {
            let path = path.display();
            let seconds = file.mtime();
            let nanoseconds = file.mtime_nsec();
            // Writing to a String cannot fail.
            let _ = write!(inputs, " {path} {seconds}.{nanoseconds} {}", file.len());
        }
    }
    Ok(())
}

/// The list that is kept in `file` if it is of these inputs, or else a computed one, which is kept then.
fn kept_or(
    file: &Path,
    inputs: &str,
    compute: impl FnOnce() -> Result<Vec<Package>>,
) -> Result<Vec<Package>> {
    let text = fs::read_to_string(file).unwrap_or_default();
    if let Some(packages) = parse(&text, inputs) {
        return Ok(packages);
    }
    let packages = compute()?;
    let mut text = format!("{inputs}\n");
    for Package { name, version } in &packages {
        let _ = writeln!(text, "{name} {version}");
    }
    let new = file.with_extension(process::id().to_string());
    file.parent()
        .map_or(Ok(()), fs::create_dir_all)
        .and_then(|()| fs::write(&new, text))
        .and_then(|()| fs::rename(&new, file))
        .with_context(|| format!("write {}", file.display()))?;
    Ok(packages)
}

/// The first line has the inputs, each further one a package.
fn parse(text: &str, inputs: &str) -> Option<Vec<Package>> {
    let mut lines = text.lines();
    if lines.next()? != inputs {
        return None;
    }
    let packages = lines.map(|line| {
        let (name, version) = line.split_once(' ')?;
        Some(Package {
            name: name.to_owned(),
            version: version.to_owned(),
        })
    });
    let packages = packages.collect::<Option<Vec<_>>>()?;
    (!packages.is_empty()).then_some(packages)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(version: &str) -> Vec<Package> {
        vec![Package {
            name: "libc6".to_owned(),
            version: version.to_owned(),
        }]
    }

    #[test]
    fn a_list_is_computed_once_for_the_same_inputs() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("work/closure");
        let never = || -> Result<Vec<Package>> { anyhow::bail!("computed again") };
        assert_eq!(kept_or(&file, "a", || Ok(list("1"))).unwrap(), list("1"));
        assert_eq!(kept_or(&file, "a", never).unwrap(), list("1"));
        assert!(kept_or(&file, "b", never).is_err());
        assert_eq!(kept_or(&file, "b", || Ok(list("2"))).unwrap(), list("2"));
        // Cut in the middle, as by a full disk.
        fs::write(&file, "b\nlibc6").unwrap();
        assert_eq!(kept_or(&file, "b", || Ok(list("3"))).unwrap(), list("3"));
        let left = fs::read_dir(dir.path().join("work")).unwrap().count();
        assert_eq!(left, 1, "a half-made file is left");
    }

    #[test]
    fn another_version_of_a_package_list_is_another_input() {
        let dir = tempfile::tempdir().unwrap();
        let inputs = || {
            let mut inputs = String::new();
            versions(dir.path(), &mut inputs).unwrap();
            inputs
        };
        let nothing = inputs();
        fs::write(dir.path().join("packages"), "1").unwrap();
        let one = inputs();
        assert_ne!(nothing, one);
        fs::write(dir.path().join("lock"), "").unwrap();
        assert_eq!(inputs(), one);
        fs::write(dir.path().join("packages"), "12").unwrap();
        assert_ne!(inputs(), one);
    }
}
