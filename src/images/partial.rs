//! A download in progress on disk: the bytes so far, and a note about their source.
//!
//! Invariant: the holder of a [`Partial`] holds the file's lock, so no other process writes to it;
//! the hash covers exactly the bytes in the file. A partial is only continued in the boot that
//! wrote it (a power cut may leave zeros where bytes were) and only if the server's validator is
//! strong.
//! Failure: I/O errors go up; an unusable partial or note is forgotten and the download starts
//! again.

use std::fs::{File, Permissions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use service::{boot_id, files};
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;

use super::digest::Digest;

mod follow;
mod handle;
mod room;

use follow::Extent;
pub(super) use follow::Follower;
pub(super) use handle::Handle;
pub(super) use room::{Claim as RoomClaim, Full, Room, STALE};

pub(super) const PART: &str = "part";
pub(super) const NOTE: &str = "json";
/// A note before it takes the place of the old one.
const NEW_NOTE: &str = "new";
/// Of a complete file: QEMU reads it as a member of the group.
pub(super) const FILE_MODE: u32 = 0o640;
const COPY: usize = 1 << 20;
/// Zeros of this length, at a multiple of it, become a hole.
const BLOCK: usize = 64 << 10;
/// Notes are ours and short; anything longer is not a note.
const LONGEST_NOTE: u64 = 16 << 10;

/// What a server sends to identify a version of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Validators {
    /// As sent, with quotes and perhaps `W/` in front.
    pub(super) etag: Option<String>,
    /// `Last-Modified` as sent, if it is old enough to be trusted.
    pub(super) modified: Option<String>,
}

impl Validators {
    pub(super) const fn is_empty(&self) -> bool {
        self.etag.is_none() && self.modified.is_none()
    }

    /// What may stand in `If-Range`: equal bytes are guaranteed.
    pub(super) fn strong(&self) -> Option<&str> {
        let strong = |etag: &&str| !etag.starts_with("W/");
        match &self.etag {
            Some(etag) => Some(etag.as_str()).filter(strong),
            None => self.modified.as_deref(),
        }
    }
}

/// What the bytes are part of.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Note {
    /// Host and path, for people who look into the directory.
    pub(super) location: String,
    pub(super) validators: Validators,
    /// Size of the whole file, if the server sent it.
    pub(super) total: Option<u64>,
    /// Boot in which the bytes were written.
    boot: String,
}

impl Note {
    pub(super) fn new(location: String, validators: Validators, total: Option<u64>) -> Self {
        Self {
            location,
            validators,
            total,
            boot: String::new(),
        }
    }
}

/// An open, locked partial file.
#[derive(Debug)]
pub(super) struct Partial {
    file: File,
    path: PathBuf,
    boot_id_file: PathBuf,
    hasher: Sha256,
    received: u64,
    note: Note,
    /// For followers.
    extent: watch::Sender<Extent>,
}

impl Partial {
    /// Opens or creates `<dir>/<key>.part`, waits until no other writer is left, and hashes its
    /// content. `boot_id_file` states which boot this is. Blocks.
    pub(super) fn open(dir: &Path, key: &str, boot_id_file: &Path) -> io::Result<Self> {
        let path = dir.join(key).with_extension(PART);
        let file = open_locked(&path)?;
        let mut partial = Self {
            file,
            path,
            boot_id_file: boot_id_file.into(),
            hasher: Sha256::new(),
            received: 0,
            note: Note::default(),
            extent: watch::Sender::default(),
        };
        match partial.read_note()? {
            Some(note) => partial.take_up(note)?,
            None => partial.file.set_len(0)?,
        }
        partial
            .extent
            .send_replace(Extent::with_bytes(partial.received));
        Ok(partial)
    }

    pub(super) const fn received(&self) -> u64 {
        self.received
    }

    pub(super) const fn note(&self) -> &Note {
        &self.note
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) const fn file(&self) -> &File {
        &self.file
    }

    /// All bytes are there, as far as the server's size says.
    pub(super) fn is_whole(&self) -> bool {
        self.received > 0 && self.note.total == Some(self.received)
    }

    /// Forgets all bytes; what follows is part of the file that `note` is about. Blocks.
    pub(super) fn restart(&mut self, note: Note) -> io::Result<()> {
        self.extent.send_modify(Extent::restart);
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        self.hasher = Sha256::new();
        self.received = 0;
        self.note = Note {
            boot: self.boot(),
            ..note
        };
        let new = self.path.with_extension(NEW_NOTE);
        std::fs::write(&new, serde_json::to_vec(&self.note)?)?;
        std::fs::rename(new, self.path.with_extension(NOTE))
    }

    /// Adds bytes at the end. Blocks. After an error the file and the hash differ: only discard it
    /// then.
    pub(super) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.received += bytes.len() as u64;
        let received = self.received;
        self.extent.send_modify(|extent| extent.grow(received));
        self.hasher.update(bytes);
        Ok(())
    }

    /// No bytes will be added: a follower reaches the end.
    pub(super) fn complete(&self) {
        self.extent.send_modify(Extent::complete);
    }

    /// As [`Partial::append`] for a part of a disk: zeros take no space. Only [`Partial::finish`]
    /// makes the file as long as it is.
    pub(super) fn append_sparse(&mut self, bytes: &[u8]) -> io::Result<()> {
        for block in bytes.chunks(BLOCK) {
            if block.iter().all(|byte| *byte == 0) {
                let length = i64::try_from(block.len()).unwrap_or_default();
                self.file.seek(SeekFrom::Current(length))?;
            } else {
                self.file.write_all(block)?;
            }
        }
        self.hasher.update(bytes);
        self.received += bytes.len() as u64;
        Ok(())
    }

    /// Takes in what another program wrote to the file. Blocks.
    pub(super) fn take_in(&mut self) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(0))?;
        (self.hasher, self.received) = (Sha256::new(), 0);
        self.hash_rest()
    }

    /// The directory of all downloads.
    pub(super) fn dir(&self) -> PathBuf {
        self.path.parent().unwrap_or(&self.path).to_path_buf()
    }

    /// Syncs all bytes to the disk and returns their digest. Blocks.
    pub(super) fn finish(&mut self) -> io::Result<Digest> {
        self.file
            .set_permissions(Permissions::from_mode(FILE_MODE))?;
        self.file.set_len(self.received)?;
        self.file.sync_all()?;
        Ok(self.digest())
    }

    /// The digest of all bytes, which may not be on the disk yet.
    pub(super) fn digest(&self) -> Digest {
        Digest::from_bytes(self.hasher.clone().finalize().into())
    }

    /// Makes the finished file appear as `target`, replacing what is there, in one step. Blocks.
    pub(super) fn place(&self, target: &Path) -> io::Result<()> {
        files::place(&self.path, target)?;
        remove_if_there(&self.path.with_extension(NOTE))
    }

    /// Removes the file and its note. Blocks.
    pub(super) fn discard(&self) -> io::Result<()> {
        for extension in [NEW_NOTE, NOTE, PART] {
            remove_if_there(&self.path.with_extension(extension))?;
        }
        Ok(())
    }

    fn read_note(&self) -> io::Result<Option<Note>> {
        let file = match File::open(self.path.with_extension(NOTE)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let mut text = Vec::new();
        file.take(LONGEST_NOTE).read_to_end(&mut text)?;
        let boot = self.boot();
        let same = |note: &Note| !boot.is_empty() && note.boot == boot;
        let usable = |note: &Note| same(note) && note.validators.strong().is_some();
        Ok(serde_json::from_slice(&text).ok().filter(usable))
    }

    /// Empty where the node does not say it; then nothing is continued.
    fn boot(&self) -> String {
        boot_id::read(&self.boot_id_file).unwrap_or_default()
    }

    fn hash_rest(&mut self) -> io::Result<()> {
        let mut buffer = vec![0; COPY];
        loop {
            match self.file.read(&mut buffer)? {
                0 => return Ok(()),
                n => {
                    self.hasher.update(&buffer[..n]);
                    self.received += n as u64;
                }
            }
        }
    }

    fn take_up(&mut self, note: Note) -> io::Result<()> {
        self.hash_rest()?;
        if note.total.is_some_and(|total| self.received > total) {
            self.file.set_len(0)?;
            self.file.seek(SeekFrom::Start(0))?;
            self.hasher = Sha256::new();
            self.received = 0;
        }
        self.note = note;
        Ok(())
    }
}

/// The lock may be granted on a file that its last holder has renamed or removed: then look again.
fn open_locked(path: &Path) -> io::Result<File> {
    loop {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)?;
        file.lock()?;
        let ours = file.metadata()?;
        match std::fs::metadata(path) {
            Ok(there) if (there.dev(), there.ino()) == (ours.dev(), ours.ino()) => return Ok(file),
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
}

/// Removes a file; that it is not there is fine.
pub(super) fn remove_if_there(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

#[cfg(test)]
mod tests;
