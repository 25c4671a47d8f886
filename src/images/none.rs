//! The image `vmlet.dev/none` of a pod whose root disk has its content already.
//!
//! Invariant: kubelet insists on an image for each container, and on its presence; this one is
//! always here, has no file, and nothing can be made from it.
//! Failure: none; a lookup in the store does not find it.

use sha2::{Digest as _, Sha256};

use super::{Digest, Format, Image, Reference};

/// What clients see as its size: kubelet refuses an image of 0 bytes.
const LEAST_SIZE: u64 = 1;

/// Whether a name, with or without a tag, or an id means it.
pub fn is_none(name: &str) -> bool {
    match Reference::parse(name) {
        Ok(Reference::Named(name)) => name.repository() == podspec::names::NO_IMAGE,
        Ok(Reference::Id(digest)) => digest == digest_of_nothing(),
        Err(_) => false,
    }
}

/// The image as clients see it.
pub fn none() -> Image {
    Image {
        digest: digest_of_nothing(),
        size: LEAST_SIZE,
        virtual_size: 0,
        format: Format::Raw,
        path: std::path::PathBuf::new(),
        tags: vec![format!("{}:latest", podspec::names::NO_IMAGE)],
        digests: Vec::new(),
        user: String::new(),
    }
}

fn digest_of_nothing() -> Digest {
    Digest::from_bytes(Sha256::digest([]).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubelet_takes_it() {
        let image = none();
        assert!(image.size > 0 && !image.digest.to_string().is_empty());
    }

    #[test]
    fn it_is_known_by_name_and_by_id() {
        let id = none().digest.to_string();
        for name in ["vmlet.dev/none", "vmlet.dev/none:latest", &id] {
            assert!(is_none(name), "{name}");
        }
        for other in [
            "vmlet.dev/nonexistent",
            "none",
            "example.org/none",
            "",
            "vmlet.dev/none/x",
        ] {
            assert!(!is_none(other), "{other}");
        }
    }
}
