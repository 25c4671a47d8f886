//! Puts a process into the cgroup of its pod.
//!
//! Invariant: a [`PodCgroup`] names a directory below the mount, never outside it.
//! Afterwards the process is in no cgroup of the program that started it.
//! Failure: it is an error when no hierarchy has the pod's directory. On version 1, kubelet makes
//! pod directories only where it accounts; in the other hierarchies the process goes to the
//! directory that comes nearest. Left where it was, it would end with the container of its starter:
//! runtimes look for a container's processes in one hierarchy, and that may be such a one
//! (`devices`).

use std::collections::BTreeSet;
use std::io;
use std::path::{Component, Path, PathBuf};

use super::LEAF;

/// A process that was not placed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The name cannot be one of kubelet's.
    #[error("{0:?} is not the path of a pod's cgroup")]
    Path(String),
    /// The mount cannot be read.
    #[error("list the cgroup hierarchies in {path}")]
    List {
        /// The mount.
        path: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
    /// kubelet has not made it, or has removed it.
    #[error("cgroup {parent} does not exist in any hierarchy below {root}")]
    Missing {
        /// The pod's cgroup, relative to each hierarchy.
        parent: String,
        /// The mount.
        root: PathBuf,
    },
    /// The directory below the pod's cannot be made.
    #[error("make the cgroup {path}")]
    Leaf {
        /// The directory.
        path: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The limit of the pod's memory cannot be read or raised.
    #[error("raise the memory limit in {path}")]
    Memory {
        /// The file.
        path: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The kernel does not move the process.
    #[error("move process {pid} into {path}")]
    Move {
        /// The process.
        pid: i32,
        /// The file that takes it.
        path: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
}

/// The cgroup of a pod, relative to each hierarchy's root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodCgroup(PathBuf);

impl PodCgroup {
    /// Parses kubelet's name: an absolute path, or the name of a systemd slice.
    ///
    /// # Errors
    /// [`Error::Path`].
    pub fn parse(name: &str) -> Result<Self, Error> {
        let wrong = || Error::Path(name.chars().take(256).collect());
        if name.len() > 1024 || name.contains(|c: char| c.is_control()) {
            return Err(wrong());
        }
        let path = Path::new(name);
        let slice = path
            .file_name()
            .and_then(|last| last.to_str())
            .and_then(slice_path);
        if !path.is_absolute() && slice.is_none() {
            return Err(wrong());
        }
        let mut relative = PathBuf::new();
        for part in path.components() {
            match part {
                Component::RootDir => {}
                Component::Normal(part) => relative.push(part),
                _ => return Err(wrong()),
            }
        }
        let relative = slice.unwrap_or(relative);
        if relative.as_os_str().is_empty() {
            return Err(wrong());
        }
        Ok(Self(relative))
    }

    /// The directory, relative to each hierarchy's root.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Moves process `pid` there, in every hierarchy below `root`.
    ///
    /// # Errors
    /// The step that failed.
    pub fn place(&self, root: &Path, pid: i32) -> Result<(), Error> {
        let hierarchies = hierarchies(root)?;
        let knows_pod = |hierarchy: &Path| hierarchy.join(&self.0).is_dir();
        if !hierarchies.iter().any(|(path, _)| knows_pod(path)) {
            return Err(Error::Missing {
                parent: self.0.display().to_string(),
                root: root.to_owned(),
            });
        }
        for (hierarchy, leaf) in &hierarchies {
            let target = match (knows_pod(hierarchy), leaf) {
                (true, true) => Some(self.leaf(hierarchy)?),
                (true, false) => Some(hierarchy.join(&self.0)),
                (false, _) => self.nearest(hierarchy),
            };
            if let Some(target) = target {
                move_into(&target.join("cgroup.procs"), pid)?;
            }
        }
        Ok(())
    }

    /// Lets the pod use at least so many bytes of memory. A limit that is higher, or none, stays.
    ///
    /// # Errors
    /// [`Error::Memory`], or the mount cannot be read.
    pub fn allow_memory(&self, root: &Path, least: u64) -> Result<(), Error> {
        for (hierarchy, _) in hierarchies(root)? {
            let pod = hierarchy.join(&self.0);
            // On version 1 the limit of memory and swap together must be the first to grow.
            for file in [
                "memory.memsw.limit_in_bytes",
                "memory.limit_in_bytes",
                "memory.max",
            ] {
                raise(&pod.join(file), least)?;
            }
        }
        Ok(())
    }

    /// The directory for processes below the pod's.
    fn leaf(&self, hierarchy: &Path) -> Result<PathBuf, Error> {
        let path = hierarchy.join(&self.0).join(LEAF);
        match std::fs::create_dir(&path) {
            Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
                Err(Error::Leaf { path, source })
            }
            _ => Ok(path),
        }
    }

    /// The lowest directory above the pod's that takes processes.
    fn nearest(&self, hierarchy: &Path) -> Option<PathBuf> {
        let above = self.0.ancestors().skip(1);
        above
            .map(|path| hierarchy.join(path))
            .find(|path| path.join("cgroup.procs").exists())
    }
}

fn move_into(procs: &Path, pid: i32) -> Result<(), Error> {
    std::fs::OpenOptions::new()
        .write(true)
        .open(procs)
        .and_then(|mut file| io::Write::write_all(&mut file, pid.to_string().as_bytes()))
        .map_err(|source| Error::Move {
            pid,
            path: procs.to_owned(),
            source,
        })
}

/// Raises a limit that is there and lower; `max` is none.
fn raise(file: &Path, least: u64) -> Result<(), Error> {
    let failed = |source| Error::Memory {
        path: file.to_owned(),
        source,
    };
    let now = match std::fs::read_to_string(file) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        read => read.map_err(failed)?,
    };
    match now.trim().parse::<u64>() {
        Ok(now) if now < least => std::fs::write(file, least.to_string()).map_err(failed),
        _ => Ok(()),
    }
}

/// `a-b.slice` lives in `a.slice/a-b.slice`; `None` for other names.
fn slice_path(name: &str) -> Option<PathBuf> {
    let stem = name.strip_suffix(".slice")?;
    let mut path = PathBuf::new();
    let mut prefix = String::new();
    for part in stem.split('-') {
        if part.is_empty() {
            return None;
        }
        if !prefix.is_empty() {
            prefix.push('-');
        }
        prefix.push_str(part);
        path.push(format!("{prefix}.slice"));
    }
    Some(path)
}

/// Roots of hierarchies, and whether a leaf is needed there.
fn hierarchies(root: &Path) -> Result<BTreeSet<(PathBuf, bool)>, Error> {
    let unified = |dir: &Path| dir.join("cgroup.controllers").exists();
    if unified(root) {
        return Ok(BTreeSet::from([(root.to_owned(), true)]));
    }
    let list = |source| Error::List {
        path: root.to_owned(),
        source,
    };
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(root).map_err(list)? {
        // Links such as `cpu` to `cpu,cpuacct` lead to a hierarchy that is counted once.
        let Ok(path) = entry.map_err(list)?.path().canonicalize() else {
            continue;
        };
        if path.is_dir() {
            let leaf = unified(&path);
            found.insert((path, leaf));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
