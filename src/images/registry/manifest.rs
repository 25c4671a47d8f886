//! Reads manifests: which of the platforms of an index is ours, which layers may have the disk.
//!
//! Invariant: pure functions of bytes whose digest was checked; sizes and digests are taken for
//! what a download must have, never for memory.
//! Failure: a sentence about the image; what it repeats of one is shortened.

use oci_spec::image::{Descriptor, ImageConfiguration, ImageIndex, ImageManifest, MediaType};

use super::super::digest::Digest;
use super::super::unpack::Shape;

/// Media types that are accepted as a manifest, most telling first.
pub(super) const MANIFESTS: &str = "application/vnd.oci.image.manifest.v1+json, \
     application/vnd.oci.image.index.v1+json, \
     application/vnd.docker.distribution.manifest.v2+json, \
     application/vnd.docker.distribution.manifest.list.v2+json";

const DOCKER_CONFIG: &str = "application/vnd.docker.container.image.v1+json";
/// Beginnings of the media types of layers.
const LAYERS: [&str; 4] = [
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.nondistributable.v1.tar",
    "application/vnd.docker.image.rootfs.diff.tar",
    "application/vnd.docker.image.rootfs.foreign.diff.tar",
];
/// End of the media type of a layer that needs a key.
const ENCRYPTED: &str = "+encrypted";
/// Layers of a container disk are few; a container image may have many.
const MOST_LAYERS: usize = 16;
/// Longest user and group, in bytes: Linux has names of 32, each.
const LONGEST_USER: usize = 256;
/// Most characters of a platform's name in an error.
const LONGEST_PLATFORM: usize = 32;

/// A blob of a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::images) struct Blob {
    pub(in crate::images) digest: Digest,
    pub(in crate::images) size: u64,
    pub(in crate::images) shape: Shape,
}

/// What a manifest leads to.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::images) enum Manifest {
    /// The manifest for our platform.
    Index(Digest),
    Image {
        /// The configuration of a container image, which names its user.
        config: Option<Blob>,
        /// The blobs that may have the disk, the most likely first.
        candidates: Vec<Blob>,
    },
}

/// Reads a manifest or an index.
pub(in crate::images) fn read(bytes: &[u8]) -> Result<Manifest, String> {
    let kind: Kind = serde_json::from_slice(bytes)
        .map_err(|_| "its manifest is no manifest of an image".to_owned())?;
    if kind.schema_version != 2 {
        return Err("its manifest has another schema version than 2".to_owned());
    }
    match (kind.manifests.is_some(), kind.layers.is_some()) {
        (true, false) => index(bytes).map(Manifest::Index),
        (false, true) => image(bytes),
        _ => Err("its manifest is neither of an image nor an index".to_owned()),
    }
}

/// The user that an image's configuration names; empty where there is none.
pub(in crate::images) fn user(bytes: &[u8]) -> Result<String, String> {
    let config: ImageConfiguration = serde_json::from_slice(bytes)
        .map_err(|_| "its configuration is none of an image".to_owned())?;
    let user = config.config().as_ref().and_then(|c| c.user().clone());
    let user = user.unwrap_or_default();
    if user.len() > LONGEST_USER || user.contains(char::is_control) {
        Err(format!(
            "its configuration names a user with control characters or of more than \
             {LONGEST_USER} bytes"
        ))
    } else {
        Ok(user)
    }
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Kind {
    schema_version: u32,
    manifests: Option<serde::de::IgnoredAny>,
    layers: Option<serde::de::IgnoredAny>,
}

fn index(bytes: &[u8]) -> Result<Digest, String> {
    let index: ImageIndex =
        serde_json::from_slice(bytes).map_err(|_| "its index cannot be read".to_owned())?;
    let ours = architecture();
    let rank = |manifest: &&Descriptor| match manifest.platform() {
        Some(platform) if platform.architecture().to_string() != ours => None,
        Some(platform) if platform.os().to_string() == "linux" => Some(0),
        Some(_) => Some(1),
        // Of one alone nothing else is to be said.
        None => (index.manifests().len() == 1).then_some(2),
    };
    let candidates = index.manifests().iter().filter(|m| rank(m).is_some());
    let Some(best) = candidates.min_by_key(|m| rank(m)) else {
        let mut others: Vec<_> = index
            .manifests()
            .iter()
            .filter_map(|m| m.platform().as_ref())
            .map(|platform| platform.architecture().to_string())
            .take(8)
            .map(|name| name.chars().take(LONGEST_PLATFORM).collect::<String>())
            .collect();
        others.dedup();
        let others = others.join(", ");
        return Err(format!("it has nothing for {ours}, only for: {others}"));
    };
    digest(best)
}

fn image(bytes: &[u8]) -> Result<Manifest, String> {
    let manifest: ImageManifest =
        serde_json::from_slice(bytes).map_err(|_| "its manifest cannot be read".to_owned())?;
    let is_container_image = match manifest.config().media_type() {
        MediaType::ImageConfig => true,
        other => other.to_string() == DOCKER_CONFIG,
    };
    let layers = manifest.layers();
    let mut candidates = Vec::new();
    for layer in layers.iter().rev() {
        let kind = layer.media_type().to_string();
        if kind.ends_with(ENCRYPTED) {
            return Err("its layers are encrypted, which nodes cannot read".to_owned());
        }
        if is_layer(&kind) {
            candidates.push(blob(layer, Shape::Layer)?);
        }
    }
    if candidates.is_empty() {
        match layers.as_slice() {
            [disk] => candidates.push(blob(disk, Shape::Disk)?),
            [] => return Err("it has no layers".to_owned()),
            more => {
                let count = more.len();
                return Err(format!(
                    "it is an artifact of {count} files, not of one disk"
                ));
            }
        }
    }
    if candidates.len() > MOST_LAYERS {
        let count = candidates.len();
        return Err(format!(
            "it has {count} layers: a container disk has one, or a few; is it a container image?"
        ));
    }
    let config = if is_container_image {
        Some(blob(manifest.config(), Shape::Disk)?)
    } else {
        None
    };
    Ok(Manifest::Image { config, candidates })
}

/// Whether it is an archive of files, in whatever compression: that is found by content.
fn is_layer(kind: &str) -> bool {
    LAYERS.iter().any(|layers| kind.starts_with(layers))
}

fn blob(descriptor: &Descriptor, shape: Shape) -> Result<Blob, String> {
    Ok(Blob {
        digest: digest(descriptor)?,
        size: descriptor.size(),
        shape,
    })
}

fn digest(descriptor: &Descriptor) -> Result<Digest, String> {
    let text = descriptor.digest().to_string();
    let parsed = text.parse();
    parsed.map_err(|_| "its manifest names a file by another digest than sha256".to_owned())
}

/// As images name ours.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests;
