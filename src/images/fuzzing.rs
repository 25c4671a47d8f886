//! Translations by a file, and what registries send, without a node.
//!
//! Invariant: each text is read by the code that reads those of a node; no clients are made.
//! Failure: as for the file, and for the name.

use std::fs::File;
use std::io;
use std::io::Write as _;
use std::path::Path;

use tokio_util::sync::CancellationToken;

use super::convertible::{Convertible, Error as ConvertibleError};
use super::digest::Digest;
use super::error::{Error, Result};
use super::format::{RawData, Rules};
use super::locator::Origin;
use super::mappings::parse;
use super::partial::{Partial, Room};
use super::reference::Name;
use super::registry::manifest;
use super::settings::Protocol;
use super::translate::{Place, Translator};
use super::unpack::{Limits, Shape, head_here, unpack_here};
use crate::space::Space;

/// Where an image is by the rules of a file, or why there are none.
pub(crate) fn mapped(file: &str, name: &Name) -> Result<Result<String>, String> {
    let rules = parse(file, Protocol::Https, |_| Ok(None)).map_err(|e| e.to_string())?;
    let settings = Translator::new(Protocol::Https, &[]).map_err(|e| e.to_string())?;
    let translator = settings.with([rules], false);
    let place = translator.translate(name, Origin::Default, |_| false);
    Ok(place.map(|place| match place {
        Place::File(source) => source.url().to_string(),
        Place::Registry(place) => format!("oci://{place}"),
    }))
}

/// What a manifest of a registry leads to.
#[derive(Debug, PartialEq, Eq)]
pub enum Manifest {
    /// Another manifest.
    Index(Digest),
    /// Blobs.
    Image {
        /// The configuration of a container image.
        config: Option<Blob>,
        /// The blobs that may have the disk, the most likely first.
        candidates: Vec<Blob>,
    },
}

/// A blob of a registry.
#[derive(Debug, PartialEq, Eq)]
pub struct Blob {
    /// Of its bytes.
    pub digest: Digest,
    /// In bytes.
    pub size: u64,
    /// Whether it is an archive with the disk in it.
    pub is_layer: bool,
}

impl Blob {
    fn from_manifest(blob: &manifest::Blob) -> Self {
        Self {
            digest: blob.digest,
            size: blob.size,
            is_layer: blob.shape == Shape::Layer,
        }
    }
}

/// Reads a manifest or an index.
pub(crate) fn manifest_of(bytes: &[u8]) -> Result<Manifest, String> {
    let found = manifest::read(bytes).map_err(|e| Error::content("h/a", &e).to_string())?;
    Ok(match found {
        manifest::Manifest::Index(digest) => Manifest::Index(digest),
        manifest::Manifest::Image { config, candidates } => Manifest::Image {
            config: config.as_ref().map(Blob::from_manifest),
            candidates: candidates.iter().map(Blob::from_manifest).collect(),
        },
    })
}

/// The user that an image's configuration names.
pub(crate) fn user_of(bytes: &[u8]) -> Result<String, String> {
    manifest::user(bytes).map_err(|e| Error::content("h/a", &e).to_string())
}

/// The disk in a downloaded file of at most so many bytes; `None`: a layer without a disk. `dir` is
/// a directory for temporary files, which are removed.
pub(crate) fn disk_in(
    dir: &Path,
    packed: &[u8],
    is_layer: bool,
    max_bytes: u64,
) -> Result<Option<Vec<u8>>> {
    let failed = Error::io("use", dir);
    let opened = || -> io::Result<(File, Partial)> {
        let path = dir.join("packed");
        File::create(&path)?.write_all(packed)?;
        Ok((File::open(path)?, Partial::open(dir, "disk", dir)?))
    };
    let (file, mut disk) = opened().map_err(failed)?;
    let space = Space::default().claim(disk.path(), 0, 0);
    let limits = Limits {
        location: "h/a".to_owned(),
        max_bytes,
        rules: any_size(),
        room: Room::new(u64::MAX)
            .claim(0)
            .map_err(|full| Error::Crowded { limit: full.limit })?,
        space: space.map_err(|_| Error::NoSpace {
            dir: dir.into(),
            because: String::new(),
            required: 0,
        })?,
        stopping: CancellationToken::new(),
    };
    let found = unpack_here(file, shape(is_layer), &mut disk, limits);
    let content = || -> io::Result<Vec<u8>> {
        disk.file().set_len(disk.received())?;
        let bytes = std::fs::read(disk.path())?;
        disk.discard()?;
        Ok(bytes)
    };
    let content = content().map_err(Error::io("use", dir))?;
    Ok(found?.then_some(content))
}

/// The first bytes of the disk in the beginning of a file, and the size of the disk where that is
/// known.
pub(crate) fn beginning(packed: &[u8], is_layer: bool) -> Option<(Vec<u8>, Option<u64>)> {
    let found = head_here(packed, shape(is_layer))?;
    Some((found.head, found.length))
}

const fn any_size() -> Rules {
    Rules {
        max_virtual_bytes: u64::MAX,
        convert: Vec::new(),
        raw_data: RawData::Allow,
    }
}

/// The size of the disk in a whole file that would be converted; `None`: it has another format.
/// `read` is as of a file that has `length` bytes.
pub(crate) fn convertible(
    length: u64,
    mut read: impl FnMut(u64, usize) -> Vec<u8>,
) -> Option<(Convertible, Result<u64, ConvertibleError>)> {
    let most = usize::try_from(length.min(64 << 10)).unwrap_or_default();
    let from = Convertible::detect(&read(0, most))?;
    let checked: io::Result<_> = from.virtual_size(length, |offset, most| Ok(read(offset, most)));
    Some((from, checked.ok()?))
}

const fn shape(is_layer: bool) -> Shape {
    if is_layer { Shape::Layer } else { Shape::Disk }
}
