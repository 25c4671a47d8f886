//! The socket between a task that writes and a peer that reads when it likes.
//!
//! Invariant: the peer is the kernel's other end, not a fake.
//! Failure: the bytes that differ, or the read that came too early.

use std::io::Read;
use std::pin::pin;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

fn pair() -> (Socket, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    theirs.set_nonblocking(true).unwrap();
    let ours = tokio::net::UnixStream::from_std(ours).unwrap();
    (Socket::new(ours).unwrap(), theirs)
}

fn at_hand(peer: &mut UnixStream) -> Vec<u8> {
    let mut bytes = vec![0; 64];
    match peer.read(&mut bytes) {
        Ok(read) => bytes[..read].to_vec(),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Vec::new(),
        Err(e) => panic!("{e}"),
    }
}

#[tokio::test]
async fn what_ready_tasks_write_one_after_the_other_leaves_in_one_piece() {
    let (mut socket, mut peer) = pair();
    let outgoing = socket.outgoing();
    let work = pin!(async {
        socket.write_all(b"headers ").await.unwrap();
        socket.flush().await.unwrap();
        assert_eq!(at_hand(&mut peer), b"");
        // Another task's turn.
        let mut first = true;
        std::future::poll_fn(|cx| {
            cx.waker().wake_by_ref();
            if std::mem::take(&mut first) {
                Poll::Pending
            } else {
                Poll::Ready(())
            }
        })
        .await;
        socket.write_all(b"data").await.unwrap();
        assert_eq!(at_hand(&mut peer), b"");
    });
    drive(work, &outgoing).await;
    assert_eq!(at_hand(&mut peer), b"headers data");
}

#[tokio::test]
async fn what_was_written_leaves_although_the_writer_waits() {
    let (mut socket, peer) = pair();
    let outgoing = socket.outgoing();
    let mut peer = tokio::net::UnixStream::from_std(peer).unwrap();
    let work = pin!(async {
        socket.write_all(b"question").await.unwrap();
        let mut answer = [0; 6];
        socket.read_exact(&mut answer).await.unwrap();
        answer
    });
    let other = async {
        let mut question = [0; 8];
        peer.read_exact(&mut question).await.unwrap();
        assert_eq!(&question, b"question");
        peer.write_all(b"answer").await.unwrap();
    };
    let (answer, ()) = tokio::join!(drive(work, &outgoing), other);
    assert_eq!(&answer, b"answer");
}

#[tokio::test]
async fn more_than_the_kernel_takes_arrives_whole_and_in_order() {
    let (mut socket, peer) = pair();
    let outgoing = socket.outgoing();
    let mut peer = tokio::net::UnixStream::from_std(peer).unwrap();
    let sent: Vec<u8> = (0..4_000_000_u32).map(|n| (n % 251) as u8).collect();
    let work = pin!(async {
        for piece in sent.chunks(16 * 1024 + 9) {
            socket.write_all(piece).await.unwrap();
        }
        socket.shutdown().await.unwrap();
    });
    let mut received = Vec::new();
    let other = async {
        peer.read_to_end(&mut received).await.unwrap();
    };
    tokio::join!(drive(work, &outgoing), other);
    assert!(received == sent, "{} of {}", received.len(), sent.len());
}

#[tokio::test]
async fn a_disconnected_peer_ends_the_wait_for_its_reply() {
    let (mut socket, peer) = pair();
    let outgoing = socket.outgoing();
    peer.shutdown(Shutdown::Read).unwrap();
    let work = pin!(async {
        socket.write_all(b"question").await.unwrap();
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).await
    });
    let ended = drive(work, &outgoing).await;
    assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    drop(peer);
}
