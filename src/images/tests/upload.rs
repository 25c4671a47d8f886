//! Files that clients send: checked as downloads, continued by their content, known by a name that
//! no server has.

use super::*;
use crate::images::{Receiver, Upload};

const NAME: &str = "vmlet.dev/upload.invalid/default/web:1";

fn digest_of(bytes: &[u8]) -> Digest {
    Digest::from_bytes(Sha256::digest(bytes).into())
}

async fn begin(images: &Images, bytes: &[u8]) -> Box<Receiver> {
    let begun = images.upload(NAME, bytes.len() as u64, digest_of(bytes));
    match begun.await.unwrap() {
        Upload::Missing(receiver) => receiver,
        Upload::Present(image) => panic!("it is here: {image:?}"),
    }
}

#[tokio::test]
async fn an_upload_is_an_image_by_its_name_alone_and_no_server_is_asked() {
    let test = TestEnvironment::new().await;
    let bytes = disk(64, 1);
    assert!(matches!(
        test.images.pull(NAME).await,
        Err(Error::Uploaded { .. })
    ));
    let receiver = begin(&test.images, &bytes).await;
    receiver.append(bytes.clone()).await.unwrap();
    let image = receiver.finish().await.unwrap();
    assert_eq!(
        (image.digest, image.virtual_size),
        (digest_of(&bytes), 64 * 512)
    );
    assert_eq!(test.images.pull(NAME).await.unwrap().digest, image.digest);
    let inspected = test.images.inspect(NAME).await.unwrap();
    assert_eq!(inspected.virtual_bytes, 64 * 512);
    assert_eq!((inspected.bootable, inspected.firmware), (false, None));
    assert!(test.partials().is_empty());
    let again = test
        .images
        .upload(NAME, bytes.len() as u64, digest_of(&bytes));
    assert!(matches!(again.await.unwrap(), Upload::Present(_)));
    test.images.remove(NAME).await.unwrap();
    let gone = test.images.inspect(NAME).await;
    assert!(matches!(gone, Err(Error::Uploaded { .. })));
}

#[tokio::test]
async fn an_upload_that_broke_off_is_continued() {
    let test = TestEnvironment::new().await;
    let bytes = disk(64, 2);
    let receiver = begin(&test.images, &bytes).await;
    receiver.append(bytes[..1000].to_vec()).await.unwrap();
    drop(receiver);
    let test = test.reopened().await;
    let receiver = begin(&test.images, &bytes).await;
    assert_eq!(receiver.received().await, 1000);
    receiver.append(bytes[1000..].to_vec()).await.unwrap();
    let image = receiver.finish().await.unwrap();
    assert_eq!(std::fs::read(image.path).unwrap(), bytes);
}

#[tokio::test]
async fn a_file_that_the_node_does_not_take_is_refused_before_the_rest_comes() {
    let test = TestEnvironment::new().await;
    let mut bytes = disk(400, 5);
    bytes[..4].copy_from_slice(b"KDMV");
    let receiver = begin(&test.images, &bytes).await;
    receiver.append(bytes[..1000].to_vec()).await.unwrap();
    let refused = receiver.append(bytes[1000..128 << 10].to_vec()).await;
    let words = refused.unwrap_err().to_string();
    assert!(words.contains("images.convert"), "{words}");
    drop(receiver);
    assert!(test.partials().is_empty() && test.data().is_empty());
}

#[tokio::test]
async fn what_is_not_as_it_was_announced_is_no_image() {
    let test = TestEnvironment::new().await;
    let bytes = disk(64, 3);
    let other = disk(64, 4);
    let receiver = begin(&test.images, &bytes).await;
    let more = receiver.append(disk(65, 3)).await;
    assert!(matches!(more, Err(Error::TooLarge { .. })));
    receiver.append(other).await.unwrap();
    let wrong = receiver.finish().await;
    assert!(matches!(wrong, Err(Error::Digest { .. })), "{wrong:?}");
    assert!(test.partials().is_empty());

    // A disk that names another file.
    let mut hostile = vec![0; 1 << 16];
    hostile[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03");
    hostile[8..20].copy_from_slice(&[0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 4]);
    hostile[256..260].copy_from_slice(b"/etc");
    let receiver = begin(&test.images, &hostile).await;
    receiver.append(hostile).await.unwrap();
    let refused = receiver.finish().await;
    assert!(matches!(refused, Err(Error::Format { .. })), "{refused:?}");
    assert!(test.data().is_empty() && test.partials().is_empty());
}

#[tokio::test]
async fn names_of_servers_and_files_that_are_too_large_are_refused() {
    let test = TestEnvironment::with(|settings| settings.max_download_bytes = 1 << 20).await;
    let digest = digest_of(b"");
    for name in ["docker.io/library/debian:12", "upload.invalid", "../x", ""] {
        let refused = test.images.upload(name, 512, digest).await;
        assert!(matches!(refused, Err(Error::InvalidName { .. })), "{name}");
    }
    // By this name the controller knows them, too.
    assert!(podspec::is_uploaded_image(NAME));
    let large = test.images.upload(NAME, (1 << 20) + 1, digest).await;
    assert!(matches!(large, Err(Error::TooLarge { .. })));
    assert!(test.partials().is_empty());
}
