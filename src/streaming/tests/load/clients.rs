//! What the clients of the load send.
//!
//! Invariant: bytes that real clients send: an upgrade, and input that ends.
//! Failure: a panic.

use bytes::BytesMut;
use spdy::{Encoder, Frame};
use tokio_util::codec::Encoder as _;

/// All that a client sends over SPDY.
pub(super) fn spdy(path: &str) -> Vec<u8> {
    let head = format!(
        "POST /{path} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
         X-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n"
    );
    let mut bytes = BytesMut::from(head.as_bytes());
    let mut encoder = Encoder::new().unwrap();
    for (stream, kind) in [(1, "error"), (3, "stdin"), (5, "stdout"), (7, "stderr")] {
        let headers = vec![("streamtype".to_owned(), kind.to_owned())];
        let fin = false;
        let frame = Frame::SynStream {
            stream,
            fin,
            headers,
        };
        encoder.encode(frame, &mut bytes).unwrap();
    }
    let content = bytes::Bytes::from_static(b"a line of input\n");
    let stream = 3;
    let fin = true;
    encoder
        .encode(
            Frame::Data {
                stream,
                fin,
                content,
            },
            &mut bytes,
        )
        .unwrap();
    bytes.to_vec()
}

/// All that a client sends over WebSocket.
pub(super) fn websocket(path: &str) -> Vec<u8> {
    let head = format!(
        "GET /{path} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         Sec-WebSocket-Protocol: v5.channel.k8s.io\r\n\r\n"
    );
    let mut bytes = head.into_bytes();
    for message in [&b"\0a line of input\n"[..], &[255, 0]] {
        // The mask of zeros leaves the content as it is.
        let length = u8::try_from(message.len()).unwrap();
        bytes.extend_from_slice(&[0x82, 0x80 | length, 0, 0, 0, 0]);
        bytes.extend_from_slice(message);
    }
    bytes
}
