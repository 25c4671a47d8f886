//! Names of images that are no names of a registry: of one that is given by its URL, and of one that was
//! uploaded to nodes.
//!
//! kubelet accepts only names in the form of a container image reference: lower case, no query, no
//! scheme. A URL has a name that is made of its hash; the pod's annotation `vmlet.dev/image-url`
//! gives the URL itself.
//!
//! Invariant: a name represents one URL; a node compares both before it uses the URL.
//! Failure: none here.

use std::fmt::Write;

use sha2::{Digest, Sha256};

/// Longest URL of an image, in bytes.
pub const LONGEST_IMAGE_URL: usize = 2048;

/// What the names of URLs begin with.
const PREFIX: &str = "vmlet.dev/url/";

/// What the names of uploaded images begin with: no host can have such a name.
pub const UPLOADED_IMAGE: &str = "vmlet.dev/upload.invalid/";

/// Whether an image was uploaded to nodes, which alone have it.
#[must_use]
pub fn is_uploaded_image(name: &str) -> bool {
    name.starts_with(UPLOADED_IMAGE)
}

/// The name of the image at that URL.
#[must_use]
pub fn url_image_name(url: &str) -> String {
    let digest = Sha256::digest(url.as_bytes());
    let mut name = PREFIX.to_owned();
    for byte in digest {
        // A string never fails.
        let _ = write!(name, "{byte:02x}");
    }
    name
}

/// Whether a name, without tag and digest, has the form of one that is made of a URL's hash.
#[must_use]
pub fn is_url_image_name(name: &str) -> bool {
    name.starts_with(PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_url_has_a_name_of_its_own_that_kubelet_accepts() {
        let name = url_image_name("https://Host.example:8443/Debian.qcow2?version=12");
        let hash = name.strip_prefix("vmlet.dev/url/").unwrap();
        assert_eq!(hash.len(), 64);
        let is_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        assert!(hash.bytes().all(is_hex), "{name}");
        assert!(is_url_image_name(&name) && !is_url_image_name("vmlet.dev/urls"));
        assert_ne!(
            name,
            url_image_name("http://Host.example:8443/Debian.qcow2?version=12")
        );
        // Computed by sha256sum: the name must be the same in every version.
        assert_eq!(
            url_image_name("https://h.example/a"),
            "vmlet.dev/url/dfb4b664af86c7dfd3f8c3bf15cdc35730fa071605aebfc6da480edd893daa3b"
        );
    }
}
