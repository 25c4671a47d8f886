//! The disk over an image that tests of layers begin with.
//!
//! Invariant: its guest reads the image through it.
//! Failure: none.

use nodeapi::v1::{self, run_task_request::Kind};

/// More than the image has, so that a guest has a place of its own.
pub(crate) const SIZE: u64 = 128 << 20;
/// What the image has, as the guest reads it from the disk: each boot writes beside it.
pub(crate) const IMAGE_SUM: &str = "echo 3 >/proc/sys/vm/drop_caches; sha256sum </boot/vmlinuz";

/// A disk over the image.
pub(crate) fn linked(image: &str) -> Kind {
    Kind::Provision(v1::Provision {
        image: image.to_owned(),
        size_bytes: SIZE,
        mode: v1::provision::Mode::Linked.into(),
        vm_name: "default/vm".to_owned(),
        image_url: String::new(),
        image_tls_secret: String::new(),
    })
}
