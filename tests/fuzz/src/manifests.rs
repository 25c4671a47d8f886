//! What a registry says of an image: manifests, indexes and configurations.
//!
//! Invariant: what is found is what a reader of JSON finds in the same text, where the fields are
//! looked up by the names of the OCI and Docker specifications; a disk is looked for in few blobs.
//! A refusal is a bounded line.
//! Failure: a panic.

use daemon::fuzzing::{Blob, Manifest, manifest, user};
use serde_json::Value;

const LONGEST: usize = 1024;
const MOST_LAYERS: usize = 16;
const LONGEST_USER: usize = 256;

const CONFIGS: &[&str] = &[
    "application/vnd.oci.image.config.v1+json",
    "application/vnd.docker.container.image.v1+json",
];
const LAYERS: &[&str] = &[
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.oci.image.layer.v1.tar+zstd",
    "application/vnd.oci.image.layer.nondistributable.v1.tar",
    "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip",
    "application/vnd.oci.image.layer.nondistributable.v1.tar+zstd",
];
const DOCKER_LAYERS: &str = "application/vnd.docker.image.rootfs.diff.tar";

/// How the plain reading refuses a number that no float holds.
const LARGE_NUMBER: &str = "number out of range";

/// A reply of a registry.
///
/// # Panics
///
/// When it leads to something that is not in it, or a refusal is no bounded line.
pub fn image_manifests(input: &[u8]) {
    // Texts that are not used may have any bytes.
    let readable = String::from_utf8_lossy(input);
    let value = || -> Option<Value> {
        let read = serde_json::from_str(&readable);
        // The plain reading has no place for such a number, which is in a field that is not used.
        let is_other = |error: &serde_json::Error| !error.to_string().starts_with(LARGE_NUMBER);
        assert!(!read.as_ref().is_err_and(is_other), "{read:?}");
        read.ok()
    };
    match user(input) {
        Ok(user) => {
            assert!(user.len() <= LONGEST_USER && !user.contains(char::is_control));
            if let Some(config) = value() {
                assert_eq!(config["config"]["User"].as_str().unwrap_or_default(), user);
            }
        }
        Err(reason) => refusal(&reason),
    }
    match manifest(input) {
        Ok(found) => {
            let Some(text) = value() else { return };
            assert_eq!(text["schemaVersion"], 2);
            match found {
                Manifest::Index(digest) => {
                    assert!(text["layers"].is_null());
                    assert_eq!(best(&text["manifests"]), Some(digest.to_string().as_str()));
                }
                Manifest::Image { config, candidates } => {
                    assert!(text["manifests"].is_null());
                    image(&text, config.as_ref(), &candidates);
                }
            }
        }
        Err(reason) => refusal(&reason),
    }
}

fn refusal(reason: &str) {
    assert!(reason.len() <= LONGEST, "{reason}");
    assert!(!reason.contains(char::is_control), "{reason:?}");
}

/// The digest of the manifest for this node in those of an index.
fn best(manifests: &Value) -> Option<&str> {
    let manifests = manifests.as_array()?;
    let ours = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let fits = |entry: &&Value| entry["platform"]["architecture"] == ours;
    let linux = |entry: &&Value| entry["platform"]["os"] == "linux";
    let first = manifests.iter().find(|entry| fits(entry) && linux(entry));
    let first = first.or_else(|| manifests.iter().find(fits));
    let found = match (first, manifests.as_slice()) {
        (Some(first), _) => first,
        (None, [only]) if only["platform"].is_null() => only,
        _ => return None,
    };
    found["digest"].as_str()
}

fn image(text: &Value, config: Option<&Blob>, candidates: &[Blob]) {
    let kind = |descriptor: &Value| descriptor["mediaType"].as_str().unwrap_or("").to_owned();
    let expected = CONFIGS.contains(&kind(&text["config"]).as_str());
    assert_eq!(config.is_some(), expected);
    if let Some(config) = config {
        same(config, &text["config"]);
    }
    let all = text["layers"].as_array().map_or(&[][..], Vec::as_slice);
    let is_layer = |layer: &&Value| {
        let kind = kind(layer);
        LAYERS.contains(&kind.as_str()) || kind.starts_with(DOCKER_LAYERS)
    };
    let layers: Vec<_> = all.iter().rev().filter(is_layer).collect();
    let (wanted, are_layers) = if layers.is_empty() {
        (all.iter().collect(), false)
    } else {
        (layers, true)
    };
    assert!((1..=MOST_LAYERS).contains(&candidates.len()));
    assert!(are_layers || candidates.len() == 1);
    assert_eq!(candidates.len(), wanted.len());
    for (blob, layer) in candidates.iter().zip(wanted) {
        assert_eq!(blob.is_layer, are_layers);
        same(blob, layer);
    }
}

fn same(blob: &Blob, descriptor: &Value) {
    assert_eq!(descriptor["digest"], blob.digest.to_string());
    assert_eq!(descriptor["size"], blob.size);
}
