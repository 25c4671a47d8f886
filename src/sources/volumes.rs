//! Reads what kubelet has mounted into a container, as files of a guest.
//!
//! Invariant: only files below the pod's own directory of kubelet are read: volumes that kubelet
//! fills from objects, all keys of one version, and single files of other volumes. No link leads out
//! of a volume.
//! Failure: [`VolumeError`], which repeats nothing of what is in a file.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use nix::fcntl::{OFlag, ResolveFlag};
use podspec::GuestFile;

use super::mounted::{CURRENT, open};

/// Most bytes of one file.
const LARGEST_FILE: usize = 1024 * 1024;
/// Most bytes of all files of a container.
const MOST_BYTES: usize = 8 * 1024 * 1024;
/// Most files of a container.
const MOST_FILES: usize = 1024;
/// Deepest directory of a volume.
const DEEPEST: usize = 16;
const PLUGINS: [&str; 4] = [
    "kubernetes.io~configmap",
    "kubernetes.io~secret",
    "kubernetes.io~projected",
    "kubernetes.io~downward-api",
];

/// Why a mount cannot be a part of the guest.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// A file is too large.
    #[error(
        "{name} has more than {LARGEST_FILE} bytes, the most that one file of a guest may have; put it \
         on a disk"
    )]
    FileTooLarge {
        /// Path in the container.
        name: String,
    },
    /// All files together are too large.
    #[error(
        "the files of all mounts have more than {MOST_BYTES} bytes, or are more than {MOST_FILES}"
    )]
    TooLarge,
    /// A directory is too deep.
    #[error("it has directories more than {DEEPEST} deep")]
    TooDeep,
    /// No guest can have a file of that name.
    #[error("{name:?} is no path of a file")]
    Name {
        /// Path in the container.
        name: String,
    },
    /// The kernel's reason.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// What a mount of the pod is, by its path on the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A volume that kubelet fills.
    Object,
    /// A single file.
    File,
}

/// The files of a container, as they are added up.
#[derive(Debug, Default)]
pub struct Files {
    files: Vec<GuestFile>,
    bytes: usize,
}

/// Whether the files of a mount can be given to a guest. Blocks.
pub fn has_files(host: &str, pod_uid: &str) -> bool {
    kind(host, pod_uid).is_some()
}

impl Files {
    /// Adds those of the mount of `host` at `inside`. Blocks.
    ///
    /// # Errors
    ///
    /// [`VolumeError`].
    pub fn add(&mut self, host: &str, pod_uid: &str, inside: &str) -> Result<(), VolumeError> {
        match kind(host, pod_uid) {
            None => Ok(()),
            Some(Kind::File) => {
                let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
                let mut options = fs::OpenOptions::new();
                let file = options.read(true).custom_flags(flags.bits()).open(host)?;
                self.file(file, inside.to_owned())
            }
            Some(Kind::Object) => {
                let volume = File::open(host)?;
                let directory = OFlag::O_PATH | OFlag::O_DIRECTORY;
                let current = open(&volume, CURRENT, directory, ResolveFlag::empty())?;
                self.directory(&current, inside.trim_end_matches('/'), 0)
            }
        }
    }

    /// All of them, in the order of their paths.
    pub fn into_files(mut self) -> Vec<GuestFile> {
        self.files.sort_by(|a, b| a.path.cmp(&b.path));
        self.files
    }

    fn directory(&mut self, of: &OwnedFd, inside: &str, depth: usize) -> Result<(), VolumeError> {
        if depth >= DEEPEST {
            return Err(VolumeError::TooDeep);
        }
        for entry in fs::read_dir(format!("/proc/self/fd/{}", of.as_raw_fd()))? {
            let entry = entry?;
            let kind = entry.file_type()?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else {
                let name = name.to_string_lossy().into_owned();
                return Err(VolumeError::Name { name });
            };
            let inside = format!("{inside}/{name}");
            let plain = ResolveFlag::RESOLVE_NO_SYMLINKS;
            if kind.is_dir() {
                let flags = OFlag::O_PATH | OFlag::O_DIRECTORY;
                self.directory(&open(of, name, flags, plain)?, &inside, depth + 1)?;
            } else if kind.is_file() {
                let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK;
                self.file(File::from(open(of, name, flags, plain)?), inside)?;
            }
        }
        Ok(())
    }

    fn file(&mut self, file: File, path: String) -> Result<(), VolumeError> {
        if !GuestFile::is_path(&path) {
            return Err(VolumeError::Name { name: path });
        }
        let mode = file.metadata()?.permissions().mode() & 0o777;
        let mut content = Vec::new();
        file.take(LARGEST_FILE as u64 + 1)
            .read_to_end(&mut content)?;
        if content.len() > LARGEST_FILE {
            return Err(VolumeError::FileTooLarge { name: path });
        }
        self.bytes += content.len();
        if self.bytes > MOST_BYTES || self.files.len() >= MOST_FILES {
            return Err(VolumeError::TooLarge);
        }
        self.files.push(GuestFile {
            path,
            mode,
            content,
        });
        Ok(())
    }
}

/// What kubelet keeps at this path for the pod; `None` for everything else.
fn kind(host: &str, pod_uid: &str) -> Option<Kind> {
    let is_plain = !host.split('/').any(|part| part == "." || part == "..");
    if pod_uid.is_empty() || !Path::new(host).is_absolute() || !is_plain {
        return None;
    }
    let (_, below) = host.split_once(&format!("/pods/{pod_uid}/"))?;
    match below.split('/').collect::<Vec<_>>().as_slice() {
        ["volumes", plugin, name] if PLUGINS.contains(plugin) && !name.is_empty() => {
            Some(Kind::Object)
        }
        ["volume-subpaths", _, _, _] => {
            let found = fs::symlink_metadata(host).ok()?;
            found.is_file().then_some(Kind::File)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
