//! Reads a ConfigMap or Secret from the volume that kubelet has mounted into the pod.
//!
//! Invariant: only kubelet's own volumes of objects are read, of this pod, and all keys are of one
//! version of the object: kubelet replaces the link `..data` when the object changes. No link
//! leads out of the volume.
//! Failure: [`Unreadable`], which repeats nothing of what is in a file.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use podspec::{Content, SourceKind};

use super::MOST_BYTES;

/// The link to the current version of an object.
pub(super) const CURRENT: &str = "..data";
/// Most keys of an object.
const MOST_KEYS: usize = 1024;

/// Why a mounted object cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// The mount is not of a volume that kubelet fills with an object.
    #[error(
        "it is not a {0} volume or a projected volume of the pod, mounted as a directory without \
         subPath"
    )]
    NotAVolume(SourceKind),
    /// The object is larger than any object can be.
    #[error("it has more than {MOST_BYTES} bytes or {MOST_KEYS} keys")]
    TooLarge,
    /// The kernel's reason.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// The keys of the object at `host`, the path of a volume of the pod `pod_uid`. Blocks.
pub(super) fn read(host: &str, pod_uid: &str, kind: SourceKind) -> Result<Content, Unreadable> {
    if !is_volume(host, pod_uid, kind) {
        return Err(Unreadable::NotAVolume(kind));
    }
    let volume = File::open(host)?;
    let directory = OFlag::O_PATH | OFlag::O_DIRECTORY;
    let current = open(&volume, CURRENT, directory, ResolveFlag::empty())?;
    let listed = fs::read_dir(format!("/proc/self/fd/{}", current.as_raw_fd()))?;
    let mut all = BTreeMap::new();
    let mut room = MOST_BYTES;
    for entry in listed {
        let entry = entry?;
        // Items of a volume may be placed in directories; keys are files.
        if !entry.file_type()?.is_file() {
            continue;
        }
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK;
        let file = open(
            &current,
            name.as_str(),
            flags,
            ResolveFlag::RESOLVE_NO_SYMLINKS,
        )?;
        let content = content(File::from(file), room)?;
        room -= content.len();
        all.insert(name, content);
        if all.len() > MOST_KEYS {
            return Err(Unreadable::TooLarge);
        }
    }
    Ok(Content(all))
}

fn content(file: File, room: usize) -> Result<Vec<u8>, Unreadable> {
    let mut content = Vec::new();
    file.take(room as u64 + 1).read_to_end(&mut content)?;
    if content.len() > room {
        Err(Unreadable::TooLarge)
    } else {
        Ok(content)
    }
}

/// Opens a name below a directory; no link leads out of it.
pub(super) fn open(
    directory: impl std::os::fd::AsFd,
    name: &str,
    flags: OFlag,
    resolve: ResolveFlag,
) -> io::Result<OwnedFd> {
    let inside = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let how = OpenHow::new()
        .flags(flags | OFlag::O_CLOEXEC)
        .resolve(resolve | inside);
    Ok(openat2(directory, name, how)?)
}

/// Whether kubelet keeps such an object of the pod at this path.
fn is_volume(host: &str, pod_uid: &str, kind: SourceKind) -> bool {
    let plugins = match kind {
        SourceKind::ConfigMap => ["kubernetes.io~configmap", "kubernetes.io~projected"],
        SourceKind::Secret => ["kubernetes.io~secret", "kubernetes.io~projected"],
    };
    let parts: Vec<_> = host.rsplit('/').collect();
    let [name, plugin, "volumes", pod, "pods", ..] = parts.as_slice() else {
        return false;
    };
    let is_plain = !host.split('/').any(|part| part == "." || part == "..");
    let is_known = plugins.contains(plugin) && *pod == pod_uid;
    Path::new(host).is_absolute() && is_plain && is_known && !name.is_empty() && !pod_uid.is_empty()
}

#[cfg(test)]
mod tests;
