//! Conversions of images.
//!
//! Invariant: an image's id is its digest everywhere: in lists, as the answer of a pull, as a
//! container's `image_id`. kubelet compares these texts when it collects garbage.
//! Failure: [`Invalid`].

use cri_proto::v1;

use super::{Invalid, Result, check};
use crate::images::{Credentials, Image, Usage};
use crate::vm::{ContainerConfig, DiskUsage, ImageSpec};

/// The image of a request; `field` is where it is.
pub(in crate::cri) fn spec(field: &str, spec: Option<v1::ImageSpec>) -> Result<ImageSpec> {
    let spec = spec.ok_or_else(|| Invalid::missing(field))?;
    let of = |name| format!("{field}.{name}");
    if spec.image.is_empty() {
        return Err(Invalid::missing(&of("image")));
    }
    Ok(ImageSpec {
        image: check::text(&of("image"), spec.image)?,
        user_specified_image: check::text(&of("user_specified_image"), spec.user_specified_image)?,
        annotations: check::map(&of("annotations"), spec.annotations)?,
        runtime_handler: check::text(&of("runtime_handler"), spec.runtime_handler)?,
    })
}

/// What a client shows to a registry; `None` where there is nothing in it.
pub(in crate::cri) fn credentials(auth: v1::AuthConfig) -> Option<Credentials> {
    let credentials = Credentials {
        username: auth.username,
        password: auth.password,
        auth: auth.auth,
        identity_token: auth.identity_token,
        registry_token: auth.registry_token,
        server_address: auth.server_address,
    };
    credentials.given()
}

/// User id and name in the user of an image's configuration, `user[:group]`.
fn user(text: &str) -> (Option<v1::Int64Value>, String) {
    let user = text.split(':').next().unwrap_or_default();
    match user.parse() {
        Ok(value) => (Some(v1::Int64Value { value }), String::new()),
        Err(_) => (None, user.to_owned()),
    }
}

/// As an item of a list. The file of an image that is `pinned` stays when the image is removed:
/// clients that want room leave it alone.
pub(in crate::cri) fn item(image: &Image, pinned: bool) -> v1::Image {
    let id = image.digest.to_string();
    let (uid, username) = user(&image.user);
    v1::Image {
        id: id.clone(),
        repo_tags: image.tags.clone(),
        repo_digests: image.digests.clone(),
        size: image.size,
        uid,
        username,
        spec: Some(v1::ImageSpec {
            image: id,
            ..v1::ImageSpec::default()
        }),
        pinned,
    }
}

/// The image of a container as clients know it: by name, where it has one.
pub(super) fn of_container(config: &ContainerConfig, image: Option<&Image>) -> v1::ImageSpec {
    let spec = &config.image;
    let name = image.and_then(|image| image.tags.first());
    v1::ImageSpec {
        image: name.unwrap_or(&spec.image).clone(),
        annotations: spec.annotations.clone(),
        user_specified_image: spec.user_specified_image.clone(),
        runtime_handler: spec.runtime_handler.clone(),
        ..v1::ImageSpec::default()
    }
}

/// The name with digest, where there is one, else the id.
pub(super) fn reference(digest: &str, image: Option<&Image>) -> String {
    let named = image.and_then(|image| image.digests.first());
    named.map_or_else(|| digest.to_owned(), Clone::clone)
}

/// What images and machines take, as of `now` in nanoseconds since the epoch. Both lie on one file
/// system, which has one mount point: kubelet takes two for two file systems.
pub(in crate::cri) fn usage(
    images: &Usage,
    machines: DiskUsage,
    now: i64,
) -> v1::ImageFsInfoResponse {
    let entry = |bytes, inodes| v1::FilesystemUsage {
        timestamp: now,
        fs_id: Some(v1::FilesystemIdentifier {
            mountpoint: images.mountpoint.to_string_lossy().into_owned(),
        }),
        used_bytes: Some(v1::UInt64Value { value: bytes }),
        inodes_used: Some(v1::UInt64Value { value: inodes }),
    };
    v1::ImageFsInfoResponse {
        container_filesystems: vec![entry(machines.bytes, machines.inodes)],
        image_filesystems: vec![entry(images.used_bytes, images.inodes)],
    }
}
