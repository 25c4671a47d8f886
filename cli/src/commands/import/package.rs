//! An OVF package: a descriptor, perhaps a manifest, and the files that the descriptor names; in one
//! archive (OVA) or side by side in a directory.
//!
//! Invariant: only files beside the descriptor are opened, and no symbolic link to another one; the
//! descriptor is used only if the manifest, where there is one, has its checksum.
//! Failure: [`PackageError`].

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::libc::{O_NOFOLLOW, O_NONBLOCK};

use super::archive::{self, ArchiveError, Entry, is_plain};
use super::manifest::{Manifest, ManifestError};
use super::shown;

/// Longest descriptor and manifest.
const DESCRIPTOR: u64 = 4 << 20;
const MANIFEST: u64 = 1 << 20;

/// Why a package is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum PackageError {
    #[error("failed to read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} is no plain file", .0.display())]
    NoFile(PathBuf),
    #[error("{} is neither an .ova nor an .ovf file", .0.display())]
    Name(PathBuf),
    #[error("{} cannot be imported", path.display())]
    Archive {
        path: PathBuf,
        #[source]
        source: ArchiveError,
    },
    #[error("the archive has {0} files with the suffix .ovf, and not one")]
    Descriptors(usize),
    #[error("{0:?} is longer than {1} bytes")]
    Long(String, u64),
    #[error("{0:?} is not in UTF-8")]
    Text(String),
    #[error("the descriptor names the file {0:?}, which is no file beside it")]
    Reference(String),
    #[error("the descriptor names the file {0:?}, which the package does not have")]
    Missing(String),
    #[error(transparent)]
    Manifest(#[from] ManifestError),
}

/// Where the files of a package are.
#[derive(Debug)]
enum Files {
    Archive { path: PathBuf, entries: Vec<Entry> },
    Directory(PathBuf),
}

/// A file of a package that is open.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) name: String,
    pub(super) path: PathBuf,
    pub(super) file: File,
    /// Where it begins within `file`.
    pub(super) offset: u64,
    pub(super) size: u64,
}

/// A package whose descriptor is read.
#[derive(Debug)]
pub(super) struct Package {
    pub(super) descriptor: String,
    pub(super) manifest: Option<Manifest>,
    /// Whether it has a signature.
    pub(super) is_signed: bool,
    files: Files,
}

impl Package {
    pub(super) fn open(path: &Path) -> Result<Self, PackageError> {
        let suffix = path.extension().unwrap_or_default().to_ascii_lowercase();
        let (files, name) = match suffix.to_str() {
            Some("ova") => in_archive(path)?,
            Some("ovf") => beside(path)?,
            _ => return Err(PackageError::Name(path.to_owned())),
        };
        let descriptor = files.text(&name, DESCRIPTOR)?;
        let descriptor = descriptor.ok_or_else(|| PackageError::Missing(name.clone()))?;
        let stem = name.get(..name.len().saturating_sub(".ovf".len()));
        let stem = stem.unwrap_or_default();
        let manifest = files.text(&format!("{stem}.mf"), MANIFEST)?;
        let manifest = manifest.map(|text| Manifest::parse(&text)).transpose()?;
        if let Some(manifest) = &manifest {
            let checksum = manifest.checksum(&name)?;
            checksum.check(&name, descriptor.as_bytes())?;
        }
        let certificate = files.part(&format!("{stem}.cert"))?;
        Ok(Self {
            descriptor,
            manifest,
            is_signed: certificate.is_some(),
            files,
        })
    }

    /// The file that a descriptor names by a URI.
    pub(super) fn file(&self, reference: &str) -> Result<Part, PackageError> {
        let decoded = decoded(reference);
        let names = [Some(reference), decoded.as_deref()];
        for name in names.into_iter().flatten() {
            if !is_plain(name) {
                return Err(PackageError::Reference(shown(name)));
            }
            if let Some(part) = self.files.part(name)? {
                return Ok(part);
            }
        }
        Err(PackageError::Missing(shown(reference)))
    }
}

/// The entries of an archive, and the name of its descriptor.
fn in_archive(path: &Path) -> Result<(Files, String), PackageError> {
    let mut file = open(path, 0)?.ok_or_else(|| PackageError::NoFile(path.to_owned()))?;
    let length = length(&file, path)?;
    let entries = archive::entries(&mut file, length);
    let entries = entries.map_err(|source| PackageError::Archive {
        path: path.to_owned(),
        source,
    })?;
    let names = entries.iter().map(|entry| &entry.name);
    let mut descriptors = names.filter(|name| name.to_ascii_lowercase().ends_with(".ovf"));
    let name = descriptors.next().cloned();
    let more = descriptors.count();
    match name.filter(|_| more == 0) {
        Some(name) => {
            let path = path.to_owned();
            Ok((Files::Archive { path, entries }, name))
        }
        None if more > 0 => Err(PackageError::Descriptors(more + 1)),
        None => Err(PackageError::Descriptors(0)),
    }
}

/// The directory of a descriptor, and its name there.
fn beside(path: &Path) -> Result<(Files, String), PackageError> {
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| PackageError::Name(path.to_owned()))?;
    let directory = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    let directory = directory.unwrap_or_else(|| Path::new("."));
    Ok((Files::Directory(directory.to_owned()), name.to_owned()))
}

impl Files {
    /// A file by its name; none: the package does not have it.
    fn part(&self, name: &str) -> Result<Option<Part>, PackageError> {
        let (path, place) = match self {
            Self::Archive { path, entries } => {
                let Some(entry) = entries.iter().find(|entry| entry.name == name) else {
                    return Ok(None);
                };
                (path.clone(), Some((entry.offset, entry.size)))
            }
            Self::Directory(directory) => (directory.join(name), None),
        };
        let flags = if place.is_none() { O_NOFOLLOW } else { 0 };
        let Some(file) = open(&path, flags)? else {
            return Ok(None);
        };
        let length = length(&file, &path)?;
        let (offset, size) = place.unwrap_or((0, length));
        Ok(Some(Part {
            name: name.to_owned(),
            path,
            file,
            offset,
            size,
        }))
    }

    /// All of a short file.
    fn text(&self, name: &str, most: u64) -> Result<Option<String>, PackageError> {
        let Some(mut part) = self.part(name)? else {
            return Ok(None);
        };
        if part.size > most {
            return Err(PackageError::Long(shown(name), most));
        }
        let mut bytes = Vec::new();
        let read = part
            .file
            .seek(SeekFrom::Start(part.offset))
            .and_then(|_| part.file.take(part.size).read_to_end(&mut bytes));
        read.map_err(|source| PackageError::Read {
            path: part.path,
            source,
        })?;
        let text = String::from_utf8(bytes);
        text.map(Some).map_err(|_| PackageError::Text(shown(name)))
    }
}

/// Opens a plain file, never a device or a pipe; none: there is no file of that name.
fn open(path: &Path, flags: i32) -> Result<Option<File>, PackageError> {
    let mut options = OpenOptions::new();
    let opened = options
        .read(true)
        .custom_flags(flags | O_NONBLOCK)
        .open(path);
    match opened {
        Ok(file) if file.metadata().is_ok_and(|is| is.is_file()) => Ok(Some(file)),
        Ok(_) => Err(PackageError::NoFile(path.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.raw_os_error() == Some(nix::libc::ELOOP) => {
            Err(PackageError::NoFile(path.to_owned()))
        }
        Err(source) => Err(PackageError::Read {
            path: path.to_owned(),
            source,
        }),
    }
}

fn length(file: &File, path: &Path) -> Result<u64, PackageError> {
    let about = file.metadata().map_err(|source| PackageError::Read {
        path: path.to_owned(),
        source,
    })?;
    Ok(about.len())
}

/// A URI with `%20` and the like replaced; none where there is nothing to replace, or no text comes out.
fn decoded(reference: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = reference.as_bytes();
    let mut is_changed = false;
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..2).filter(|_| *first == b'%');
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        let is_hex = |digits: &&str| digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let byte = digits.filter(is_hex);
        match byte.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
                is_changed = true;
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).ok().filter(|_| is_changed)
}

#[cfg(test)]
mod tests;
