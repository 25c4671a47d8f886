//! Compressed files from web servers.
//!
//! Invariant: the image is the disk in the file; its name's digest is that of the file.
//! Failure: none.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::*;

pub(super) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[tokio::test]
async fn a_compressed_file_becomes_the_disk_in_it() {
    let t = TestEnvironment::new().await;
    let disk = disk(64, 1);
    let file = gzip(&disk);
    let image = t.pulled("a.img.gz", &file).await;
    assert_eq!((image.digest, image.size), (digest_of(&disk), 64 * 512));
    assert_eq!(std::fs::read(&image.path).unwrap(), disk);
    let by_digest = format!("{}@{}", t.server.name("a.img.gz"), digest_of(&file));
    assert_eq!(image.digests, std::slice::from_ref(&by_digest));
    assert!(t.partials().is_empty(), "{:?}", t.partials());

    // Unchanged, it is not sent again; with its digest, the server gets no request at all.
    let again = t.images.pull(&t.server.name("a.img.gz")).await.unwrap();
    assert_eq!(again.digest, image.digest);
    let requests = t.server.seen().len();
    assert_eq!(requests, 2);
    assert_eq!(
        t.images.pull(&by_digest).await.unwrap().digest,
        image.digest
    );
    assert_eq!(t.server.seen().len(), requests);
    let t = t.reopened().await;
    assert_eq!(
        t.images.pull(&by_digest).await.unwrap().digest,
        image.digest
    );
    let again = t.images.pull(&t.server.name("a.img.gz")).await.unwrap();
    assert_eq!(again.digest, image.digest);
    assert_eq!(t.server.seen().len(), requests + 1);
}

#[tokio::test]
async fn a_digest_in_the_name_is_that_of_the_file() {
    let t = TestEnvironment::new().await;
    let disk = disk(8, 1);
    let file = gzip(&disk);
    t.server.offer("a.gz", &file, "1");
    let name = |digest| format!("{}@{digest}", t.server.name("a.gz"));
    let refused = t.images.pull(&name(digest_of(&disk))).await.unwrap_err();
    assert!(matches!(refused, Error::Digest { .. }), "{refused}");
    let image = t.images.pull(&name(digest_of(&file))).await.unwrap();
    assert_eq!(image.digest, digest_of(&disk));
}

#[tokio::test]
async fn a_compressed_file_that_is_no_disk_leaves_nothing() {
    let t = TestEnvironment::new().await;
    t.server.offer("a.gz", &gzip(&[0xeb; 700]), "1");
    let refused = t.images.pull(&t.server.name("a.gz")).await.unwrap_err();
    assert!(matches!(refused, Error::Format { .. }), "{refused}");
    assert!(t.partials().is_empty(), "{:?}", t.partials());
    assert!(t.data().is_empty());
}

#[tokio::test]
async fn inspection_looks_into_a_compressed_file() {
    let t = TestEnvironment::new().await;
    let file = gzip(&disk(4096, 1));
    t.server.offer("a.gz", &file, "1");
    let inspected = t.images.inspect(&t.server.name("a.gz")).await.unwrap();
    assert_eq!(inspected.format, Some(Format::Raw));
    // The size of the disk is unknown until the daemon unpacks the file.
    assert_eq!(inspected.virtual_bytes, 0);
    assert_eq!(inspected.file_bytes, file.len() as u64);
}
