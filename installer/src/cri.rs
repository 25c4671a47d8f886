//! One call of CRI, `Version`, over HTTP/2 by hand: no client of gRPC is this small.
//!
//! Invariant: only the frames that such a call needs are understood; others are passed over.
//! Failure: the socket's error, or that the runtime has refused.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const PATH: &str = "/runtime.v1.RuntimeService/Version";

/// The only stream.
const STREAM: u32 = 1;

/// Types and flags of frames (RFC 9113, section 6).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// The largest frame of a peer that was not asked for larger ones.
const LARGEST: usize = 16 << 10;

/// Calls `Version` of what listens on a socket; returns the bytes of its answer.
pub(crate) fn version(socket: &Path, timeout: Duration) -> Result<Vec<u8>> {
    let stream = UnixStream::connect(socket);
    let mut stream =
        stream.with_context(|| format!("failed to connect to {}", socket.display()))?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    let answered = call(&mut stream);
    answered.with_context(|| format!("failed to call the runtime at {}", socket.display()))
}

fn call(stream: &mut (impl Read + Write)) -> Result<Vec<u8>> {
    let mut request = PREFACE.to_vec();
    request.extend(frame(SETTINGS, 0, 0, &[]));
    request.extend(frame(HEADERS, END_HEADERS, STREAM, &headers()));
    // A message without fields, which is not compressed.
    request.extend(frame(DATA, END_STREAM, STREAM, &[0; 5]));
    stream.write_all(&request)?;
    let mut answer = Vec::new();
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head)?;
        let [a, b, c, kind, flags, d, e, f, g] = head;
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        let id = u32::from_be_bytes([d & 0x7f, e, f, g]);
        ensure!(length <= LARGEST, "what answers is not a CRI runtime");
        let mut payload = vec![0; length];
        stream.read_exact(&mut payload)?;
        match (kind, id) {
            (SETTINGS, _) if flags & ACK == 0 => stream.write_all(&frame(SETTINGS, ACK, 0, &[]))?,
            (DATA, STREAM) => answer.extend(payload),
            (RST_STREAM, STREAM) | (GOAWAY, _) => bail!("the call was ended"),
            _ => {}
        }
        // An answer without a message is a refusal; its code is in compressed headers.
        if id == STREAM && flags & END_STREAM != 0 && matches!(kind, DATA | HEADERS) {
            ensure!(answer.len() >= 5, "the runtime does not answer, or refuses");
            return Ok(answer.split_off(5));
        }
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len())
        .unwrap_or_default()
        .to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// The headers as literals without indexing (RFC 7541, section 6.2.2).
fn headers() -> Vec<u8> {
    let headers = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", PATH),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    let mut block = Vec::new();
    for (name, value) in headers {
        block.push(0);
        for text in [name, value] {
            // All are shorter than 127, and so is the length one byte.
            block.push(u8::try_from(text.len()).unwrap_or_default());
            block.extend(text.as_bytes());
        }
    }
    block
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn what_does_not_speak_http2_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        version(&path, Duration::from_secs(10)).unwrap_err();
        let listener = UnixListener::bind(&path).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 4096];
            let read = stream.read(&mut request).unwrap();
            assert!(request[..read].starts_with(PREFACE));
            stream
                .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                .unwrap();
        });
        let error = format!("{:#}", version(&path, Duration::from_secs(10)).unwrap_err());
        assert!(error.contains("not a CRI runtime"), "{error}");
        server.join().unwrap();
    }

    #[test]
    fn frames_have_a_head_of_nine_bytes() {
        assert_eq!(
            frame(DATA, END_STREAM, 1, b"ab"),
            b"\0\0\x02\0\x01\0\0\0\x01ab"
        );
    }
}
