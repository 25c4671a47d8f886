//! Exports of backups: what a client receives, continues, and is refused.
//!
//! Invariant: as of all tests of backups; what was received is compared with what the guest read, byte by byte.
//! Failure: a test prints the status that ended an export, or what is left on the node.

use nodeapi::v1;
use nodeapi::v1::export_event::Event;
use nodeapi::v1::node_server::Node as _;
use sha2::Digest as _;
use tokio_stream::StreamExt as _;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Connected as _;
use tonic::{Code, Request, Status};

use super::*;
use crate::images::Digest;
use crate::node::exports::{DiskState, Exports, Received, Requested, Source, stream};

/// What a client has received.
#[derive(Debug, Default)]
struct Fetched {
    offset: u64,
    bytes: Vec<u8>,
    digest: Option<String>,
}

fn sum(bytes: &[u8]) -> Digest {
    Digest::from_bytes(sha2::Sha256::digest(bytes).into())
}

/// A client that has these bytes already, and leaves when it has got as many as it takes.
async fn fetch(
    exports: &Exports,
    stored: StoredBackup,
    has: &[u8],
    most: usize,
) -> Result<Fetched, Status> {
    let received = (!has.is_empty()).then(|| Received {
        bytes: has.len() as u64,
        digest: sum(has),
    });
    let requested = Requested::Backup(uid(VM), stored);
    let mut messages = stream(
        exports.clone(),
        requested,
        received,
        CancellationToken::new(),
    );
    let mut fetched = Fetched::default();
    while fetched.bytes.len() < most {
        let message = tokio::time::timeout(TIMEOUT, messages.next()).await;
        let Some(message) = message.expect("a message in time") else {
            break;
        };
        match message?.event.unwrap() {
            Event::PreparingPercent(percent) => assert!(percent <= 100),
            Event::Begin(begin) => fetched.offset = begin.offset,
            Event::Data(data) => fetched.bytes.extend(data),
            Event::End(end) => fetched.digest = Some(end.sha256),
        }
    }
    Ok(fetched)
}

impl Backups {
    fn exports(&self) -> Exports {
        exports_with(&self.node, self.targets())
    }

    /// The names of what exports have on the node.
    fn copies(&self) -> Vec<String> {
        let found = std::fs::read_dir(exports_root(&self.node)).unwrap();
        let found = found.map(|one| one.unwrap().file_name().into_string().unwrap());
        found.collect()
    }

    async fn await_copies(&self, count: usize) {
        let waiting = async {
            while self.copies().len() != count {
                tokio::task::yield_now().await;
            }
        };
        let waited = tokio::time::timeout(TIMEOUT, waiting).await;
        assert!(waited.is_ok(), "{:?}", self.copies());
    }

    /// What a guest would read from a file that was received.
    fn content_of(&self, bytes: &[u8]) -> Vec<u8> {
        let file = self.scratch.path().join("fetched.qcow2");
        let raw = self.scratch.path().join("fetched.raw");
        std::fs::write(&file, bytes).unwrap();
        tool("qemu-img", &["check", "-q", "-f", "qcow2", text(&file)]);
        let convert = ["convert", "-f", "qcow2", "-O", "raw"];
        let arguments = [&convert[..], &[text(&file), text(&raw)]].concat();
        tool("qemu-img", &arguments);
        let content = std::fs::read(&raw).unwrap();
        std::fs::remove_file(file).unwrap();
        std::fs::remove_file(raw).unwrap();
        content
    }
}

fn source(n: u32) -> Source {
    Source {
        vm: uid(VM),
        state: DiskState::Backup(object(n)),
    }
}

#[rstest::rstest]
#[case::linked(true)]
#[case::direct(false)]
#[tokio::test]
async fn each_backup_of_a_chain_is_sent_as_the_disk_was_also_without_its_machine(
    #[case] linked: bool,
) {
    let mut backups = Backups::of_disk(linked).await;
    let mut contents = Vec::new();
    let mut digests = Vec::new();
    for n in 1..=3 {
        backups.write(u64::from(n) + 3, 0x50);
        backups.write(7, u8::try_from(n).unwrap());
        contents.push(backups.content(VM));
        digests.push(backups.done(n).await.sha256);
    }
    let deleted = backups.run(Work::DeleteDisk).await;
    assert_eq!(deleted.state, State::Success, "{deleted:?}");
    let exports = backups.exports();
    for n in 1..=3 {
        let at = usize::try_from(n).unwrap() - 1;
        let mut of = stored(n, "default/other");
        of.sha256 = Some(digests[at].clone());
        let fetched = fetch(&exports, of, &[], usize::MAX).await.unwrap();
        assert_eq!(fetched.digest, Some(sum(&fetched.bytes).hex()));
        assert!(backups.content_of(&fetched.bytes) == contents[at], "{n}");
        // The copies of its files are gone, the joined one waits for a client.
        assert_eq!(backups.copies().len(), 1, "{:?}", backups.copies());
        exports.forget(source(n)).await.unwrap();
        assert!(backups.copies().is_empty(), "{:?}", backups.copies());
    }
}

#[tokio::test]
async fn a_client_continues_a_backup_also_when_the_copy_is_made_again() {
    let mut backups = Backups::of_disk(true).await;
    backups.change("write -P 9 0 6M");
    backups.done(1).await;
    let exports = backups.exports();
    let of = || stored(1, "default/vm");
    let mut part = fetch(&exports, of(), &[], 2 << 20).await.unwrap().bytes;
    let copies = backups.copies();
    let rest = fetch(&exports, of(), &part, usize::MAX).await.unwrap();
    assert_eq!(rest.offset, part.len() as u64);
    assert_eq!(backups.copies(), copies, "each call made its own");
    // As after a restart of the daemon.
    let again = backups.exports();
    assert!(backups.copies().is_empty());
    let fetched = fetch(&again, of(), &part, usize::MAX).await.unwrap();
    assert_eq!(
        (fetched.offset, &fetched.digest),
        (rest.offset, &rest.digest)
    );
    part.extend(&fetched.bytes);
    assert_eq!(fetched.digest, Some(sum(&part).hex()));
    assert!(backups.content_of(&part) == backups.content(VM));
}

#[tokio::test]
async fn only_what_was_written_is_sent_and_only_to_its_namespace() {
    let mut backups = Backups::of_disk(true).await;
    backups.done(1).await;
    backups.write(4, 1);
    backups.done(2).await;
    let exports = backups.exports();
    let with = |change: fn(&mut StoredBackup)| {
        let mut of = stored(2, "default/vm");
        change(&mut of);
        of
    };
    for (of, code, words) in [
        (
            with(|of| of.name = "other/vm".to_owned()),
            Code::FailedPrecondition,
            "another namespace",
        ),
        (
            with(|of| of.sha256 = Some("0a".repeat(32))),
            Code::FailedPrecondition,
            "is not what was written",
        ),
        (
            with(|of| of.target = "unknown".to_owned()),
            Code::FailedPrecondition,
            "backup.targets",
        ),
        (
            with(|of| of.target = "gone".to_owned()),
            Code::Unavailable,
            "open the directory",
        ),
        (stored(7, "default/vm"), Code::NotFound, "is not in target"),
    ] {
        let refused = fetch(&exports, of, &[], usize::MAX).await.unwrap_err();
        assert_eq!(refused.code(), code, "{refused}");
        assert!(refused.message().contains(words), "{refused}");
        assert!(backups.copies().is_empty(), "{:?}", backups.copies());
    }
    // A file of the one that it is based on.
    let file = backups.stored(1, "0.qcow2");
    let mut bytes = std::fs::read(&file).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let spoiled = fetch(&exports, stored(2, "default/vm"), &[], usize::MAX).await;
    let spoiled = spoiled.unwrap_err();
    assert_eq!(spoiled.code(), Code::FailedPrecondition, "{spoiled}");
    assert!(
        spoiled.message().contains("is not what was written"),
        "{spoiled}"
    );
    backups.await_copies(0).await;
}

#[tokio::test]
async fn the_agent_gets_no_backup() {
    let node = Node::new().await;
    let service = service(&node).await;
    let request = || {
        Request::new(v1::ExportBackupRequest {
            vm_uid: uid(VM).to_string(),
            backup_uid: object(1).to_string(),
            target: "nfs".to_owned(),
            vm_name: "default/vm".to_owned(),
            ..v1::ExportBackupRequest::default()
        })
    };
    let refused = service.export_backup(request()).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    let (ours, _theirs) = tokio::net::UnixStream::pair().unwrap();
    let own = |mut request: Request<v1::ExportBackupRequest>| {
        request.extensions_mut().insert(ours.connect_info());
        request
    };
    service.export_backup(own(request())).await.unwrap();
    for change in [
        |request: &mut v1::ExportBackupRequest| request.backup_uid.clear(),
        |request: &mut v1::ExportBackupRequest| request.target = "../other".to_owned(),
        |request: &mut v1::ExportBackupRequest| request.vm_name = "vm".to_owned(),
    ] {
        let mut odd = own(request());
        change(odd.get_mut());
        let refused = service.export_backup(odd).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
    }
}
