//! Sessions of WebSocket clients.
//!
//! Invariant: the client is tungstenite's, and speaks the protocol of the Go clients.
//! Failure: the assertion shows what came.

use std::net::{IpAddr, Ipv6Addr};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use futures_util::{SinkExt, StreamExt};
use http::{HeaderValue, StatusCode};
use spdy::{Decoder, Encoder, Frame, Headers};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{WebSocketStream, client_async};
use tokio_util::codec::{Decoder as _, Encoder as _};

use super::*;

const NEWEST: &str = "v5.channel.k8s.io";
const SCREEN: Wanted = Wanted {
    stdin: true,
    stdout: true,
    stderr: false,
    resize: true,
};

/// A client of a session.
pub(super) struct Client(WebSocketStream<TcpStream>);

impl Client {
    /// Starts a session; the error is the status of the answer.
    pub(super) async fn start(
        server: &Server,
        target: Target,
        query: &str,
        protocol: &str,
    ) -> Result<Self, StatusCode> {
        let url = server.url(&server.machine, target) + query;
        let mut request = url.replace("http", "ws").into_client_request().unwrap();
        if !protocol.is_empty() {
            let value = HeaderValue::try_from(protocol).unwrap();
            request.headers_mut().insert(streamapi::PROTOCOL, value);
        }
        let started = client_async(request, server.connect().await);
        match soon("an answer", started).await {
            Ok((client, _)) => Ok(Self(client)),
            Err(tungstenite::Error::Http(answer)) => Err(answer.status()),
            Err(error) => panic!("{error}"),
        }
    }

    pub(super) async fn send(&mut self, bytes: &[u8]) {
        let message = Message::Binary(Bytes::copy_from_slice(bytes));
        self.0.send(message).await.unwrap();
    }

    async fn next(&mut self) -> Message {
        let next = soon("a message", self.0.next()).await;
        next.expect("a message").unwrap()
    }

    /// The next binary message.
    pub(super) async fn bytes(&mut self) -> Bytes {
        match self.next().await {
            Message::Binary(bytes) => bytes,
            other => panic!("{other:?}"),
        }
    }

    /// What a channel carries, until it is this.
    pub(super) async fn until(&mut self, channel: u8, expected: &[u8]) {
        let mut carried = Vec::new();
        while carried.len() < expected.len() {
            let message = self.bytes().await;
            assert_eq!(message[0], channel, "{message:?}");
            carried.extend_from_slice(&message[1..]);
        }
        assert_eq!(carried, expected);
    }

    pub(super) async fn close(&mut self) -> (CloseCode, String) {
        match self.next().await {
            Message::Close(Some(frame)) => (frame.code, frame.reason.to_string()),
            other => panic!("{other:?}"),
        }
    }
}

fn to_itself(address: IpAddr) -> Target {
    Target::PortForward(PortForwardTarget {
        addresses: vec![PodRoute {
            address,
            link: None,
        }],
        ports: Vec::new(),
    })
}

#[tokio::test]
async fn a_daemon_that_shuts_down_gives_its_clients_the_reason() {
    let server = Server::start().await;
    let (console, target) = server.console(SCREEN);
    let client = Client::start(&server, target, "", NEWEST).await;
    let mut client = client.unwrap();
    assert_eq!(client.bytes().await, [1][..], "the session is up");
    let _guest = console.accept().await.unwrap();
    // A connection without a request, too, must not delay the end.
    let _idle = server.connect().await;
    server.closing.cancel();
    let reason = loop {
        let message = client.bytes().await;
        if message[0] == 3 && message.len() > 1 {
            break message;
        }
    };
    let reason = String::from_utf8_lossy(&reason).into_owned();
    assert!(reason.contains(CLOSING), "{reason}");
    soon("the end of the server", server.serving).await.unwrap();
}

#[tokio::test]
async fn clients_of_both_codings_share_a_console() {
    let server = Server::start().await;
    let (console, target) = server.console(SCREEN);
    let mut newest = Client::start(&server, target.clone(), "", NEWEST)
        .await
        .unwrap();
    assert_eq!(newest.bytes().await, [1][..], "the session is up");
    let mut guest = console.accept().await.unwrap().0;
    newest.send(b"\0root\n").await;
    // A terminal's size, and a channel that no session has, change nothing.
    newest.send(b"\x04{\"Width\":1,\"Height\":1}").await;
    newest.send(b"\x17?").await;
    newest.send(&[255, 4]).await;
    newest.send(b"\0x").await;
    assert_eq!(exactly(&mut guest, 6).await, b"root\nx");

    let mut old = Client::start(&server, target, "", "base64.channel.k8s.io")
        .await
        .unwrap();
    assert_eq!(old.next().await, Message::Text("1".into()));
    let typed = format!("0{}", STANDARD.encode("ls\n"));
    old.0.send(Message::Text(typed.into())).await.unwrap();
    assert_eq!(exactly(&mut guest, 3).await, b"ls\n");
    guest.write_all(b"files").await.unwrap();
    newest.until(1, b"files").await;
    let shown = format!("1{}", STANDARD.encode("files"));
    assert_eq!(old.next().await, Message::Text(shown.into()));

    drop(guest);
    let result = newest.bytes().await;
    assert_eq!(result[0], 3);
    let result: serde_json::Value = serde_json::from_slice(&result[1..]).unwrap();
    assert_eq!(result["status"], "Success");
    assert_eq!(newest.close().await, (CloseCode::Normal, String::new()));
    assert_eq!(old.close().await.0, CloseCode::Normal, "success is no text");
}

#[tokio::test]
async fn a_client_that_disconnects_ends_its_session() {
    let server = Server::start().await;
    let (console, target) = server.console(SCREEN);
    for is_polite in [true, false] {
        let mut client = Client::start(&server, target.clone(), "", "")
            .await
            .unwrap();
        let mut guest = console.accept().await.unwrap().0;
        client.bytes().await;
        if is_polite {
            client.0.close(None).await.unwrap();
        }
        drop(client);
        let mut rest = Vec::new();
        soon("the end", guest.read_to_end(&mut rest)).await.unwrap();
        assert_eq!(rest, b"");
    }
}

#[tokio::test]
async fn a_malformed_or_large_message_ends_the_session_with_a_reason() {
    let server = Server::start().await;
    let (_console, target) = server.console(SCREEN);
    for message in [vec![255], vec![0; (1 << 20) + 1]] {
        let mut client = Client::start(&server, target.clone(), "", NEWEST)
            .await
            .unwrap();
        client.bytes().await;
        client.send(&message).await;
        let (code, reason) = client.close().await;
        assert_eq!(code, CloseCode::Protocol);
        assert!(reason.contains("malformed or too large"), "{reason}");
    }
}

#[tokio::test]
async fn ports_are_pairs_of_channels_and_their_end_is_that_of_the_session() {
    let server = Server::start().await;
    let guest = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).await.unwrap();
    let port = guest.local_addr().unwrap().port();
    let target = to_itself(Ipv6Addr::LOCALHOST.into());
    // Nothing listens on port 1.
    let query = format!("?port={port},1");
    let mut client = Client::start(&server, target.clone(), &query, "v4.channel.k8s.io")
        .await
        .unwrap();
    let [low, high] = port.to_le_bytes();
    let mut greetings = Vec::new();
    let mut failure = String::new();
    while greetings.len() < 4 || failure.is_empty() {
        let message = client.bytes().await;
        match (message[0], message.len()) {
            (3, length @ 4..) => failure = String::from_utf8_lossy(&message[1..length]).into(),
            _ => greetings.push(message.to_vec()),
        }
    }
    greetings.sort();
    assert_eq!(
        greetings,
        [[0, low, high], [1, low, high], [2, 1, 0], [3, 1, 0]]
    );
    assert!(failure.contains("connect to [::1]:1"), "{failure}");
    let mut connection = soon("a connection", guest.accept()).await.unwrap().0;
    client.send(b"\0ping").await;
    assert_eq!(exactly(&mut connection, 4).await, b"ping");
    connection.write_all(b"pong").await.unwrap();
    client.until(0, b"pong").await;
    drop(connection);
    assert_eq!(
        client.close().await.0,
        CloseCode::Normal,
        "the last connection ended"
    );

    for (query, protocol, expected) in [
        ("", "v4.channel.k8s.io", StatusCode::BAD_REQUEST),
        ("?port=x", "v4.channel.k8s.io", StatusCode::BAD_REQUEST),
        ("?port=1", "portforward.k8s.io", StatusCode::FORBIDDEN),
    ] {
        let refused = Client::start(&server, target.clone(), query, protocol).await;
        assert_eq!(refused.err(), Some(expected), "{query} {protocol}");
    }
}

#[tokio::test]
async fn a_client_ends_its_half_of_a_connection_and_the_guest_still_answers() {
    let server = Server::start().await;
    let guest = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).await.unwrap();
    let query = format!("?port={}", guest.local_addr().unwrap().port());
    let target = to_itself(Ipv6Addr::LOCALHOST.into());
    let mut client = Client::start(&server, target, &query, NEWEST)
        .await
        .unwrap();
    for _ in 0..2 {
        assert_eq!(client.bytes().await.len(), 3, "a greeting");
    }
    let mut connection = soon("a connection", guest.accept()).await.unwrap().0;
    client.send(b"\0question").await;
    client.send(&[255, 0]).await;
    let mut question = Vec::new();
    let read = connection.read_to_end(&mut question);
    soon("the end of the question", read).await.unwrap();
    assert_eq!(question, b"question");
    connection.write_all(b"answer").await.unwrap();
    client.until(0, b"answer").await;
    drop(connection);
    assert_eq!(client.close().await.0, CloseCode::Normal);
}

#[tokio::test]
async fn spdy_runs_in_a_tunnel() {
    let server = Server::start().await;
    let guest = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = to_itself([127, 0, 0, 1].into());
    let mut client = Client::start(&server, target, "", "SPDY/3.1+portforward.k8s.io")
        .await
        .unwrap();
    let mut encoder = Encoder::new().unwrap();
    let mut decoder = Decoder::default();
    let mut bytes = BytesMut::new();
    let port = guest.local_addr().unwrap().port().to_string();
    for (stream, kind) in [(1, "error"), (3, "data")] {
        let pairs = [("streamtype", kind), ("requestid", "0"), ("port", &port)];
        let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let headers: Headers = pairs.into_iter().map(owned).collect();
        let fin = stream == 1;
        let frame = Frame::SynStream {
            stream,
            fin,
            headers,
        };
        encoder.encode(frame, &mut bytes).unwrap();
    }
    let content = Bytes::from_static(b"ping");
    let data = Frame::Data {
        stream: 3,
        fin: true,
        content,
    };
    encoder.encode(data, &mut bytes).unwrap();
    // The borders of messages mean nothing.
    for piece in bytes.chunks(7) {
        client.send(piece).await;
    }
    let mut connection = soon("a connection", guest.accept()).await.unwrap().0;
    let mut sent = String::new();
    soon("the end", connection.read_to_string(&mut sent))
        .await
        .unwrap();
    assert_eq!(sent, "ping");
    connection.write_all(b"pong").await.unwrap();
    drop(connection);
    let mut received = BytesMut::new();
    let mut ended = 0;
    let mut pong = BytesMut::new();
    while ended < 2 {
        received.extend_from_slice(&client.bytes().await);
        while let Some(frame) = decoder.decode(&mut received).unwrap() {
            if let Frame::Data { content, fin, .. } = frame {
                pong.extend_from_slice(&content);
                ended += usize::from(fin);
            }
        }
    }
    assert_eq!(pong, b"pong"[..]);
}
