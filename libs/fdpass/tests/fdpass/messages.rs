//! Messages between two ends, synchronous: bytes, descriptors, limits and deadlines.
//!
//! Invariant: each test owns its sockets; nothing is shared between tests.
//! Failure: a test that would block ends by the deadline it sets.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use fdpass::{Connection, Error, Listener, MAX_DESCRIPTORS, clear_cloexec, socketpair};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};

const SOON: Duration = Duration::from_secs(60);

fn cloexec(fd: &OwnedFd) -> bool {
    fcntl(fd, FcntlArg::F_GETFD).unwrap() & FdFlag::FD_CLOEXEC.bits() != 0
}

#[test]
fn a_descriptor_arrives_with_its_bytes_and_refers_to_the_same_file() {
    let (a, b) = socketpair().unwrap();
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(b"contents").unwrap();
    a.send(b"hello", &[file.as_fd()]).unwrap();
    let message = b.recv(64).unwrap().unwrap();
    assert_eq!(message.bytes, b"hello");
    let [received] = <[OwnedFd; 1]>::try_from(message.fds).unwrap();
    assert!(cloexec(&received));
    let mut copy = File::from(received);
    copy.rewind().unwrap();
    let mut text = String::new();
    copy.read_to_string(&mut text).unwrap();
    assert_eq!(text, "contents");
}

#[test]
fn messages_keep_their_borders() {
    let (a, b) = socketpair().unwrap();
    a.send(b"one", &[]).unwrap();
    a.send(b"three", &[]).unwrap();
    assert_eq!(b.recv(64).unwrap().unwrap().bytes, b"one");
    assert_eq!(b.recv(64).unwrap().unwrap().bytes, b"three");
}

#[test]
fn the_kernels_maximum_of_descriptors_fits_and_one_more_is_refused() {
    let (a, b) = socketpair().unwrap();
    let file = tempfile::tempfile().unwrap();
    let most = vec![file.as_fd(); MAX_DESCRIPTORS];
    a.send(b"x", &most).unwrap();
    assert_eq!(b.recv(8).unwrap().unwrap().fds.len(), MAX_DESCRIPTORS);
    let more = vec![file.as_fd(); MAX_DESCRIPTORS + 1];
    assert!(matches!(
        a.send(b"x", &more),
        Err(Error::TooManyDescriptors { count: 254 })
    ));
}

#[test]
fn a_closed_peer_is_none_and_sending_to_it_is_an_error() {
    let (a, b) = socketpair().unwrap();
    drop(a);
    assert!(b.recv(8).unwrap().is_none());
    assert!(matches!(b.send(b"x", &[]), Err(Error::Send(_))));
}

#[test]
fn an_empty_message_is_never_sent() {
    let (a, _b) = socketpair().unwrap();
    assert!(matches!(a.send(b"", &[]), Err(Error::Empty)));
}

#[test]
fn a_deadline_ends_a_wait_for_a_silent_peer() {
    let (a, _b) = socketpair().unwrap();
    a.set_deadline(Some(Duration::from_millis(20))).unwrap();
    assert!(matches!(a.recv(8), Err(Error::TimedOut)));
}

#[test]
fn a_deadline_ends_a_send_to_a_peer_that_does_not_read() {
    let (a, _b) = socketpair().unwrap();
    a.set_deadline(Some(Duration::from_millis(20))).unwrap();
    let outcome = (0..10_000).find_map(|_| a.send(&[0; 4096], &[]).err());
    assert!(matches!(outcome, Some(Error::TimedOut)));
}

#[test]
fn clearing_close_on_exec_touches_one_descriptor_only() {
    let (a, b) = socketpair().unwrap();
    clear_cloexec(a.as_fd()).unwrap();
    assert!(!cloexec(&a.into()));
    assert!(cloexec(&b.into()));
}

#[test]
fn a_listener_has_its_mode_and_names_its_peer() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.sock");
    let listener = Listener::bind(&path, 0o666).unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o666);
    let client = Connection::connect_within(&path, SOON).unwrap();
    let peer = listener.accept().unwrap().peer().unwrap();
    assert_eq!(peer.pid.cast_unsigned(), std::process::id());
    assert_eq!(peer.uid, nix::unistd::getuid().as_raw());
    drop(client);
    let names: Vec<_> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    assert_eq!(names, [path], "no temporary name is left");
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.sock");
    drop(Listener::bind(&path, 0o600).unwrap());
    let live = Listener::bind(&path, 0o600).unwrap();
    assert!(matches!(
        Listener::bind(&path, 0o600),
        Err(Error::InUse { .. })
    ));
    let client = Connection::connect_within(&path, SOON).unwrap();
    // The refused attempt has knocked, too.
    assert!(live.accept().unwrap().recv(1).unwrap().is_none());
    live.accept().unwrap().send(b"still here", &[]).unwrap();
    assert_eq!(client.recv(64).unwrap().unwrap().bytes, b"still here");
}

#[test]
fn what_is_no_socket_of_ours_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    assert!(matches!(
        Listener::bind(&file, 0o600),
        Err(Error::InUse { .. })
    ));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    let stream = dir.path().join("stream");
    let _other = UnixListener::bind(&stream).unwrap();
    assert!(matches!(
        Listener::bind(&stream, 0o600),
        Err(Error::InUse { .. })
    ));
}

#[test]
fn a_path_too_long_for_an_address_is_named() {
    let path = std::path::PathBuf::from(format!("/tmp/{}", "x".repeat(120)));
    assert!(matches!(
        Connection::connect(&path),
        Err(Error::Path { .. })
    ));
}
