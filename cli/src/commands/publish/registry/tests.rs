//! Disks that are published to a registry in this process, with what registries do to uploads.
//!
//! Invariant: the registry checks digests and ranges as real ones do; what it has is compared with the disk.
//! Failure: a test names what the registry has, or the words that differ.

mod server;

use std::str::FromStr as _;

use self::server::{Fault, Login, Server};
use super::*;
use crate::commands::publish::container_disk::{self, Layer};
use crate::commands::publish::layer_upload::LayerUpload;
use crate::commands::transfer::line::Line;
use crate::commands::transfer::progress::Progress;
use crate::commands::transfer::receive::{ReceiveError, Target as _, receive};

/// Three pieces and a part.
const DISK: usize = 3 * PIECE + 700;

const PIECE: usize = 256 << 10;

fn disk() -> Vec<u8> {
    let bytes = (0..DISK).map(|at| u8::try_from(at % 251).unwrap());
    bytes.collect()
}

/// What a node sends of a disk.
fn sent(disk: &[u8], offset: u64) -> Vec<u8> {
    let size = disk.len() as u64;
    let begin = Line::Begin { size, offset };
    let sha256 = hex(&Sha256::digest(disk));
    let lines = [begin, Line::End { sha256 }].map(|line| line.text().unwrap());
    let rest = &disk[usize::try_from(offset).unwrap()..];
    [lines[0].as_bytes(), rest, lines[1].as_bytes()].concat()
}

fn registry(server: &Server, credentials: Option<Credentials>) -> Registry {
    let image = Reference::from_str(&format!("{}/team/web:1", server.authority)).unwrap();
    let mut registry = Registry::new(&image, Connection::Http, credentials).unwrap();
    registry.pause = Duration::ZERO;
    registry.piece = PIECE;
    registry
}

/// Publishes a disk, and begins again where the registry has lost the upload.
async fn publish(registry: &mut Registry, disk: &[u8]) -> Result<String, RegistryError> {
    let progress = Progress::hidden();
    let mut upload = LayerUpload::new(registry);
    let layer = loop {
        let all = sent(disk, upload.received());
        match receive(&mut &all[..], &mut upload, &progress).await {
            Ok(()) => match upload.finish().await {
                Err(error) if error.is_passing() => {}
                finished => break finished?,
            },
            Err(ReceiveError::Target(error)) if error.is_passing() => {}
            Err(ReceiveError::Target(error)) => return Err(error),
            Err(other) => panic!("{other}"),
        }
    };
    let image = container_disk::image(&layer);
    registry.put_blob(&image.config).await?;
    registry.put_manifest("1", &image.manifest).await
}

/// The disk in the image that a tag leads to.
fn published(server: &Server) -> Vec<u8> {
    let manifest = server.manifest("1").expect("a manifest");
    let manifest: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
    let blob = |found: &serde_json::Value| {
        let blob = server
            .blob(found["digest"].as_str().unwrap())
            .expect("a blob");
        assert_eq!(found["size"], blob.len());
        blob
    };
    blob(&manifest["config"]);
    let layer = blob(&manifest["layers"][0]);
    let mut archive = tar::Archive::new(&layer[..]);
    let mut disk = Vec::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        if entry.path_bytes().as_ref() == b"disk/disk.qcow2" {
            std::io::Read::read_to_end(&mut entry, &mut disk).unwrap();
        }
    }
    disk
}

#[tokio::test]
async fn a_disk_is_in_the_image_and_the_same_disk_makes_the_same_image() {
    let server = Server::start(Login::None).await;
    let mut one = registry(&server, None);
    let disk = disk();
    let digest = publish(&mut one, &disk).await.unwrap();
    assert!(published(&server) == disk);
    assert_eq!(super::digest(&server.manifest("1").unwrap()), digest);
    let mut sum = crate::commands::publish::LayerSum::begin(disk.len() as u64);
    sum.update(&disk);
    let known = one.published("1").await.unwrap();
    assert_eq!(known, Some(sum.end()), "what the node says of the disk");
    assert_eq!(one.published("2").await.unwrap(), None);
    let again = publish(&mut registry(&server, None), &disk).await;
    assert_eq!(again.unwrap(), digest);
    assert_eq!(server.uploads_of_configurations(), 1, "it was there");
    let other = publish(&mut registry(&server, None), &disk[1..]).await;
    assert_ne!(other.unwrap(), digest);
}

#[tokio::test]
async fn what_the_registry_has_not_got_is_sent_again_and_nothing_twice() {
    for fault in [
        Fault::Busy,
        Fault::Takes(0),
        Fault::Takes(1000),
        Fault::TakesAll,
        Fault::Breaks,
        Fault::ForgetsUpload,
        Fault::FailsAtEnd,
        Fault::TakesNoPieces,
        Fault::DemandsLargePieces,
    ] {
        // One that is a part of a piece, too.
        for length in [5000, DISK] {
            let server = Server::start(Login::None).await;
            server.set(fault);
            let disk = &disk()[..length];
            publish(&mut registry(&server, None), disk).await.unwrap();
            assert!(published(&server) == disk, "{fault:?}");
            assert!(server.has_shown_fault(), "{fault:?}");
        }
    }
}

#[tokio::test]
async fn a_registry_that_loses_every_upload_is_left() {
    let server = Server::start(Login::None).await;
    server.set(Fault::ForgetsAll);
    let failed = publish(&mut registry(&server, None), &disk()).await;
    let failed = failed.unwrap_err();
    assert!(matches!(failed, RegistryError::LostAgain), "{failed}");
    assert!(server.manifest("1").is_none());
}

#[tokio::test]
async fn a_disk_that_has_changed_meanwhile_is_uploaded_from_its_beginning() {
    let server = Server::start(Login::None).await;
    let mut registry = registry(&server, None);
    let mut upload = LayerUpload::new(&mut registry);
    let disk = disk();
    let progress = Progress::hidden();
    let part = &sent(&disk, 0)[..2 * PIECE];
    let broken = receive(&mut &part[..], &mut upload, &progress).await;
    broken.unwrap_err();
    assert!(upload.received() > 0);
    // Another length after the same beginning.
    let longer = [&disk[..], b"more"].concat();
    let all = sent(&longer, upload.received());
    let refused = receive(&mut &all[..], &mut upload, &progress)
        .await
        .unwrap_err();
    assert!(
        matches!(refused, ReceiveError::Target(RegistryError::Lost)),
        "{refused}"
    );
    assert_eq!(upload.received(), 0);
    let all = sent(&longer, 0);
    receive(&mut &all[..], &mut upload, &progress)
        .await
        .unwrap();
    let Layer { digest, size } = upload.finish().await.unwrap();
    assert_eq!(server.blob(&digest).unwrap().len() as u64, size);
}

#[tokio::test]
async fn a_login_is_met_by_password_or_token_and_renewed_when_it_expires() {
    let password = || Credentials::Password("me".to_owned(), "hush".to_owned());
    for login in [Login::Password, Login::Token] {
        let server = Server::start(login).await;
        let none = registry(&server, None).authorize().await.unwrap_err();
        assert!(
            matches!(none, RegistryError::NoCredentials { .. }),
            "{none}"
        );
        let wrong = Credentials::Password("me".to_owned(), "loud".to_owned());
        let wrong = registry(&server, Some(wrong))
            .authorize()
            .await
            .unwrap_err();
        assert!(
            matches!(wrong, RegistryError::Unauthorized { .. }),
            "{wrong}"
        );
        assert!(!wrong.to_string().contains("loud"), "{wrong}");
        let mut right = registry(&server, Some(password()));
        right.authorize().await.unwrap();
        server.set(Fault::ExpiresTokens);
        let disk = disk();
        publish(&mut right, &disk).await.unwrap();
        assert!(published(&server) == disk);
        assert!(server.has_shown_fault());
        assert_eq!(server.has_been_busy(), login == Login::Token);
    }
    let server = Server::start(Login::Token).await;
    let identity = Credentials::Identity("identity".to_owned());
    registry(&server, Some(identity)).authorize().await.unwrap();
}

#[tokio::test]
async fn a_refusal_is_final_and_says_what_to_do() {
    for (status, words) in [
        (403, "does not let this user push to team/web (DENIED no)"),
        (404, "create it there"),
        (413, "413 Payload Too Large (DENIED no)"),
    ] {
        let server = Server::start(Login::None).await;
        server.set(Fault::Refuses(status));
        let refused = registry(&server, None).authorize().await.unwrap_err();
        let text = refused.to_string();
        assert!(text.contains(words), "{text}");
    }
    let server = Server::start(Login::None).await;
    let mut registry = registry(&server, None);
    drop(server);
    let absent = registry.authorize().await.unwrap_err();
    assert!(absent.is_of_network(), "{absent}");
}

#[test]
fn an_upload_goes_on_at_no_place_without_encryption_and_shows_others_no_credentials() {
    let image = Reference::from_str("r.example/team/web:1").unwrap();
    let registry = Registry::new(&image, Connection::Https, None).unwrap();
    let at = |location: &str| {
        let mut headers = HeaderMap::new();
        headers.insert(header::LOCATION, location.parse().unwrap());
        let reply = Reply {
            status: StatusCode::ACCEPTED,
            headers,
            body: Vec::new(),
            url: registry.base.clone(),
        };
        registry.location(&reply)
    };
    let own = at("/v2/team/web/blobs/uploads/1?state=a").unwrap();
    assert_eq!(
        own.as_str(),
        "https://r.example/v2/team/web/blobs/uploads/1?state=a"
    );
    assert!(registry.is_own(&own));
    let other = at("https://storage.example/1").unwrap();
    assert!(!registry.is_own(&other));
    assert!(!registry.is_own(&at("https://r.example:444/1").unwrap()));
    for odd in [
        "http://r.example/1",
        "ftp://r.example/1",
        "file:///etc/passwd",
    ] {
        assert!(matches!(at(odd), Err(RegistryError::Protocol(_))), "{odd}");
    }
    let hub = Reference::from_str("me/web").unwrap();
    let hub = Registry::new(&hub, Connection::Https, None).unwrap();
    assert_eq!(hub.base.as_str(), "https://registry-1.docker.io/v2/me/web/");
}
