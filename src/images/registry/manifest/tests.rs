//! What manifests lead to, as KubeVirt, ORAS and Docker write them.
//!
//! Invariant: a manifest leads to a disk, or a sentence says why not.
//! Failure: none.

use rstest::rstest;
use serde_json::{Value, json};

use super::*;

fn descriptor(kind: &str, byte: &str) -> Value {
    json!({"mediaType": kind, "digest": format!("sha256:{}", byte.repeat(32)), "size": 7})
}

fn image_of(config: &str, layers: &[Value]) -> Vec<u8> {
    let manifest = json!({
        "schemaVersion": 2,
        "config": descriptor(config, "0c"),
        "layers": layers,
    });
    serde_json::to_vec(&manifest).unwrap()
}

fn blob_of(byte: &str, shape: Shape) -> Blob {
    let digest = format!("sha256:{}", byte.repeat(32)).parse().unwrap();
    Blob {
        digest,
        size: 7,
        shape,
    }
}

const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const OCI_LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const DOCKER_LAYER: &str = "application/vnd.docker.image.rootfs.diff.tar.gzip";

#[rstest]
#[case::oci(OCI_CONFIG, OCI_LAYER)]
#[case::docker(DOCKER_CONFIG, DOCKER_LAYER)]
fn the_topmost_layer_of_a_container_disk_comes_first(#[case] config: &str, #[case] layer: &str) {
    let bytes = image_of(config, &[descriptor(layer, "01"), descriptor(layer, "02")]);
    let expected = Manifest::Image {
        config: Some(blob_of("0c", Shape::Disk)),
        candidates: vec![blob_of("02", Shape::Layer), blob_of("01", Shape::Layer)],
    };
    assert_eq!(read(&bytes), Ok(expected));
}

#[test]
fn the_one_file_of_an_artifact_is_the_disk() {
    let empty = "application/vnd.oci.empty.v1+json";
    let disk = descriptor("application/octet-stream", "01");
    let expected = Manifest::Image {
        config: None,
        candidates: vec![blob_of("01", Shape::Disk)],
    };
    assert_eq!(
        read(&image_of(empty, std::slice::from_ref(&disk))),
        Ok(expected)
    );
    let refused = read(&image_of(empty, &[disk.clone(), disk])).unwrap_err();
    assert!(refused.contains("2 files"), "{refused}");
}

fn index_of(manifests: &[Value]) -> Vec<u8> {
    let index = json!({"schemaVersion": 2, "manifests": manifests});
    serde_json::to_vec(&index).unwrap()
}

fn for_platform(os: &str, architecture: &str, byte: &str) -> Value {
    let mut manifest = descriptor("application/vnd.oci.image.manifest.v1+json", byte);
    manifest["platform"] = json!({"os": os, "architecture": architecture});
    manifest
}

#[test]
fn an_index_leads_to_our_platform() {
    let ours = architecture();
    let bytes = index_of(&[
        for_platform("linux", "s390x", "01"),
        for_platform("unknown", ours, "02"),
        for_platform("linux", ours, "03"),
        for_platform("unknown", "unknown", "04"),
    ]);
    let digest = blob_of("03", Shape::Disk).digest;
    assert_eq!(read(&bytes), Ok(Manifest::Index(digest)));
    let one = descriptor("application/vnd.oci.image.manifest.v1+json", "05");
    let digest = blob_of("05", Shape::Disk).digest;
    assert_eq!(read(&index_of(&[one])), Ok(Manifest::Index(digest)));
}

#[test]
fn an_index_without_our_platform_says_what_it_has() {
    let others = [
        for_platform("linux", "s390x", "01"),
        for_platform("linux", "ppc64le", "02"),
    ];
    let refused = read(&index_of(&others)).unwrap_err();
    assert!(refused.contains("s390x, ppc64le"), "{refused}");
    let long = index_of(&[for_platform("linux", &"v".repeat(2000), "01")]);
    assert!(read(&long).unwrap_err().len() < 100);
}

#[rstest]
#[case::no_json(b"<html>".to_vec(), "no manifest")]
#[case::nothing(b"{\"schemaVersion\": 2}".to_vec(), "neither of an image")]
#[case::old(b"{\"schemaVersion\": 1, \"layers\": []}".to_vec(), "schema version")]
#[case::no_layers(image_of(OCI_CONFIG, &[]), "no layers")]
#[case::many_layers(image_of(OCI_CONFIG, &vec![descriptor(OCI_LAYER, "01"); 17]), "17 layers")]
#[case::digest(image_of(OCI_CONFIG, &[json!({"mediaType": OCI_LAYER, "digest": format!("sha512:{}", "01".repeat(64)), "size": 1})]), "sha256")]
#[case::both(serde_json::to_vec(&json!({"schemaVersion": 2, "layers": [], "manifests": []})).unwrap(), "neither of an image")]
fn what_leads_nowhere_is_refused_in_words(#[case] bytes: Vec<u8>, #[case] words: &str) {
    let refused = read(&bytes).unwrap_err();
    assert!(refused.contains(words), "{refused}");
}

#[test]
fn the_user_of_a_configuration_is_read() {
    let of = |config: Value| {
        let text = json!({
            "architecture": "amd64", "os": "linux", "config": config,
            "rootfs": {"type": "layers", "diff_ids": []}, "history": null,
        });
        user(&serde_json::to_vec(&text).unwrap())
    };
    assert_eq!(of(json!({"User": "1002"})).as_deref(), Ok("1002"));
    assert_eq!(of(json!({})).as_deref(), Ok(""));
    assert_eq!(of(json!(null)).as_deref(), Ok(""));
    assert!(user(b"[]").is_err());
    let longest = "u".repeat(256);
    assert_eq!(
        of(json!({"User": longest})).as_deref(),
        Ok(longest.as_str())
    );
    for refused in [format!("{longest}u"), "root\n".to_owned()] {
        let reason = of(json!({"User": refused})).unwrap_err();
        assert!(reason.contains("256 bytes"), "{reason}");
    }
}
