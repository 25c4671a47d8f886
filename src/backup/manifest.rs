//! The manifest of a backup: what it is of, what it is based on, and its files.
//!
//! Invariant: a manifest that was read names files by their numbers alone, and is that of the directory that it is in.
//! It names the digest of the manifest that it is based on, so that its own digest covers the whole chain.
//! Failure: a sentence.

use podspec::VmUid;
use serde::{Deserialize, Serialize};

use crate::images::{Digest, Format};

/// The version of the format.
const VERSION: u32 = 1;

/// The longest manifest in bytes.
pub(super) const LONGEST: u64 = 1 << 20;

/// The most files of one backup: all layers that a disk may have, and an image.
const FILES: usize = 64;

/// The longest text in bytes.
const TEXT: usize = 1024;

/// What a backup is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    version: u32,
    /// Its object.
    pub uid: VmUid,
    /// The machine.
    pub vm: VmUid,
    /// `namespace/name` of the machine.
    pub name: String,
    /// When the disk was as it is in the backup, in nanoseconds since the epoch.
    pub created_at: i64,
    /// Whether the guest had frozen its file systems.
    pub quiesced: bool,
    /// Whether the machine ran.
    pub running: bool,
    /// Size that the guest saw, in bytes.
    pub virtual_bytes: u64,
    /// The image that the disk was made from, by the name that a pod would give it; empty: none.
    pub image: String,
    /// `sha256:…` of that image.
    pub digest: String,
    /// The backup that it is based on; none: it is a full one.
    pub parent: Option<Parent>,
    /// Why it is a full one; empty: it is none.
    pub full_reason: String,
    /// Bytes of the disk that were read for it.
    pub read_bytes: u64,
    /// Bytes that were written to the target.
    pub stored_bytes: u64,
    /// Its files, the upper one first.
    pub files: Vec<Entry>,
}

/// A backup that another one is based on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parent {
    /// Its object.
    pub uid: VmUid,
    /// Of its manifest.
    #[serde(with = "digits")]
    pub sha256: Digest,
}

/// One file of a backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its name: its number, and its format.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// Of all its bytes.
    #[serde(with = "digits")]
    pub sha256: Digest,
}

impl Manifest {
    /// Without files, for a disk as it was at a time.
    pub(super) fn new(draft: super::Draft) -> Self {
        Self {
            version: VERSION,
            uid: draft.uid,
            vm: draft.vm,
            name: draft.name,
            created_at: draft.created_at,
            quiesced: draft.quiesced,
            running: draft.running,
            virtual_bytes: draft.virtual_bytes,
            image: draft.image,
            digest: draft.digest,
            parent: draft.parent,
            full_reason: draft.full_reason,
            read_bytes: 0,
            stored_bytes: 0,
            files: Vec::new(),
        }
    }

    /// Reads one that was found in the directory of a backup.
    pub(super) fn parse(bytes: &[u8], vm: VmUid, uid: VmUid) -> Result<Self, String> {
        let read: Self = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        read.check(vm, uid)?;
        Ok(read)
    }

    /// As it is stored: always the same bytes.
    pub(super) fn text(&self) -> Result<Vec<u8>, String> {
        serde_json::to_vec_pretty(self).map_err(|e| e.to_string())
    }

    pub(super) fn is_full(&self) -> bool {
        self.parent.is_none()
    }

    /// How many bytes all its files have.
    pub(super) fn bytes(&self) -> u64 {
        let all = self.files.iter().map(|file| file.bytes);
        all.fold(0, u64::saturating_add)
    }

    fn check(&self, vm: VmUid, uid: VmUid) -> Result<(), String> {
        if self.version != VERSION {
            let version = self.version;
            return Err(format!(
                "it has version {version}, and this daemon knows {VERSION} alone"
            ));
        }
        if (self.vm, self.uid) != (vm, uid) {
            return Err(format!(
                "it is that of backup {} of machine {}",
                self.uid, self.vm
            ));
        }
        if self.parent.is_some_and(|parent| parent.uid == uid) {
            return Err("it is based on itself".to_owned());
        }
        let texts = [&self.name, &self.image, &self.digest, &self.full_reason];
        let is_odd = |text: &&String| text.len() > TEXT || text.contains(char::is_control);
        if texts.iter().any(is_odd) {
            return Err("it has a text that is too long, or no text".to_owned());
        }
        if i64::try_from(self.virtual_bytes).is_err() {
            return Err("its disk is too large".to_owned());
        }
        let count = self.files.len();
        if count == 0 || count > FILES {
            return Err(format!(
                "it has {count} files, and from 1 to {FILES} are possible"
            ));
        }
        for (number, file) in self.files.iter().enumerate() {
            let is_image = self.is_full() && number > 0 && number + 1 == count;
            let possible = [
                Some(file_name(number, Format::Qcow2)),
                is_image.then(|| file_name(number, Format::Raw)),
            ];
            if !possible.contains(&Some(file.name.clone())) {
                return Err(format!("file {number} has another name than it can have"));
            }
            if i64::try_from(file.bytes).is_err() {
                return Err(format!("file {number} is too large"));
            }
        }
        Ok(())
    }
}

impl Entry {
    /// How it is to be read.
    pub(super) fn format(&self) -> Format {
        if self.name.ends_with(".raw") {
            Format::Raw
        } else {
            Format::Qcow2
        }
    }
}

/// The name of a file.
pub(super) fn file_name(number: usize, format: Format) -> String {
    format!("{number}.{}", format.as_str())
}

/// Whether a backup can have a file of this name.
pub(super) fn is_file_name(name: &str) -> bool {
    let number = name.split('.').next().unwrap_or_default();
    let formats = [Format::Qcow2, Format::Raw];
    let is_of = |number| {
        formats
            .iter()
            .any(|format| file_name(number, *format) == name)
    };
    number
        .parse()
        .is_ok_and(|number: usize| number < FILES && is_of(number))
}

/// Digests as 64 hexadecimal digits.
mod digits {
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    use crate::images::Digest;

    pub(super) fn serialize<S: Serializer>(digest: &Digest, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&digest.hex())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Digest, D::Error> {
        let text = String::deserialize(from)?;
        Digest::from_hex(&text).map_err(D::Error::custom)
    }
}
