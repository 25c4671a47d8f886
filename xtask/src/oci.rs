//! Writes container images: as OCI archives that `ctr images import` reads, and into the storage of a
//! registry. Reads these archives.
//!
//! Invariant: the same tree, configuration and name give the same bytes, on every machine and at
//! any time; the finished archive appears by one rename.
//! Failure: names the file that cannot be read or written; an older archive stays in place.

mod archive;
mod blob;
mod read;
mod storage;
mod tree;

pub(crate) use self::archive::{Image, write};
pub(crate) use self::blob::sha256;
pub(crate) use self::read::Archived;
pub(crate) use self::storage::Storage;
pub(crate) use self::tree::Tree;

#[cfg(test)]
mod tests;
