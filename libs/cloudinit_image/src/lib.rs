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
//!     name: "user-data",
//!     content: b"#cloud-config\nhostname: web\n".to_vec(),
//! };
//! let iso = image(NO_CLOUD, vec![user_data])?;
//! assert_eq!(iso.len() % 2048, 0);
//! # Ok::<(), cloudinit_image::Error>(())
//! ```

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

/// Most bytes of all files of an image together: a Secret at its largest, and what annotations
/// hold.
pub const MAX_BYTES: usize = 4 * 1024 * 1024;

/// Label by which cloud-init knows its NoCloud volume.
pub const NO_CLOUD: &str = "cidata";

/// Size of a logical block.
const BLOCK: usize = 2048;
/// Readable by root of the guest only.
const FILE_MODE: u32 = 0o100_400;

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
    /// Its name, in the top directory.
    pub name: &'static str,
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
        entries: files.into_iter().map(entry).collect(),
    };
    let mut image = Cursor::new(Vec::with_capacity(size + 64 * BLOCK));
    IsoImageWriter::create(&mut image, tree, options(label)).map_err(Error::Layout)?;
    let mut image = image.into_inner();
    image.resize(image.len().next_multiple_of(BLOCK), 0);
    Ok(image)
}

fn entry(file: File) -> InputEntry {
    InputEntry {
        name: Arc::new(file.name.to_owned()),
        kind: InputEntryKind::File(file.content),
        metadata: InputMetadata {
            mode: Some(FILE_MODE),
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
