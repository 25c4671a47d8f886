//! The table of contents of an OVA file: a tar archive with an OVF package.
//!
//! Invariant: nothing is unpacked. An entry is a plain name with a range of bytes that lies within the
//! file; what the archive has besides plain files is refused. Memory does not depend on the archive.
//! Failure: [`ArchiveError`].

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};

use tar::{EntryType, Header};

use super::shown;

const BLOCK: u64 = 512;
/// Most entries, and most bytes of names and attributes of one of them.
const ENTRIES: usize = 1000;
const ATTRIBUTES: u64 = 64 << 10;

/// Why an archive is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum ArchiveError {
    #[error("failed to read it")]
    Read(#[from] io::Error),
    #[error("it is no tar archive, as an OVA file is")]
    NoArchive,
    #[error("its header at byte {0} is damaged")]
    Damaged(u64),
    #[error("it ends within {0:?}: the file is incomplete")]
    CutOff(String),
    #[error(
        "its entry {0:?} is no plain file of the package: an OVA file has no directories and links"
    )]
    Entry(String),
    #[error("it has {0:?} twice")]
    Twice(String),
    #[error("it has more than {ENTRIES} entries")]
    Many,
}

/// A file in an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) offset: u64,
    pub(super) size: u64,
}

/// What an extended header says of the entry behind it.
#[derive(Debug, Default)]
struct Extended {
    name: Option<Vec<u8>>,
    size: Option<u64>,
}

/// The entries of an archive of `length` bytes.
pub(super) fn entries(file: &mut File, length: u64) -> Result<Vec<Entry>, ArchiveError> {
    let mut all: Vec<Entry> = Vec::new();
    let mut extended = Extended::default();
    let mut at = 0;
    let mut headers = 0;
    while let Some(header) = header(file, at, length)? {
        headers += 1;
        if headers > 2 * ENTRIES {
            return Err(ArchiveError::Many);
        }
        let kind = header.entry_type();
        let offset = at + BLOCK;
        let stored = header.entry_size();
        let stored = stored.map_err(|_| ArchiveError::Damaged(at))?;
        let is_extension = kind.is_pax_local_extensions()
            || kind.is_pax_global_extensions()
            || kind.is_gnu_longname();
        let name = extended.name.clone();
        let name = name.unwrap_or_else(|| header.path_bytes().into_owned());
        let name = String::from_utf8_lossy(&name).into_owned();
        let size = extended.size.filter(|_| !is_extension).unwrap_or(stored);
        let end = offset.checked_add(size).filter(|end| *end <= length);
        let end = end.ok_or_else(|| ArchiveError::CutOff(shown(&name)))?;
        if is_extension {
            extended.read(file, kind, offset, size, at)?;
        } else {
            extended = Extended::default();
            let name = name.strip_prefix("./").unwrap_or(&name).to_owned();
            if !matches!(kind, EntryType::Regular | EntryType::Continuous) || !is_plain(&name) {
                return Err(ArchiveError::Entry(shown(&name)));
            }
            if all.iter().any(|entry| entry.name == name) {
                return Err(ArchiveError::Twice(shown(&name)));
            }
            if all.len() == ENTRIES {
                return Err(ArchiveError::Many);
            }
            all.push(Entry { name, offset, size });
        }
        at = end.next_multiple_of(BLOCK);
    }
    Ok(all)
}

/// The header at a place; none at the end of the archive.
fn header(file: &mut File, at: u64, length: u64) -> Result<Option<Header>, ArchiveError> {
    if at + BLOCK > length {
        // Programs that write archives leave out the end now and then.
        return match at {
            0 => Err(ArchiveError::NoArchive),
            _ => Ok(None),
        };
    }
    let mut header = Header::new_old();
    file.seek(SeekFrom::Start(at))?;
    file.read_exact(header.as_mut_bytes())?;
    if header.as_bytes().iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    let field = 148..156;
    let bytes = header.as_bytes().iter().enumerate();
    let sum: u32 = bytes
        .map(|(place, byte)| {
            let counted = if field.contains(&place) { b' ' } else { *byte };
            u32::from(counted)
        })
        .sum();
    match header.cksum() {
        Ok(said) if said == sum => Ok(Some(header)),
        _ if at == 0 => Err(ArchiveError::NoArchive),
        _ => Err(ArchiveError::Damaged(at)),
    }
}

impl Extended {
    fn read(
        &mut self,
        file: &mut File,
        kind: EntryType,
        offset: u64,
        size: u64,
        at: u64,
    ) -> Result<(), ArchiveError> {
        if size > ATTRIBUTES {
            return Err(ArchiveError::Damaged(at));
        }
        let mut bytes = vec![0; usize::try_from(size).unwrap_or_default()];
        file.seek(SeekFrom::Start(offset))?;
        file.read_exact(&mut bytes)?;
        if kind.is_gnu_longname() {
            let end = bytes.iter().position(|byte| *byte == 0);
            bytes.truncate(end.unwrap_or(bytes.len()));
            self.name = Some(bytes);
        } else if kind.is_pax_local_extensions() {
            for pair in tar::PaxExtensions::new(&bytes) {
                let pair = pair.map_err(|_| ArchiveError::Damaged(at))?;
                match pair.key_bytes() {
                    b"path" => self.name = Some(pair.value_bytes().to_owned()),
                    b"size" => {
                        let size = pair.value().ok().and_then(|text| text.parse().ok());
                        self.size = Some(size.ok_or(ArchiveError::Damaged(at))?);
                    }
                    // The content would not be as it is stored.
                    key if key.starts_with(b"GNU.sparse") => {
                        return Err(ArchiveError::Entry("a sparse file".to_owned()));
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

/// Whether it names a file beside the descriptor, and nothing else.
pub(super) fn is_plain(name: &str) -> bool {
    let is_odd = |c: char| c.is_control() || c == '/' || c == '\\';
    !name.is_empty() && name != "." && name != ".." && !name.contains(is_odd)
}

#[cfg(test)]
mod tests;
