//! Pulls from registries that a server on loopback plays.
//!
//! Invariant: manifests and blobs have the paths and digests of the distribution specification.
//! Failure: none.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header;
use serde_json::{Value, json};

use super::packed::gzip;
use super::*;

mod credentials;

const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const OCI_LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// A registry, whose host the node knows.
pub(super) async fn registry() -> TestEnvironment {
    registry_with(|_| {}).await
}

pub(super) async fn registry_with(adjust: impl FnOnce(&mut Settings)) -> TestEnvironment {
    let t = TestEnvironment::with(|settings| {
        let dir = settings.dir.with_file_name("certs.d");
        settings.registries_dir = dir;
        adjust(settings);
    })
    .await;
    let dir = t.settings.registries_dir.join(&t.server.authority);
    std::fs::create_dir_all(dir).unwrap();
    t
}

/// Offers a blob; yields its descriptor.
pub(super) fn blob(server: &Server, repository: &str, kind: &str, bytes: &[u8]) -> Value {
    let digest = digest_of(bytes).to_string();
    server.offer(&format!("v2/{repository}/blobs/{digest}"), bytes, &digest);
    json!({"mediaType": kind, "digest": digest, "size": bytes.len()})
}

/// Offers a manifest by a tag and by its digest, which it yields.
pub(super) fn manifest(server: &Server, repository: &str, tag: &str, manifest: &Value) -> Digest {
    let bytes = serde_json::to_vec(manifest).unwrap();
    let digest = digest_of(&bytes);
    for label in [tag, &digest.to_string()] {
        let path = format!("v2/{repository}/manifests/{label}");
        server.offer(&path, &bytes, &digest.to_string());
    }
    digest
}

fn layer(path: &str, disk: &[u8]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o644);
    header.set_size(disk.len() as u64);
    builder.append_data(&mut header, path, disk).unwrap();
    gzip(&builder.into_inner().unwrap())
}

/// Offers a container disk; yields the digest of its manifest.
pub(super) fn container_disk(
    server: &Server,
    repository: &str,
    tag: &str,
    disk: &[u8],
    user: &str,
) -> Digest {
    let config = json!({
        "architecture": "amd64", "os": "linux", "config": {"User": user},
        "rootfs": {"type": "layers", "diff_ids": []},
    });
    let config = serde_json::to_vec(&config).unwrap();
    let image = json!({
        "schemaVersion": 2,
        "config": blob(server, repository, OCI_CONFIG, &config),
        "layers": [
            blob(server, repository, OCI_LAYER, &layer("disk/a.img", disk)),
            // Container images end with layers that have nothing to do with the disk.
            blob(server, repository, OCI_LAYER, &layer("etc/motd", b"hello")),
        ],
    });
    manifest(server, repository, tag, &image)
}

pub(super) fn artifact(server: &Server, repository: &str, tag: &str, disk: &[u8]) -> Digest {
    let image = json!({
        "schemaVersion": 2,
        "artifactType": "application/x-disk",
        "config": blob(server, repository, "application/vnd.oci.empty.v1+json", b"{}"),
        "layers": [blob(server, repository, "application/octet-stream", disk)],
    });
    manifest(server, repository, tag, &image)
}

fn paths(t: &TestEnvironment) -> Vec<String> {
    t.server.seen().into_iter().map(|seen| seen.path).collect()
}

#[tokio::test]
async fn a_container_disk_becomes_the_disk_in_it() {
    let t = registry().await;
    let disk = disk(64, 1);
    let digest = container_disk(&t.server, "disks/a", "1", &disk, "1002");
    let name = t.server.name("disks/a");
    let image = t.images.pull(&format!("{name}:1")).await.unwrap();
    assert_eq!(image.digest, digest_of(&disk));
    assert_eq!(std::fs::read(&image.path).unwrap(), disk);
    assert_eq!(image.tags, [format!("{name}:1")]);
    assert_eq!(image.digests, [format!("{name}@{digest}")]);
    assert_eq!(image.user, "1002");
    assert!(
        t.partials()
            .iter()
            .all(|path| !path.to_string_lossy().contains("disk"))
    );

    // By its digest no request is needed; by its tag only the manifest and what it names.
    let before = paths(&t).len();
    let again = t.images.pull(&format!("{name}@{digest}")).await.unwrap();
    assert_eq!((again, paths(&t).len()), (image.clone(), before));
    let t = t.reopened().await;
    let found = t.images.find(&format!("{name}@{digest}")).unwrap();
    assert_eq!(found, image);
    t.images.pull(&format!("{name}:1")).await.unwrap();
    let more = paths(&t).split_off(before);
    assert!(
        more.iter()
            .all(|path| !path.ends_with(&digest_of(&layer("disk/a.img", &disk)).to_string())),
        "{more:?}"
    );
}

#[tokio::test]
async fn an_artifact_is_the_disk_and_an_index_leads_to_it() {
    let t = registry().await;
    let disk = disk(64, 2);
    let digest = artifact(&t.server, "a", "plain", &disk);
    let platform = json!({"os": "linux", "architecture": match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }});
    let index = json!({"schemaVersion": 2, "manifests": [
        {"mediaType": "application/vnd.oci.image.manifest.v1+json", "size": 1,
         "digest": digest.to_string(), "platform": platform},
    ]});
    let digest = manifest(&t.server, "a", "all", &index);
    let image = t.images.pull(&t.server.name("a:all")).await.unwrap();
    assert_eq!(image.digest, digest_of(&disk));
    assert_eq!(image.digests, [format!("{}@{digest}", t.server.name("a"))]);
}

#[tokio::test]
async fn one_disk_under_two_names_is_downloaded_once() {
    let t = registry().await;
    let disk = disk(64, 3);
    artifact(&t.server, "a", "1", &disk);
    artifact(&t.server, "b", "1", &disk);
    let name_a = t.server.name("a:1");
    let name_b = t.server.name("b:1");
    let (a, b) = tokio::join!(t.images.pull(&name_a), t.images.pull(&name_b));
    assert_eq!(a.unwrap().digest, b.unwrap().digest);
    let blob = digest_of(&disk).to_string();
    let fetched = paths(&t)
        .iter()
        .filter(|path| path.ends_with(&blob))
        .count();
    assert_eq!(fetched, 1);
    let image = t.images.find(&name_b).unwrap();
    assert_eq!(image.tags, [name_a, name_b]);
}

#[tokio::test]
async fn an_image_that_is_not_what_its_digest_says_is_refused() {
    let t = registry().await;
    let digest = artifact(&t.server, "a", "1", &disk(8, 1));
    let other = serde_json::to_vec(&json!({"schemaVersion": 2, "layers": []})).unwrap();
    t.server
        .offer(&format!("v2/a/manifests/{digest}"), &other, "x");
    let name = format!("{}@{digest}", t.server.name("a"));
    let refused = t.images.pull(&name).await.unwrap_err();
    assert!(matches!(refused, Error::Digest { .. }), "{refused}");

    let blob = digest_of(&disk(8, 1));
    t.server
        .offer(&format!("v2/a/blobs/{blob}"), &disk(8, 9), "y");
    let refused = t.images.pull(&t.server.name("a:1")).await.unwrap_err();
    assert!(matches!(refused, Error::Digest { .. }), "{refused}");
    assert!(t.partials().is_empty() && t.data().is_empty());
}

#[tokio::test]
async fn a_container_image_is_no_container_disk() {
    let t = registry().await;
    let layers = ["bin/sh", "bin/ls"].map(|path| {
        let layer = layer(path, b"#!");
        blob(&t.server, "a", OCI_LAYER, &layer)
    });
    let image = json!({
        "schemaVersion": 2, "layers": layers,
        "config": blob(&t.server, "a", "application/vnd.oci.empty.v1+json", b"{}"),
    });
    manifest(&t.server, "a", "latest", &image);
    let refused = t.images.pull(&t.server.name("a")).await.unwrap_err();
    assert!(refused.to_string().contains("container image"), "{refused}");
    assert!(t.partials().is_empty() && t.data().is_empty());

    // A repetition requests the manifest, and downloads no layer again.
    let before = paths(&t).len();
    let again = t.images.pull(&t.server.name("a")).await.unwrap_err();
    assert_eq!(again.to_string(), refused.to_string());
    let more = paths(&t).split_off(before);
    assert_eq!(more, ["/v2/a/manifests/latest"], "{more:?}");

    // A layer that is remembered is not downloaded for another image either.
    let known = blob(&t.server, "b", OCI_LAYER, &layer("bin/sh", b"#!"));
    let with_disk = blob(
        &t.server,
        "b",
        OCI_LAYER,
        &layer("disk/a.img", &disk(64, 1)),
    );
    let image = json!({
        "schemaVersion": 2, "layers": [with_disk, known],
        "config": blob(&t.server, "b", "application/vnd.oci.empty.v1+json", b"{}"),
    });
    manifest(&t.server, "b", "2", &image);
    let before = paths(&t).len();
    let image = t.images.pull(&t.server.name("b:2")).await.unwrap();
    assert_eq!(image.digest, digest_of(&disk(64, 1)));
    assert_eq!(paths(&t).len(), before + 2, "the manifest and one layer");
}

#[tokio::test]
async fn an_interrupted_blob_is_continued() {
    let t = registry().await;
    let disk = disk(64, 4);
    artifact(&t.server, "a", "1", &disk);
    t.server
        .script([Step::Serve, Step::CutAfter(1000), Step::Serve]);
    let image = t.images.pull(&t.server.name("a:1")).await.unwrap();
    assert_eq!(image.digest, digest_of(&disk));
    let last = t.server.seen().pop().unwrap();
    assert_eq!(last.header(header::RANGE), Some("bytes=1000-"));
}

#[tokio::test]
async fn inspection_looks_into_a_container_disk() {
    let t = registry().await;
    let disk = disk(4096, 1);
    let digest = container_disk(&t.server, "a", "1", &disk, "");
    let inspected = t.images.inspect(&t.server.name("a:1")).await.unwrap();
    let file = layer("disk/a.img", &disk).len() as u64;
    let expected = Inspected {
        format: Some(Format::Raw),
        virtual_bytes: disk.len() as u64,
        file_bytes: file,
        bootable: false,
        firmware: None,
        digest: Some(digest.into()),
    };
    assert_eq!(inspected, expected);
    let row = serde_json::to_string(&inspected).unwrap();
    assert_eq!(serde_json::from_str::<Inspected>(&row).unwrap(), inspected);
    let older = row.replace(&format!(",\"digest\":\"{digest}\""), "");
    let older = serde_json::from_str::<Inspected>(&older).unwrap();
    assert_eq!(
        older,
        Inspected {
            digest: None,
            ..inspected
        }
    );
}

#[tokio::test]
async fn addresses_of_registries_are_checked_as_all_others() {
    let t = registry().await;
    let forbidden = Server::start_at("127.0.0.2").await;
    artifact(&forbidden, "a", "1", &disk(8, 1));
    let dir = t.settings.registries_dir.join(&forbidden.authority);
    std::fs::create_dir_all(dir).unwrap();
    let refused = t.images.pull(&forbidden.name("a:1")).await.unwrap_err();
    assert!(matches!(refused, Error::Address { .. }), "{refused}");

    // Nor does a token lead there.
    artifact(&t.server, "a", "1", &disk(8, 1));
    let realm = format!("http://{}/token", forbidden.authority);
    t.server
        .script([Step::Challenge(format!("Bearer realm=\"{realm}\""))]);
    let refused = t.images.pull(&t.server.name("a:1")).await.unwrap_err();
    assert!(matches!(refused, Error::Address { .. }), "{refused}");
    assert!(forbidden.seen().is_empty());
}
