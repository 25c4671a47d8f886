//! Seed images: the small volumes on which cloud-init finds what a guest is to become at its first
//! boot.
//!
//! Invariant: an image has the volume label and the files that were named, byte for byte, under
//! their names in Rock Ridge and in Joliet; contents show in no debug output.
//! Failure: [`Error`]; nothing is written anywhere but into memory.
//!
//! # Example
//!
//! ```
//! use cloudinit_image::{File, NO_CLOUD, image};
//!
//! let user_data = File {
//!     name: "user-data".to_owned(),
//!     content: b"#cloud-config\nhostname: web\n".to_vec(),
//! };
//! let iso = image(NO_CLOUD, vec![user_data])?;
//! assert_eq!(iso.len() % 2048, 0);
//! # Ok::<(), cloudinit_image::Error>(())
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::io::Cursor;
use std::sync::Arc;

use hadris_iso::joliet::JolietLevel;
use hadris_iso::read::PathSeparator;
use hadris_iso::rrip::RripOptions;
use hadris_iso::write::options::{BaseIsoLevel, CreationFeatures, IsoFormatOptions};
use hadris_iso::write::{
    InputEntry, InputEntryKind, InputMetadata, InputTree, IsoCreationError, IsoImageWriter,
};

/// Most bytes of all files of an image together: what annotations and sources hold, the agent, and
/// the files that a pod mounts.
pub const MAX_BYTES: usize = 16 * 1024 * 1024;

/// Label by which cloud-init knows its NoCloud volume.
pub const NO_CLOUD: &str = "cidata";

/// Label by which cloud-init knows OpenStack's config drive.
pub const CONFIG_DRIVE: &str = "config-2";

/// Size of a logical block.
const BLOCK: usize = 2048;
/// Readable by root of the guest only.
const FILE_MODE: u32 = 0o100_400;
const DIRECTORY_MODE: u32 = 0o040_500;

/// An image that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The files are too large together.
    #[error("the guest's data is {size} bytes, at most {MAX_BYTES} are possible")]
    TooLarge {
        /// Their size.
        size: usize,
    },
    /// The image could not be laid out.
    #[error("lay out the seed image")]
    Layout(#[source] IsoCreationError),
}

/// A file of an image.
#[derive(Clone, PartialEq, Eq)]
pub struct File {
    /// Its name, after the names of its directories and slashes: `openstack/latest/user_data`.
    pub name: String,
    /// What is in it.
    pub content: Vec<u8>,
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} bytes)", self.name, self.content.len())
    }
}

/// The image of a volume with this label and these files. Its size follows from theirs.
///
/// # Errors
///
/// [`Error`] when they are too large.
pub fn image(label: &str, files: Vec<File>) -> Result<Vec<u8>, Error> {
    let size = files.iter().map(|file| file.content.len()).sum();
    if size > MAX_BYTES {
        return Err(Error::TooLarge { size });
    }
    let tree = InputTree {
        path_separator: PathSeparator::ForwardSlash,
        entries: entries(files),
    };
    let mut image = Cursor::new(Vec::with_capacity(size + 64 * BLOCK));
    IsoImageWriter::create(&mut image, tree, options(label)).map_err(Error::Layout)?;
    let mut image = image.into_inner();
    image.resize(image.len().next_multiple_of(BLOCK), 0);
    Ok(image)
}

/// The files of a directory and of those below it.
fn entries(files: Vec<File>) -> Vec<InputEntry> {
    let mut below: BTreeMap<String, Vec<File>> = BTreeMap::new();
    let mut all = Vec::new();
    for file in files {
        match file.name.split_once('/') {
            None => {
                let kind = InputEntryKind::File(file.content);
                all.push(entry(file.name, kind, FILE_MODE));
            }
            Some((directory, name)) => {
                let files = below.entry(directory.to_owned()).or_default();
                let name = name.to_owned();
                let content = file.content;
                files.push(File { name, content });
            }
        }
    }
    let directories = below.into_iter().map(|(name, files)| {
        let kind = InputEntryKind::Directory(entries(files));
        entry(name, kind, DIRECTORY_MODE)
    });
    all.extend(directories);
    all
}

fn entry(name: String, kind: InputEntryKind, mode: u32) -> InputEntry {
    InputEntry {
        name: Arc::new(name),
        kind,
        metadata: InputMetadata {
            mode: Some(mode),
            uid: Some(0),
            gid: Some(0),
            ..InputMetadata::default()
        },
    }
}

fn options(label: &str) -> IsoFormatOptions {
    IsoFormatOptions {
        volume_name: label.to_owned(),
        system_id: None,
        volume_set_id: None,
        publisher_id: None,
        preparer_id: None,
        application_id: None,
        sector_size: BLOCK,
        features: CreationFeatures {
            filenames: BaseIsoLevel::Level1 {
                supports_lowercase: false,
                supports_rrip: true,
            },
            joliet: Some(JolietLevel::Level3),
            rock_ridge: Some(RripOptions::default()),
            ..CreationFeatures::default()
        },
        path_separator: PathSeparator::ForwardSlash,
        // The label that cloud-init looks for is lower case.
        strict_charset: false,
    }
}

#[cfg(test)]
mod tests;
