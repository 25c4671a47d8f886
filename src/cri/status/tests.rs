//! Tests of codes and messages.
//!
//! Invariant: each error is one that a service really raises.
//! Failure: a failing test shows code and message.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use podspec::SandboxId;
use rstest::rstest;
use tonic::{Code, Status};

use super::{one_line, pull};
use crate::cri::convert::Invalid;
use crate::metadata::LookupError;
use crate::vm::exec::Error as E;
use crate::{files, images, metadata, pods, vm};

fn unavailable() -> libvirt::Error {
    libvirt::Error::Unavailable {
        reason: "no socket".into(),
    }
}

#[test]
fn a_missing_object_is_not_found_and_an_ambiguous_one_is_the_clients_mistake() {
    let id = || "ab".to_owned();
    let noun = "sandbox";
    let missing = Status::from(LookupError::NotFound { noun, id: id() });
    assert_eq!(missing.code(), Code::NotFound);
    let ambiguous = Status::from(LookupError::Ambiguous { noun, id: id() });
    assert_eq!(ambiguous.code(), Code::InvalidArgument);
    let invalid = Status::from(Invalid::missing("config.metadata"));
    assert_eq!(invalid.code(), Code::InvalidArgument);
    assert_eq!(invalid.message(), "config.metadata: it is required");
}

#[test]
fn the_message_is_the_whole_chain_on_one_line() {
    let source = vm::Error::Hypervisor {
        step: "start",
        source: libvirt::Error::Refused {
            call: "start",
            reason: "line one\n  line two\u{7}".into(),
        },
    };
    let id = SandboxId::generate();
    let error = pods::Error::Guests {
        step: "stop",
        id: id.clone(),
        source: Box::new(source),
    };
    let status = Status::from(error);
    assert_eq!(
        status.message(),
        format!(
            "stop the virtual machine of sandbox {id}: start the virtual machine: \
             libvirt refused start: line one line two"
        )
    );
    assert_eq!(status.code(), Code::Internal);
}

#[test]
fn a_transparent_error_is_printed_once() {
    let error = vm::Error::Image(images::Error::Absent {
        reference: "x".into(),
    });
    assert_eq!(one_line(&error).matches("in the store").count(), 1);
    assert_eq!(Status::from(error).code(), Code::NotFound);
}

#[test]
fn a_helper_that_is_away_is_unavailable_through_every_layer() {
    let gone = || vm::Error::Hypervisor {
        step: "start",
        source: unavailable(),
    };
    assert_eq!(Status::from(gone()).code(), Code::Unavailable);
    let outer = pods::Error::Guests {
        step: "stop",
        id: SandboxId::generate(),
        source: Box::new(gone()),
    };
    assert_eq!(Status::from(outer).code(), Code::Unavailable);
}

#[rstest]
#[case::kernel(vm::Error::Files(files::Error {
    step: "make",
    path: "/x".into(),
    source: io::Error::from_raw_os_error(28),
}))]
#[case::qemu_img(vm::Error::Disk {
    path: "/x".into(),
    reason: "qemu-img: /x: Could not write qcow2 header: No space left on device".into(),
})]
#[case::database(
    vm::Error::Db(metadata::Error::Statement(rusqlite::Error::SqliteFailure(
        rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_FULL),
        None,
    )))
)]
#[case::image(vm::Error::Image(images::Error::NoSpace { dir: "/x".into(), because: String::new(), required: 0 }))]
fn a_full_disk_is_an_exhausted_resource(#[case] error: vm::Error) {
    let status = Status::from(error);
    assert_eq!(
        status.code(),
        Code::ResourceExhausted,
        "{}",
        status.message()
    );
}

#[test]
fn a_pull_onto_a_full_disk_is_an_exhausted_resource() {
    let full = pull(&images::Error::NoSpace {
        dir: "/x".into(),
        because: String::new(),
        required: 0,
    });
    assert_eq!(full.code(), Code::ResourceExhausted);
    let full = pull(&images::Error::Io {
        action: "write",
        path: "/x".into(),
        source: Arc::new(io::Error::from_raw_os_error(28)),
    });
    assert_eq!(full.code(), Code::ResourceExhausted);
}

fn location() -> String {
    "host/disk".into()
}

#[rstest]
#[case::missing(
    images::Error::NotFound { location: location(), status: "404 Not Found".into() },
    Code::NotFound,
    "not found: host/disk answered 404 Not Found"
)]
#[case::busy(
    images::Error::Unavailable { location: location(), status: "503".into() },
    Code::Unknown,
    "RegistryUnavailable: unavailable: host/disk answered 503"
)]
#[case::stalled(
    images::Error::Stalled { location: location(), seconds: 30 },
    Code::Unknown,
    "RegistryUnavailable: stalled: host/disk sent nothing for 30 s"
)]
#[case::overdue(
    images::Error::Overdue { location: location(), ms: 500 },
    Code::Unknown,
    "RegistryUnavailable: timed out: the download of host/disk took longer than 500 ms, the timeout \
     of its transport"
)]
#[case::anonymous(
    images::Error::Refused { location: location(), code: 401, status: "401 Unauthorized".into() },
    Code::Unauthenticated,
    "refused: host/disk answered 401 Unauthorized"
)]
#[case::forbidden(
    images::Error::Refused { location: location(), code: 403, status: "403 Forbidden".into() },
    Code::PermissionDenied,
    "refused: host/disk answered 403 Forbidden"
)]
#[case::other_method(
    images::Error::Refused { location: location(), code: 405, status: "405".into() },
    Code::Unknown,
    "refused: host/disk answered 405"
)]
#[case::truncated(
    images::Error::Truncated { location: location(), received: 1, total: 2 },
    Code::Unavailable,
    "truncated: host/disk sent 1 of 2 bytes"
)]
#[case::name(
    images::Error::InvalidName { name: "x y".into(), reason: "has a space".into() },
    Code::InvalidArgument,
    "invalid image name \"x y\": it has a space"
)]
#[case::disk(
    images::Error::Io {
        action: "write",
        path: "/x".into(),
        source: Arc::new(io::Error::other("broken")),
    },
    Code::Unknown,
    "write /x: broken"
)]
fn a_failed_pull_reads_well_in_a_pods_events(
    #[case] error: images::Error,
    #[case] code: Code,
    #[case] message: &str,
) {
    let status = pull(&error);
    assert_eq!((status.code(), status.message()), (code, message));
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_is_an_unavailable_registry() {
    let directory = tempfile::tempdir().unwrap();
    let db = metadata::Db::open(&directory.path().join("vmlet.db")).unwrap();
    let settings = images::Settings {
        protocol: images::Protocol::Http,
        proxy: images::Proxy::Direct,
        allowed_addresses: vec!["127.0.0.1/32".parse().unwrap()],
        ..images::Settings::new(directory.path().join("images"))
    };
    let images = images::Images::open(db, settings).await.unwrap();
    tokio::time::pause();
    // No server listens there; names below `invalid.` do not exist.
    for (host, reason) in [
        ("127.0.0.1:1", "connection refused"),
        ("registry.invalid", "failed to lookup address information"),
    ] {
        let error = images.pull(&format!("{host}/disk")).await.unwrap_err();
        let status = pull(&error);
        let words = format!("RegistryUnavailable: failed to fetch {host}/disk: {reason}");
        assert!(status.message().starts_with(&words), "{status}");
        assert!(!status.message().contains("client error"), "{status}");
        assert_eq!(status.code(), Code::Unknown, "kubelet cuts this code off");
        let created = Status::from(vm::Error::Image(error));
        assert_eq!(created.code(), Code::Unavailable);
    }
}

#[rstest]
#[case::late(E::Timeout(Duration::from_secs(2)), Code::DeadlineExceeded)]
#[case::not_started(E::NotStarted(Duration::from_secs(2)), Code::DeadlineExceeded)]
#[case::hung(E::Silent(unavailable()), Code::DeadlineExceeded)]
#[case::no_agent(E::NoAgent(unavailable()), Code::FailedPrecondition)]
#[case::libvirt_is_late(
    E::Hypervisor(libvirt::Error::Deadline { call: "x", deadline: Duration::ZERO }),
    Code::Unavailable
)]
#[case::no_command(E::NoCommand("x".into()), Code::InvalidArgument)]
fn only_what_a_guest_is_to_blame_for_fails_a_probe(#[case] error: E, #[case] code: Code) {
    assert_eq!(Status::from(vm::Error::Exec(error)).code(), code);
}
