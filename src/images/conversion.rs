//! What converts images of other formats to qcow2: the seam to `qemu-img`.
//!
//! Invariant: only files that [`super::convertible`] accepted are handed over, with the format that
//! was found there.
//! Failure: [`Unconverted`].

use std::path::PathBuf;

use futures_util::future::BoxFuture;

use super::convertible::Convertible;

/// A conversion.
#[derive(Debug, Clone)]
pub struct Conversion {
    /// The image; it stays as it is.
    pub source: PathBuf,
    /// Its format.
    pub from: Convertible,
    /// The file that becomes a qcow2 disk; it exists and is empty.
    pub target: PathBuf,
    /// Most bytes that it may have.
    pub most: u64,
}

/// A conversion that did not succeed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unconverted {
    /// The disk reached the limit.
    #[error("the disk is too large")]
    TooLarge,
    /// What the program or the kernel reported.
    #[error("{0}")]
    Failed(String),
}

/// Converts images.
pub trait Converter: std::fmt::Debug + Send + Sync {
    /// Writes the whole image to the target. The work ends with the future.
    fn convert<'a>(&'a self, work: &'a Conversion) -> BoxFuture<'a, Result<(), Unconverted>>;
}
