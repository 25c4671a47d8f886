//! Disks that are taken out of a layer while the layer arrives.
//!
//! Invariant: no disk is in the store before the digest of its layer was checked.
//! Failure: none expected.

use http::header;
use serde_json::json;

use super::registries::{blob, manifest, registry, registry_with};
use super::*;

/// More than the extraction reads at once.
const HELD: usize = 3 << 20;
/// As much of the disk is certainly in the first part then.
const EXTRACTED: u64 = 1 << 20;

/// A layer with `disk`, not compressed.
fn layer(disk: &[u8]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o644);
    header.set_size(disk.len() as u64);
    builder
        .append_data(&mut header, "disk/a.img", disk)
        .unwrap();
    builder.into_inner().unwrap()
}

/// Offers a container disk of 4 MiB as `a:1`; yields the disk and the path of its layer.
fn offer(t: &TestEnvironment) -> (Vec<u8>, String) {
    let disk = disk(8192, 1);
    let bytes = layer(&disk);
    let kind = "application/vnd.oci.image.layer.v1.tar";
    let image = json!({
        "schemaVersion": 2,
        "config": blob(&t.server, "a", "application/vnd.oci.empty.v1+json", b"{}"),
        "layers": [blob(&t.server, "a", kind, &bytes)],
    });
    manifest(&t.server, "a", "1", &image);
    (disk, format!("v2/a/blobs/{}", digest_of(&bytes)))
}

/// Bytes of the disk that is being taken out of a layer; `None`: there is none.
fn extracted(t: &TestEnvironment) -> Option<u64> {
    let is_disk = |path: &PathBuf| path.to_string_lossy().ends_with("-disk.part");
    let path = t.partials().into_iter().find(is_disk)?;
    Some(std::fs::metadata(path).ok()?.len())
}

/// Begins to pull `a:1`, whose layer stops after [`HELD`] bytes, and waits until these and a part of
/// the disk are there.
async fn half_pulled(t: &TestEnvironment) -> tokio::task::JoinHandle<Result<Image>> {
    t.server.script([Step::Serve, Step::HoldAfter(HELD)]);
    let images = t.images.clone();
    let name = t.server.name("a:1");
    let pull = tokio::spawn(async move { images.pull(&name).await });
    let received = || t.images.progress(&t.server.name("a:1"));
    until(|| received().is_some_and(|p| p.received == HELD as u64)).await;
    until(|| extracted(t).is_some_and(|bytes| bytes >= EXTRACTED)).await;
    pull
}

#[tokio::test]
async fn a_disk_is_taken_out_while_its_layer_arrives() {
    let t = registry().await;
    let (disk, _) = offer(&t);
    let pull = half_pulled(&t).await;
    assert!(t.data().is_empty() && t.images.list().is_empty());
    t.server.go_on();
    let image = pull.await.unwrap().unwrap();
    assert_eq!(image.digest, digest_of(&disk));
    assert_eq!(std::fs::read(&image.path).unwrap(), disk);
    assert!(t.partials().is_empty(), "{:?}", t.partials());
}

#[tokio::test]
async fn a_layer_whose_digest_is_wrong_in_the_end_leaves_nothing() {
    let t = registry().await;
    let (mut disk, path) = offer(&t);
    *disk.last_mut().unwrap() ^= 1;
    t.server.offer(&path, &layer(&disk), "1");
    let pull = half_pulled(&t).await;
    t.server.go_on();
    let refused = pull.await.unwrap().unwrap_err();
    assert!(matches!(refused, Error::Digest { .. }), "{refused}");
    assert!(t.partials().is_empty() && t.data().is_empty());
}

#[tokio::test]
async fn an_extraction_goes_on_when_its_download_is_continued() {
    let t = registry().await;
    let (disk, _) = offer(&t);
    t.server
        .script([Step::Serve, Step::CutAfter(HELD), Step::Serve]);
    let image = t.images.pull(&t.server.name("a:1")).await.unwrap();
    assert_eq!(image.digest, digest_of(&disk));
    let last = t.server.seen().pop().unwrap();
    let range = format!("bytes={HELD}-");
    assert_eq!(last.header(header::RANGE), Some(range.as_str()));
}

#[tokio::test]
async fn a_pull_that_is_dropped_keeps_the_layer_and_nothing_of_the_disk() {
    let t = registry().await;
    let (disk, _) = offer(&t);
    let pull = half_pulled(&t).await;
    pull.abort();
    assert!(pull.await.unwrap_err().is_cancelled());
    until(|| extracted(&t).is_none()).await;
    assert_eq!(t.partials().len(), 2, "{:?}", t.partials());
    let t = t.reopened().await;
    let image = t.images.pull(&t.server.name("a:1")).await.unwrap();
    assert_eq!(image.digest, digest_of(&disk));
    let last = t.server.seen().pop().unwrap();
    let range = format!("bytes={HELD}-");
    assert_eq!(last.header(header::RANGE), Some(range.as_str()));
}

#[tokio::test]
async fn a_layer_that_starts_again_is_unpacked_when_it_is_complete() {
    let t = registry().await;
    let (disk, _) = offer(&t);
    // The server does not continue what it has sent.
    t.server
        .script([Step::Serve, Step::CutAfter(HELD), Step::Status(416)]);
    let image = t.images.pull(&t.server.name("a:1")).await.unwrap();
    assert_eq!(image.digest, digest_of(&disk));
    assert!(t.partials().is_empty(), "{:?}", t.partials());
}

#[tokio::test]
async fn a_disk_that_finds_no_room_beside_its_layer_waits_for_the_layer() {
    // The layer has 4 MiB, and the disk.
    let t = registry_with(|settings| settings.max_partial_bytes = 5 << 20).await;
    let (disk, _) = offer(&t);
    let image = t.images.pull(&t.server.name("a:1")).await.unwrap();
    assert_eq!(image.digest, digest_of(&disk));
    assert!(t.partials().is_empty(), "{:?}", t.partials());
}

#[tokio::test]
async fn a_disk_beyond_those_that_may_be_early_waits_for_its_layer() {
    let t = registry().await;
    let (disk, _) = offer(&t);
    let extractions = &t.images.inner.extractions;
    let all = u32::try_from(pull::EXTRACTIONS).unwrap();
    let others = extractions.try_acquire_many(all).unwrap();
    let image = t.images.pull(&t.server.name("a:1")).await.unwrap();
    assert_eq!(image.digest, digest_of(&disk));
    drop(others);
    assert_eq!(extractions.available_permits(), pull::EXTRACTIONS);
    t.images.remove(&image.digest.hex()).await.unwrap();
    let pulled = half_pulled(&t).await;
    assert_eq!(extractions.available_permits(), pull::EXTRACTIONS - 1);
    t.server.go_on();
    pulled.await.unwrap().unwrap();
    assert_eq!(extractions.available_permits(), pull::EXTRACTIONS);
}
