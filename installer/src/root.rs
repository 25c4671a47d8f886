//! The node's root file system, wherever it is mounted.
//!
//! Invariant: a symbolic link never leads out of it, also an absolute one; a file is replaced by one
//! rename, after its bytes are on the disk.
//! Failure: names the step and the path on the node.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

use crate::content::Content;
use crate::crash;

/// As many links as the kernel follows.
const MOST_LINKS: usize = 40;

/// Where the root file system of the node is.
#[derive(Debug, Clone)]
pub(crate) struct Root {
    folder: PathBuf,
}

impl Root {
    pub(crate) fn new(folder: &Path) -> Result<Self> {
        let found = folder.canonicalize();
        let folder = found.with_context(|| format!("failed to find {}", folder.display()))?;
        ensure!(folder.is_dir(), "{} is not a directory", folder.display());
        Ok(Self { folder })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether it is the root of this process.
    pub(crate) fn is_own(&self) -> bool {
        self.folder == Path::new("/")
    }

    /// Where a path of the node is for this process; all links are followed.
    pub(crate) fn place(&self, path: &Path) -> Result<PathBuf> {
        let mut ahead: VecDeque<OsString> = names(path).collect();
        let mut place = self.folder.clone();
        let mut links = 0;
        while let Some(name) = ahead.pop_front() {
            if name == ".." {
                if place != self.folder {
                    place.pop();
                }
                continue;
            }
            let next = place.join(&name);
            let Ok(target) = fs::read_link(&next) else {
                place = next;
                continue;
            };
            links += 1;
            if links > MOST_LINKS {
                bail!("failed to follow the links of {}", path.display());
            }
            if target.is_absolute() {
                place.clone_from(&self.folder);
            }
            for name in names(&target).collect::<Vec<_>>().into_iter().rev() {
                ahead.push_front(name);
            }
        }
        Ok(place)
    }

    pub(crate) fn exists(&self, path: &Path) -> Result<bool> {
        Ok(self.place(path)?.exists())
    }

    /// Whether there is a name, also of a link to nowhere.
    pub(crate) fn has_name(&self, folder: &Path, name: &str) -> Result<bool> {
        Ok(self.place(folder)?.join(name).symlink_metadata().is_ok())
    }

    /// The names in a folder, in order; none if there is no such folder.
    pub(crate) fn list(&self, path: &Path) -> Result<Vec<String>> {
        let entries = match fs::read_dir(self.place(path)?) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.with_context(|| failed("list", path))?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.with_context(|| failed("list", path))?;
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }

    /// The file, if there is one.
    pub(crate) fn read(&self, path: &Path) -> Result<Option<Content>> {
        let place = self.place(path)?;
        let metadata = match fs::metadata(&place) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            metadata => metadata.with_context(|| failed("read", path))?,
        };
        ensure!(metadata.is_file(), "{} is not a file", path.display());
        Ok(Some(Content {
            bytes: fs::read(&place).with_context(|| failed("read", path))?,
            mode: metadata.mode() & 0o7777,
            owner: Some((metadata.uid(), metadata.gid())),
        }))
    }

    /// The text of a file, if there is one.
    pub(crate) fn text(&self, path: &Path) -> Result<Option<String>> {
        let Some(content) = self.read(path)? else {
            return Ok(None);
        };
        let text = String::from_utf8(content.bytes);
        Ok(Some(text.with_context(|| failed("read", path))?))
    }

    /// A list of the kernel. Only its folder is looked for in the root: names below it are links of the
    /// kernel.
    pub(crate) fn proc_text(&self, path: &Path) -> Result<Option<String>> {
        let place = self.folder.join(path.strip_prefix("/").unwrap_or(path));
        match fs::read(&place) {
            Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| failed("read", path)),
        }
    }

    /// Replaces a file, or makes it.
    pub(crate) fn write(&self, path: &Path, content: &Content) -> Result<()> {
        let place = self.place(path)?;
        self.replace(&place, content)
            .with_context(|| failed("write", path))
    }

    fn replace(&self, place: &Path, content: &Content) -> Result<()> {
        let temporary = temporary(place);
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&temporary)?;
        crash::point();
        file.write_all(&content.bytes)?;
        if let Some((user, group)) = content.owner {
            fchown(&file, Some(user), Some(group))?;
        }
        // Behind the change of the owner, which takes away set-user-id bits.
        file.set_permissions(Permissions::from_mode(content.mode))?;
        file.sync_all()?;
        crash::point();
        fs::rename(&temporary, place)?;
        sync_parent(place)
    }

    /// Removes a file, if there is one, and what a crash has left beside it.
    pub(crate) fn remove(&self, path: &Path) -> Result<()> {
        self.remove_place(&self.place(path)?)
            .with_context(|| failed("remove", path))
    }

    /// Removes what a crash has left beside a file.
    pub(crate) fn discard_temporary(&self, path: &Path) -> Result<()> {
        self.remove_place(&temporary(&self.place(path)?))
            .with_context(|| failed("clean up beside", path))
    }

    fn remove_place(&self, place: &Path) -> Result<()> {
        match fs::remove_file(place) {
            Ok(()) => sync_parent(place),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The folders above a path that are missing, the uppermost first.
    pub(crate) fn missing_above(&self, path: &Path) -> Result<Vec<PathBuf>> {
        let mut missing = Vec::new();
        for folder in path.ancestors().skip(1) {
            if self.exists(folder)? {
                break;
            }
            missing.push(folder.to_owned());
        }
        missing.reverse();
        Ok(missing)
    }

    pub(crate) fn create_folder(&self, path: &Path) -> Result<()> {
        let place = self.place(path)?;
        match fs::create_dir(&place) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(()),
            created => created.with_context(|| failed("create", path))?,
        }
        fs::set_permissions(&place, Permissions::from_mode(0o755))
            .map_err(Into::into)
            .and_then(|()| sync_parent(&place))
            .with_context(|| failed("create", path))
    }

    /// Removes a folder; returns false if something is in it.
    pub(crate) fn remove_folder(&self, path: &Path) -> Result<bool> {
        let place = self.place(path)?;
        match fs::remove_dir(&place) {
            Ok(()) => sync_parent(&place).with_context(|| failed("remove", path))?,
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => return Ok(false),
            Err(error) => return Err(error).with_context(|| failed("remove", path)),
        }
        Ok(true)
    }
}

/// The names of a path, without the root.
fn names(path: &Path) -> impl Iterator<Item = OsString> + '_ {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

fn temporary(place: &Path) -> PathBuf {
    let name = place.file_name().unwrap_or_default();
    place.with_file_name(temporary_name(&name.to_string_lossy()))
}

/// The name of a file until it is complete. No program reads one of this name as settings or as a unit.
pub(crate) fn temporary_name(name: &str) -> String {
    format!(".{name}.vmlet-new")
}

fn sync_parent(place: &Path) -> Result<()> {
    let Some(folder) = place.parent() else {
        return Ok(());
    };
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .with_context(|| format!("failed to sync {}", folder.display()))
}

fn failed(step: &str, path: &Path) -> String {
    format!("failed to {step} {}", path.display())
}

#[cfg(test)]
mod tests;
