//! The directory of the console log of a run.
//!
//! Invariant: the directory of one pod is `<namespace>_<name>_<uid>`, as kubelet names it. The
//! default place is in a directory that all users may write to, so it must be ours alone before
//! it is used: the daemon writes there as root.
//! Failure: the directory that could not be created, or that belongs to another user.

use std::fs::{DirBuilder, create_dir_all, symlink_metadata};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use nix::unistd::geteuid;

use crate::manifest::PodManifest;

const DEFAULT_NAME: &str = "vmlet-logs";

/// Makes the directory of this run's pod, below `root` or the default place, and its container's.
pub(super) fn create(root: Option<&Path>, pod: &PodManifest) -> anyhow::Result<PathBuf> {
    let root = match root {
        Some(root) => std::path::absolute(root).context("find the log directory")?,
        None => default_root(&std::env::temp_dir())?,
    };
    let directory = root.join(format!("{}_{}_{}", pod.namespace, pod.name, pod.uid));
    let container = directory.join(&pod.container.name);
    create_dir_all(&container).with_context(|| format!("make {}", container.display()))?;
    Ok(directory)
}

fn default_root(temporary: &Path) -> anyhow::Result<PathBuf> {
    let root = temporary.join(DEFAULT_NAME);
    // An existing one is examined below.
    let made = DirBuilder::new().mode(0o700).create(&root);
    let found = symlink_metadata(&root);
    let found = found.with_context(|| match made {
        Ok(()) => format!("look at {}", root.display()),
        Err(error) => format!("make {}: {error}", root.display()),
    })?;
    let is_ours = found.is_dir() && found.uid() == geteuid().as_raw();
    ensure!(
        is_ours && found.mode() & 0o022 == 0,
        "{} is not a directory of ours alone: remove it, or choose another with --log-dir",
        root.display()
    );
    Ok(root)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn the_default_place_is_made_for_us_alone_and_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let root = default_root(dir.path()).unwrap();
        assert_eq!(root.metadata().unwrap().mode() & 0o777, 0o700);
        assert_eq!(default_root(dir.path()).unwrap(), root);
    }

    #[test]
    fn a_place_that_others_could_have_prepared_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        symlink("/tmp", dir.path().join(DEFAULT_NAME)).unwrap();
        let error = default_root(dir.path()).unwrap_err().to_string();
        assert!(error.contains("not a directory of ours alone"), "{error}");

        let dir = tempfile::tempdir().unwrap();
        let root = default_root(dir.path()).unwrap();
        fs::set_permissions(&root, Permissions::from_mode(0o777)).unwrap();
        assert!(default_root(dir.path()).is_err());
    }
}
