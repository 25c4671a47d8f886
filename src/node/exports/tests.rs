//! Exports of disks that `qemu-img` has made, to clients that read, leave, come back or never read.
//!
//! Invariant: what a client has received is what it checks.
//! Failure: a test names what was sent, kept or allowed.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use nodeapi::v1;
use nodeapi::v1::export_event::Event;
use nodeapi::v1::node_server::Node as _;
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected as _;
use tonic::{Code, Request, Status};

use super::*;
use crate::disk::{self, DesiredDisk};
use crate::images::Digest;
use crate::node::tests::{exports, service, uid};
use crate::testkit::{Node, TIMEOUT};

mod copies;
mod snapshots;

type Messages = ReceiverStream<Result<v1::ExportEvent, Status>>;

const MIB: u64 = 1 << 20;

/// A file that a client has of an export.
#[derive(Debug, Default)]
struct Fetched {
    offset: u64,
    size: u64,
    bytes: Vec<u8>,
    digest: Option<String>,
}

/// The disk of the machine.
fn own() -> Source {
    Source {
        vm: uid(1),
        state: DiskState::Present,
    }
}

/// A machine's disk of 64 MiB with this pattern in its first 8 MiB.
async fn disk(node: &Node, linked: bool, pattern: u8) {
    let desired = DesiredDisk {
        vm: uid(1),
        name: "default/vm".to_owned(),
        image: node.image("disk"),
        url: None,
        size: 64 * MIB,
        linked,
    };
    node.disks.make(&desired, |_| {}).await.unwrap();
    fill(node, pattern);
}

fn fill(node: &Node, pattern: u8) {
    let write = format!("write -P {pattern} 0 8M");
    let mut tool = Command::new("qemu-io");
    let tool = tool.args(["-f", "qcow2", "-c", &write]);
    assert!(
        tool.arg(node.disks.file(uid(1)))
            .output()
            .unwrap()
            .status
            .success()
    );
}

fn tool(arguments: &[&str], files: &[PathBuf]) -> String {
    let made = Command::new("qemu-img")
        .args(arguments)
        .args(files)
        .output();
    let made = made.unwrap();
    assert!(made.status.success(), "{made:?}");
    String::from_utf8(made.stdout).unwrap()
}

fn received_of(bytes: &[u8]) -> Option<Received> {
    (!bytes.is_empty()).then(|| Received {
        bytes: bytes.len() as u64,
        digest: Digest::from_bytes(Sha256::digest(bytes).into()),
    })
}

fn fetch(exports: &Exports, received: &[u8]) -> Messages {
    let received = received_of(received);
    let requested = Requested::Disk(uid(1));
    stream(
        exports.clone(),
        requested,
        received,
        CancellationToken::new(),
    )
}

async fn next(messages: &mut Messages) -> Option<Result<Event, Status>> {
    let message = tokio::time::timeout(TIMEOUT, messages.next()).await;
    let message = message.expect("a message in time");
    message.map(|one| one.map(|one| one.event.unwrap()))
}

/// All messages up to the end, or up to this many bytes.
async fn read(messages: &mut Messages, most: usize) -> Result<Fetched, Status> {
    let mut fetched = Fetched::default();
    while let Some(event) = next(messages).await {
        match event? {
            Event::PreparingPercent(percent) => assert!(percent <= 100),
            Event::Begin(begin) => {
                (fetched.offset, fetched.size) = (begin.offset, begin.size_bytes)
            }
            Event::Data(data) => fetched.bytes.extend(data),
            Event::End(end) => fetched.digest = Some(end.sha256),
        }
        if fetched.bytes.len() >= most {
            break;
        }
    }
    Ok(fetched)
}

async fn whole(exports: &Exports) -> Fetched {
    let fetched = read(&mut fetch(exports, &[]), usize::MAX).await.unwrap();
    let digest = Digest::from_bytes(Sha256::digest(&fetched.bytes).into());
    assert_eq!(fetched.digest, Some(digest.hex()));
    assert_eq!(fetched.size, fetched.bytes.len() as u64);
    fetched
}

async fn refusal(exports: &Exports) -> Status {
    let sent = read(&mut fetch(exports, &[]), usize::MAX).await;
    sent.expect_err("a refusal")
}

/// Copies that are there.
fn copies(exports: &Exports) -> usize {
    std::fs::read_dir(&exports.0.root).unwrap().count()
}

async fn await_copies(exports: &Exports, count: usize) {
    let waiting = async {
        while copies(exports) != count {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TIMEOUT, waiting)
        .await
        .expect("no copy left");
}

#[tokio::test]
async fn a_client_gets_all_of_a_disk_in_a_file_that_stands_alone() {
    for linked in [true, false] {
        let node = Node::new().await;
        disk(&node, linked, 7).await;
        let exports = exports(&node);
        let mut file = tempfile::Builder::new()
            .suffix(".qcow2")
            .tempfile()
            .unwrap();
        file.write_all(&whole(&exports).await.bytes).unwrap();
        let copy = file.path().to_owned();
        tool(&["check", "-q", "-f", "qcow2"], std::slice::from_ref(&copy));
        let info = tool(
            &["info", "--output=json", "-f", "qcow2"],
            std::slice::from_ref(&copy),
        );
        assert!(!info.contains("backing"), "{info}");
        tool(&["compare", "-q"], &[node.disks.file(uid(1)), copy]);
    }
}

#[tokio::test]
async fn a_client_continues_where_it_was_while_the_disk_is_the_same() {
    let node = Node::new().await;
    disk(&node, true, 7).await;
    let exports = exports(&node);
    let mut messages = fetch(&exports, &[]);
    let mut part = read(&mut messages, 3 << 20).await.unwrap().bytes;
    drop(messages);
    let rest = read(&mut fetch(&exports, &part), usize::MAX).await.unwrap();
    assert_eq!(rest.offset, part.len() as u64);
    part.extend(&rest.bytes);
    assert_eq!(whole(&exports).await.bytes, part);
    assert_eq!(copies(&exports), 1, "each call made its own");

    // All of it, something else, more than there is, and what was there before the guest wrote.
    let again = read(&mut fetch(&exports, &part), usize::MAX).await.unwrap();
    assert_eq!((again.offset, again.bytes.len()), (part.len() as u64, 0));
    assert_eq!(again.digest, rest.digest);
    for other in [vec![1; 1 << 20], [part.clone(), vec![0]].concat()] {
        let fresh = read(&mut fetch(&exports, &other), usize::MAX)
            .await
            .unwrap();
        assert_eq!((fresh.offset, fresh.bytes.len()), (0, part.len()));
    }
    fill(&node, 8);
    let fresh = read(&mut fetch(&exports, &part), usize::MAX).await.unwrap();
    assert_eq!(fresh.offset, 0);
    assert_ne!(fresh.digest, rest.digest);
    assert_eq!(copies(&exports), 1, "of the disk as it was");
    exports.forget(own()).await.unwrap();
    exports.forget(own()).await.unwrap();
    assert_eq!(copies(&exports), 0);
}

#[tokio::test]
async fn a_disk_is_refused_that_changes_or_is_incomplete() {
    let node = Node::new().await;
    let exports = exports(&node);
    let vm = uid(1);
    assert_eq!(refusal(&exports).await.code(), Code::NotFound);
    disk(&node, true, 7).await;
    let container = podspec::ContainerId::generate();
    node.disks.take(vm, &container).await.unwrap();
    let running = refusal(&exports).await;
    assert_eq!(running.code(), Code::FailedPrecondition);
    assert!(running.message().contains("stop the machine"), "{running}");
    node.disks.give_back(vm, &container).await.unwrap();
    node.disks.begin_memory(vm, vec![], false).await.unwrap();
    let suspended = refusal(&exports).await;
    assert!(suspended.message().contains("is suspended"), "{suspended}");
    assert_eq!(copies(&exports), 0);
}

#[tokio::test]
async fn a_disk_that_a_program_without_a_record_writes_to_is_refused() {
    let node = Node::new().await;
    disk(&node, true, 7).await;
    let exports = exports(&node);
    let mut other = tokio::process::Command::new("qemu-io");
    other.args(["-f", "qcow2"]).arg(node.disks.file(uid(1)));
    other.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut other = other.kill_on_drop(true).spawn().unwrap();
    let mut words = other.stdin.take().unwrap();
    words.write_all(b"length\n").await.unwrap();
    let mut reported = [0; 16];
    let reported = other.stdout.as_mut().unwrap().read(&mut reported).await;
    assert!(reported.unwrap() > 0, "it has the disk open");
    let refused = refusal(&exports).await;
    assert_eq!(refused.code(), Code::Unavailable);
    let text = refused.message();
    assert!(text.ends_with("written to by another program"), "{text}");
    drop(words);
    other.wait().await.unwrap();
    whole(&exports).await;
}

#[tokio::test]
async fn no_machine_starts_while_its_disk_is_copied_and_one_does_while_the_copy_is_sent() {
    let node = Node::new().await;
    disk(&node, true, 7).await;
    let vm = uid(1);
    let exports = exports(&node);
    let container = podspec::ContainerId::generate();
    let reserved = node.disks.reserve(vm).await.unwrap();
    let refused = node.disks.take(vm, &container).await.unwrap_err();
    assert!(refused.is_transient() && refused.to_string().contains("being copied"));
    let second = node.disks.reserve(vm).await;
    assert!(matches!(second, Err(disk::Error::Busy { .. })));
    drop(reserved);
    let mut messages = fetch(&exports, &[]);
    let begun = read(&mut messages, 1).await.unwrap();
    node.disks.take(vm, &container).await.unwrap();
    let rest = read(&mut messages, usize::MAX).await.unwrap();
    assert_eq!((begun.bytes.len() + rest.bytes.len()) as u64, begun.size);
}

#[tokio::test]
async fn a_deletion_ends_the_export_and_takes_the_copy_away() {
    let node = Node::new().await;
    disk(&node, true, 7).await;
    let exports = exports(&node);
    let mut messages = fetch(&exports, &[]);
    read(&mut messages, 1).await.unwrap();
    node.disks.delete(uid(1)).await.unwrap();
    let ended = read(&mut messages, usize::MAX).await.unwrap_err();
    assert_eq!(ended.code(), Code::NotFound);
    assert!(ended.message().contains("is deleted"), "{ended}");
    await_copies(&exports, 0).await;
}

#[tokio::test]
async fn a_node_serves_few_clients_at_once() {
    let node = Node::new().await;
    disk(&node, true, 7).await;
    let exports = exports(&node);
    let all = exports.0.places.try_acquire_many(4).unwrap();
    let refused = refusal(&exports).await;
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert_eq!(copies(&exports), 0);
    drop(all);
    whole(&exports).await;
}

#[tokio::test]
async fn the_agent_gets_no_disk() {
    let node = Node::new().await;
    let service = service(&node).await;
    let request = || {
        Request::new(v1::ExportDiskRequest {
            vm_uid: uid(1).to_string(),
            ..v1::ExportDiskRequest::default()
        })
    };
    let refused = service.export_disk(request()).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    let (ours, _theirs) = tokio::net::UnixStream::pair().unwrap();
    let mut own = request();
    own.extensions_mut().insert(ours.connect_info());
    service.export_disk(own).await.unwrap();
}

#[tokio::test]
async fn a_file_that_the_header_of_a_disk_names_is_not_read() {
    let node = Node::new().await;
    disk(&node, false, 7).await;
    let mut secret = tempfile::NamedTempFile::new().unwrap();
    secret.write_all(&vec![0x55; 64 << 20]).unwrap();
    let path = secret.path().to_str().unwrap();
    let rebase = ["rebase", "-u", "-f", "qcow2", "-F", "raw", "-b", path];
    tool(&rebase, &[node.disks.file(uid(1))]);
    let copy = whole(&exports(&node)).await.bytes;
    let is_of_it = |piece: &[u8]| piece.iter().all(|byte| *byte == 0x55);
    assert!(!copy.chunks_exact(512).any(is_of_it));
}
