//! The tokio ends against each other and against a synchronous peer.
//!
//! Invariant: waits are for readiness, never for time to pass.
//! Failure: a hang is ended by a timeout of the test itself.

#![cfg(feature = "tokio")]

use std::os::fd::AsFd;
use std::time::Duration;

use fdpass::{AsyncConnection, AsyncListener, Connection, Error, socketpair};
use tokio::time::timeout;

const SOON: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_request_and_its_descriptor_cross_to_a_synchronous_client() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.sock");
    let listener = AsyncListener::bind(&path, 0o600).unwrap();
    assert_eq!(listener.path(), path);
    let client = tokio::task::spawn_blocking(move || {
        let connection = Connection::connect_within(&path, SOON).unwrap();
        connection.send(b"ping", &[]).unwrap();
        connection.recv(64).unwrap().unwrap()
    });
    let connection = timeout(SOON, listener.accept()).await.unwrap().unwrap();
    assert_eq!(
        connection.peer().unwrap().pid.cast_unsigned(),
        std::process::id()
    );
    let request = timeout(SOON, connection.recv(64))
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert_eq!(request.bytes, b"ping");
    let file = tempfile::tempfile().unwrap();
    connection.send(b"pong", &[file.as_fd()]).await.unwrap();
    let reply = client.await.unwrap();
    assert_eq!(
        (reply.bytes.as_slice(), reply.fds.len()),
        (b"pong".as_slice(), 1)
    );
}

#[tokio::test]
async fn sending_waits_until_the_peer_reads() {
    let (a, b) = socketpair().unwrap();
    let a = AsyncConnection::try_from(a).unwrap();
    let b = AsyncConnection::try_from(b).unwrap();
    const COUNT: usize = 2_000;
    let writer = async {
        for _ in 0..COUNT {
            a.send(&[7; 4096], &[]).await.unwrap();
        }
        drop(a);
    };
    let reader = async {
        let mut count = 0;
        while let Some(message) = b.recv(4096).await.unwrap() {
            assert_eq!(message.bytes.len(), 4096);
            count += 1;
        }
        count
    };
    let ((), count) = timeout(SOON, async { tokio::join!(writer, reader) })
        .await
        .unwrap();
    assert_eq!(count, COUNT);
}

#[tokio::test]
async fn a_message_beyond_the_limit_is_an_error() {
    let (a, b) = socketpair().unwrap();
    let b = AsyncConnection::try_from(b).unwrap();
    a.send(&[0; 100], &[]).unwrap();
    let outcome = timeout(SOON, b.recv(99)).await.unwrap();
    assert!(matches!(outcome, Err(Error::Truncated { max: 99 })));
}

#[tokio::test]
async fn a_connection_without_a_listener_fails_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let outcome = AsyncConnection::connect(&dir.path().join("none"));
    assert!(matches!(outcome, Err(Error::Connect { .. })));
}

#[tokio::test]
async fn both_ends_may_be_asynchronous() {
    let dir = tempfile::tempdir().unwrap();
    let listener = AsyncListener::bind(&dir.path().join("s"), 0o600).unwrap();
    let client = AsyncConnection::connect(listener.path()).unwrap();
    let server = timeout(SOON, listener.accept()).await.unwrap().unwrap();
    client.send(b"x", &[]).await.unwrap();
    assert_eq!(
        timeout(SOON, server.recv(1))
            .await
            .unwrap()
            .unwrap()
            .unwrap()
            .bytes,
        b"x"
    );
    drop(client);
    assert!(
        timeout(SOON, server.recv(1))
            .await
            .unwrap()
            .unwrap()
            .is_none()
    );
}
