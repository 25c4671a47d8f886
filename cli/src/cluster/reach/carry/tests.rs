use std::pin::pin;

use futures_util::sink;
use tokio::io::{DuplexStream, duplex, split};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;

use super::*;

/// A connection whose other side is the test.
struct Other {
    say: mpsc::UnboundedSender<Result<Message, Failure>>,
    received: mpsc::UnboundedReceiver<Message>,
    near: DuplexStream,
    carried: tokio::task::JoinHandle<Result<Ended, Broken>>,
}

fn connection(line: Line, has_close: bool) -> Other {
    let (say, source) = mpsc::unbounded_channel();
    let (sender, received) = mpsc::unbounded_channel();
    let sink = sink::unfold(sender, async |sender, message| {
        let sent = sender.send(message);
        let broken = |_| Failure::Io(io::ErrorKind::BrokenPipe.into());
        sent.map(|()| sender).map_err(broken)
    });
    let source = UnboundedReceiverStream::new(source);
    let (near, far) = duplex(1 << 20);
    let (from, to) = split(far);
    let carried =
        tokio::spawn(async move { carried(pin!(sink), source, line, has_close, from, to).await });
    Other {
        say,
        received,
        near,
        carried,
    }
}

impl Other {
    fn say(&self, message: Message) {
        self.say.send(Ok(message)).unwrap();
    }

    fn binary(&self, bytes: &[u8]) {
        self.say(Message::binary(bytes.to_vec()));
    }

    /// What the command sends, without pings.
    async fn sent(&mut self) -> Vec<u8> {
        loop {
            if let Message::Binary(bytes) = self.received.recv().await.unwrap() {
                return bytes.to_vec();
            }
        }
    }

    /// Ends the connection; what was received, and the result.
    async fn end(mut self) -> (Vec<u8>, Result<Ended, Broken>) {
        drop(self.say);
        let mut received = Vec::new();
        self.near.read_to_end(&mut received).await.unwrap();
        (received, self.carried.await.unwrap())
    }
}

#[tokio::test]
async fn bytes_of_a_port_pass_both_ways_behind_its_greeting() {
    let mut other = connection(Line::Port, true);
    other.binary(&[0, 80, 0]);
    other.binary(&[1, 80, 0]);
    other.near.write_all(b"GET").await.unwrap();
    assert_eq!(other.sent().await, b"\0GET");
    other.binary(b"\0page\x1b");
    let (received, ended) = other.end().await;
    assert_eq!(
        (received.as_slice(), ended.unwrap()),
        (b"page\x1b".as_slice(), Ended::Closed)
    );
}

#[tokio::test]
async fn the_end_of_input_is_sent_and_the_answer_still_arrives() {
    let mut other = connection(Line::Port, true);
    other.near.write_all(b"x").await.unwrap();
    other.near.shutdown().await.unwrap();
    assert_eq!(other.sent().await, b"\0x");
    assert_eq!(other.sent().await, [255, 0]);
    other.binary(&[0, 7, 0]);
    other.binary(b"\0late");
    let (received, ended) = other.end().await;
    assert_eq!(
        (received.as_slice(), ended.unwrap()),
        (b"late".as_slice(), Ended::Closed)
    );
}

#[tokio::test]
async fn an_earlier_node_gets_no_end_of_input() {
    let mut other = connection(Line::Port, false);
    other.near.write_all(b"x").await.unwrap();
    other.near.shutdown().await.unwrap();
    assert_eq!(other.sent().await, b"\0x");
    other.binary(&[0, 7, 0]);
    other.binary(b"\0late");
    drop(other.say);
    let mut received = Vec::new();
    other.near.read_to_end(&mut received).await.unwrap();
    assert_eq!(received, b"late");
    while let Some(message) = other.received.recv().await {
        assert!(!message.is_binary(), "{message:?}");
    }
}

#[tokio::test]
async fn a_reason_of_the_node_is_shown_without_what_a_terminal_obeys() {
    let port = connection(Line::Port, true);
    port.binary(&[1, 80, 0]);
    port.binary(b"\x01connection refused\x1b[2J");
    let (_, ended) = port.end().await;
    assert_eq!(
        ended.unwrap(),
        Ended::Failed("connection refused\u{fffd}[2J".to_owned())
    );

    let console = connection(Line::Console, true);
    console.binary(b"\x01login: ");
    console.binary(br#"{"ignored": "channel 123"}"#);
    console.binary(b"\x03{\"status\": \"Failure\", \"message\": \"container vm not found\"}");
    let (received, ended) = console.end().await;
    assert_eq!(received, b"login: ");
    assert_eq!(
        ended.unwrap(),
        Ended::Failed("container vm not found".to_owned())
    );

    let console = connection(Line::Console, true);
    console.binary(b"\x03{\"status\": \"Success\"}");
    assert_eq!(console.end().await.1.unwrap(), Ended::Closed);

    let closed = connection(Line::Port, true);
    closed.say(Message::Close(Some(CloseFrame {
        code: CloseCode::Policy,
        reason: "too slow".into(),
    })));
    assert_eq!(
        closed.end().await.1.unwrap(),
        Ended::Failed("too slow".to_owned())
    );

    let closed = connection(Line::Port, true);
    closed.say(Message::Close(Some(CloseFrame {
        code: CloseCode::Away,
        reason: "".into(),
    })));
    assert_eq!(
        closed.end().await.1.unwrap(),
        Ended::Failed("it was closed with code 1001".to_owned())
    );
}

#[tokio::test]
async fn a_close_ends_a_connection_whose_other_side_stays() {
    let other = connection(Line::Port, true);
    other.say(Message::Close(None));
    assert_eq!(other.carried.await.unwrap().unwrap(), Ended::Closed);
}

#[tokio::test]
async fn the_reason_of_the_other_side_counts_when_nothing_can_be_sent() {
    let mut other = connection(Line::Port, true);
    // All that is sent from now on fails, and something is sent before the reason arrives.
    other.received.close();
    other.near.write_all(b"x").await.unwrap();
    tokio::task::yield_now().await;
    other.binary(&[1, 80, 0]);
    other.binary(b"\x01port 80: the guest is off");
    other.say(Message::Close(None));
    let ended = other.carried.await.unwrap();
    assert_eq!(
        ended.unwrap(),
        Ended::Failed("port 80: the guest is off".to_owned())
    );
}

#[tokio::test]
async fn the_reader_gets_no_end_of_what_has_failed() {
    let (say, source) = mpsc::unbounded_channel();
    for message in [&[0, 80, 0][..], &[1, 80, 0], b"\0half", b"\x01reset"] {
        say.send(Ok(Message::binary(message.to_vec()))).unwrap();
    }
    drop(say);
    let source = UnboundedReceiverStream::new(source);
    let mut near = duplex(64);
    let progress = Progress::default();
    let ended = receive(source, Line::Port, &mut near.1, &progress).await;
    assert_eq!(ended.unwrap(), Ended::Failed("reset".to_owned()));
    let mut content = [0; 4];
    near.0.read_exact(&mut content).await.unwrap();
    near.1.write_all(b"open").await.unwrap();
    near.0.read_exact(&mut content).await.unwrap();
    assert_eq!(&content, b"open");
}

#[tokio::test(start_paused = true)]
async fn an_earlier_node_has_some_time_to_answer_after_the_end_of_input() {
    let mut other = connection(Line::Port, false);
    other.binary(&[0, 80, 0]);
    other.near.shutdown().await.unwrap();
    let begin = tokio::time::Instant::now();
    let mut pings = 0;
    while let Some(ping) = other.received.recv().await {
        assert!(ping.is_ping(), "{ping:?}");
        pings += 1;
        assert!(pings < 10, "the connection does not end");
        // The answer to a ping is no content. The connection may end beside the last ping.
        let _ = other.say.send(Ok(Message::Pong(Bytes::new())));
        if pings == 1 {
            other.binary(b"\0late");
        }
    }
    let error = other.carried.await.unwrap().unwrap_err();
    assert!(matches!(error, Broken::Unanswered), "{error:?}");
    let lasted = begin.elapsed();
    assert!(lasted >= PING + SILENCE, "{lasted:?}");
}

#[tokio::test]
async fn a_console_is_left_by_the_end_of_its_keys_when_they_are_sent() {
    let mut other = connection(Line::Console, true);
    other.near.write_all(b"reboot\r").await.unwrap();
    drop(other.near);
    let Message::Binary(keys) = other.received.recv().await.unwrap() else {
        panic!("keys");
    };
    assert_eq!(&keys[..], b"\0reboot\r");
    assert_eq!(other.carried.await.unwrap().unwrap(), Ended::Left);
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_an_answer_to_pings_is_lost() {
    let mut other = connection(Line::Console, true);
    let begin = tokio::time::Instant::now();
    for _ in 0..5 {
        let ping = other.received.recv().await.unwrap();
        assert!(ping.is_ping(), "{ping:?}");
        other.say(Message::Pong(Bytes::new()));
    }
    let error = other.carried.await.unwrap().unwrap_err();
    assert!(matches!(error, Broken::Silent), "{error:?}");
    let lasted = begin.elapsed();
    assert!(lasted >= 5 * PING + SILENCE, "{lasted:?}");
}

#[tokio::test]
async fn a_connection_that_is_cut_is_no_end() {
    let other = connection(Line::Port, true);
    let cut = Failure::Io(io::ErrorKind::ConnectionReset.into());
    other.say.send(Err(cut)).unwrap();
    let ended = other.carried.await.unwrap();
    assert!(matches!(ended, Err(Broken::Cut(_))), "{ended:?}");
}
