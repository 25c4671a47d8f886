use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio_util::codec::{Decoder as _, Encoder as _};

use super::*;
use crate::MAX_PIECE;

/// A client that speaks in frames.
struct Client {
    transport: DuplexStream,
    encoder: Encoder,
    decoder: Decoder,
    buffer: BytesMut,
}

fn connected(limits: Limits) -> (Client, Session) {
    let (near, far) = duplex(1 << 20);
    let client = Client {
        transport: near,
        encoder: Encoder::new().unwrap(),
        decoder: Decoder::default(),
        buffer: BytesMut::new(),
    };
    (client, Session::server(far, limits).unwrap())
}

impl Client {
    async fn send(&mut self, frame: Frame) {
        let mut bytes = BytesMut::new();
        self.encoder.encode(frame, &mut bytes).unwrap();
        self.transport.write_all(&bytes).await.unwrap();
    }

    async fn open(&mut self, stream: u32, kind: &str) {
        let headers = vec![("streamtype".to_owned(), kind.to_owned())];
        let fin = false;
        self.send(Frame::SynStream {
            stream,
            fin,
            headers,
        })
        .await;
    }

    async fn data(&mut self, stream: u32, content: &[u8], fin: bool) {
        let content = Bytes::copy_from_slice(content);
        self.send(Frame::Data {
            stream,
            fin,
            content,
        })
        .await;
    }

    async fn next(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = self.decoder.decode(&mut self.buffer).unwrap() {
                return Some(frame);
            }
            if self.transport.read_buf(&mut self.buffer).await.unwrap() == 0 {
                return None;
            }
        }
    }
}

#[tokio::test]
async fn streams_carry_bytes_both_ways_and_end_separately() {
    let (mut client, mut session) = connected(Limits::default());
    client.open(1, "stdin").await;
    client.open(3, "stdout").await;
    let input = session.accept().await.unwrap().unwrap();
    let output = session.accept().await.unwrap().unwrap();
    assert_eq!((input.id(), input.header("streamtype")), (1, Some("stdin")));
    for stream in [1, 3] {
        let reply = client.next().await.unwrap();
        assert!(matches!(reply, Frame::SynReply { stream: id, fin: false, .. } if id == stream));
    }
    client.data(1, b"hello ", false).await;
    client.data(1, b"guest", true).await;
    let mut text = String::new();
    let (mut read, _write) = input.split();
    read.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "hello guest");
    let (_read, mut write) = output.split();
    write.write_all(&vec![7; 100_000]).await.unwrap();
    write.shutdown().await.unwrap();
    let mut received = 0;
    loop {
        let Some(Frame::Data {
            stream: 3,
            fin,
            content,
        }) = client.next().await
        else {
            panic!("not the content of stream 3")
        };
        received += content.len();
        if fin {
            break;
        }
    }
    assert_eq!(received, 100_000);
    assert!(write.write_all(b"more").await.is_err());
    drop((read, write));
    session.close().await.unwrap();
    assert!(matches!(client.next().await, Some(Frame::GoAway { .. })));
    assert_eq!(client.next().await, None);
}

#[tokio::test]
async fn what_is_cut_is_an_error_and_no_end() {
    let (mut client, mut session) = connected(Limits::default());
    client.open(1, "stdin").await;
    client.open(3, "stdin").await;
    let cut = session.accept().await.unwrap().unwrap();
    let lost = session.accept().await.unwrap().unwrap();
    client.data(1, b"half", false).await;
    let status = ResetStatus::CANCEL;
    client.send(Frame::Reset { stream: 1, status }).await;
    let mut bytes = Vec::new();
    let (mut read, mut write) = cut.split();
    let error = read.read_to_end(&mut bytes).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    assert_eq!(bytes, b"half");
    assert!(write.write_all(b"x").await.is_err());
    drop(client);
    let (mut read, _write) = lost.split();
    assert!(read.read_to_end(&mut bytes).await.is_err());
    assert!(session.accept().await.unwrap().is_none());
}

#[tokio::test]
async fn ids_that_do_not_rise_and_too_many_streams_are_refused() {
    let limits = Limits {
        streams: 2,
        ..Limits::default()
    };
    let (mut client, mut session) = connected(limits);
    for (id, expected) in [
        (2, Some(ResetStatus::PROTOCOL_ERROR)),
        (3, None),
        (3, Some(ResetStatus::PROTOCOL_ERROR)),
        (1, Some(ResetStatus::PROTOCOL_ERROR)),
        (5, None),
        (7, Some(ResetStatus::REFUSED_STREAM)),
    ] {
        client.open(id, "data").await;
        let answer = client.next().await.unwrap();
        match expected {
            None => assert!(matches!(answer, Frame::SynReply { stream, .. } if stream == id)),
            Some(status) => assert_eq!(answer, Frame::Reset { stream: id, status }),
        }
    }
    drop(session.accept().await.unwrap().unwrap());
    client.open(9, "data").await;
    let answer = client.next().await.unwrap();
    assert!(
        matches!(answer, Frame::SynReply { stream: 9, .. }),
        "{answer:?}"
    );
}

#[tokio::test]
async fn pings_of_the_client_are_answered() {
    let (mut client, _session) = connected(Limits::default());
    client.send(Frame::Ping(2)).await;
    client.send(Frame::Ignored(4)).await;
    client.send(Frame::Ping(5)).await;
    assert_eq!(client.next().await, Some(Frame::Ping(5)));
}

#[tokio::test]
async fn garbage_ends_the_session_with_an_error() {
    let (mut client, mut session) = connected(Limits::default());
    client
        .transport
        .write_all(&[0x80, 9, 0, 0, 0, 0, 0, 0])
        .await
        .unwrap();
    assert!(session.accept().await.is_err());
    let status = GoAwayStatus::PROTOCOL_ERROR;
    assert_eq!(client.next().await, Some(Frame::GoAway { last: 0, status }));
}

#[tokio::test(start_paused = true)]
async fn a_stream_without_a_reader_is_reset_and_the_others_continue() {
    let (mut client, mut session) = connected(Limits::default());
    client.open(1, "stdin").await;
    client.open(3, "stdin").await;
    let stuck = session.accept().await.unwrap().unwrap();
    let healthy = session.accept().await.unwrap().unwrap();
    let full = Limits::default().buffer / MAX_PIECE + 1;
    for _ in 0..full {
        client.data(1, &[1; MAX_PIECE], false).await;
    }
    client.data(3, b"through", true).await;
    let mut text = String::new();
    let (mut read, _write) = healthy.split();
    read.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "through");
    let (mut read, _write) = stuck.split();
    let mut bytes = Vec::new();
    assert!(read.read_to_end(&mut bytes).await.is_err());
    assert_eq!(bytes.len(), Limits::default().buffer);
}

#[tokio::test]
async fn a_reader_that_was_dropped_holds_up_nothing() {
    let (mut client, mut session) = connected(Limits::default());
    client.open(1, "stdin").await;
    client.open(3, "stdin").await;
    let (read, _write) = session.accept().await.unwrap().unwrap().split();
    let other = session.accept().await.unwrap().unwrap();
    drop(read);
    for _ in 0..20 {
        client.data(1, &[1; MAX_PIECE], false).await;
    }
    client.data(3, b"through", true).await;
    let (mut read, _other) = other.split();
    let mut text = String::new();
    read.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "through");
}

#[tokio::test(start_paused = true)]
async fn an_idle_session_ends_and_one_that_writes_continues() {
    let (mut client, mut session) = connected(Limits::default());
    client.open(1, "stdout").await;
    let (_read, mut write) = session.accept().await.unwrap().unwrap().split();
    let idle = Limits::default().idle;
    for _ in 0..3 {
        tokio::time::sleep(idle - Duration::from_secs(60)).await;
        write.write_all(b"tick").await.unwrap();
    }
    let since = tokio::time::Instant::now();
    let ended = session.accept().await;
    assert!(matches!(ended, Err(Error::Idle(_))), "{ended:?}");
    assert!((idle..2 * idle).contains(&since.elapsed()));
}
