//! Requests for streaming sessions, messages of channels, terminal sizes.
//!
//! Invariant: an agreement is one that the client has offered; a message that is read is read as
//! the same after it was written; sizes do not depend on where their bytes are cut.
//! Failure: a panic.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use streamapi::{
    Channels, Coding, Encoded, LONGEST_SIZE, MOST_PORTS, Received, Service, Sizes, Transport,
};

/// A request: method, target and headers in lines.
///
/// # Panics
///
/// When the agreement was not offered.
pub fn requests(input: &[u8]) {
    let mut lines = input.split(|byte| *byte == b'\n');
    let method = lines.next().and_then(|line| Method::from_bytes(line).ok());
    let target = lines
        .next()
        .map(String::from_utf8_lossy)
        .unwrap_or_default();
    let mut headers = HeaderMap::new();
    for line in lines.take(64) {
        let mut halves = line.splitn(2, |byte| *byte == b':');
        let name = halves
            .next()
            .and_then(|name| HeaderName::from_bytes(name).ok());
        let value = halves
            .next()
            .and_then(|value| HeaderValue::from_bytes(value).ok());
        if let Some(name) = name
            && let Some(value) = value
        {
            headers.append(name, value);
        }
    }
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    if let Some((kind, token)) = streamapi::path(path) {
        assert_eq!(format!("/{kind}/{token}"), path);
    }
    if let Ok(ports) = streamapi::ports(query) {
        assert!(ports.len() <= MOST_PORTS && !ports.contains(&0));
    }
    for service in [Service::RemoteCommand, Service::PortForward] {
        let method = method.as_ref().unwrap_or(&Method::GET);
        let Ok(agreed) = streamapi::negotiate(method, &headers, service) else {
            continue;
        };
        let name = match agreed.transport {
            Transport::Spdy => streamapi::VERSION,
            Transport::Tunnel | Transport::Channels(_) => streamapi::PROTOCOL,
        };
        let mut offered = headers
            .get_all(name)
            .iter()
            .filter_map(|one| one.to_str().ok());
        assert!(agreed.version.is_empty() || offered.any(|one| one.contains(agreed.version)));
    }
}

/// A message of a client.
///
/// # Panics
///
/// When it changes.
#[allow(clippy::expect_used, reason = "the panic is the finding")]
pub fn channels(input: &[u8]) {
    for (coding, has_close) in [
        (Coding::Binary, true),
        (Coding::Binary, false),
        (Coding::Base64, false),
    ] {
        let channels = Channels { coding, has_close };
        let Ok(read) = channels.read(Bytes::copy_from_slice(input)) else {
            continue;
        };
        let Received::Content(channel, content) = &read else {
            continue;
        };
        assert!(content.len() < input.len());
        if coding == Coding::Binary || *channel < 79 {
            let written = match channels.write(*channel, content) {
                Encoded::Binary(bytes) => bytes,
                Encoded::Text(text) => text.into(),
            };
            assert_eq!(channels.read(written).expect("a message"), read);
        }
    }
}

/// The stream of a terminal's sizes.
///
/// # Panics
///
/// When the sizes depend on the pieces, or too much waits.
pub fn sizes(input: &[u8]) {
    let mut together = Sizes::default();
    let mut apart = Sizes::default();
    let whole: Vec<u8> = crate::pieces(input).flatten().copied().collect();
    let whole = together.feed(&whole);
    let mut last = Ok(None);
    for piece in crate::pieces(input) {
        match apart.feed(piece) {
            Ok(size) => last = Ok(size.or(last.ok().flatten())),
            Err(malformed) => {
                last = Err(malformed);
                break;
            }
        }
    }
    // An object that comes in pieces may be too long for what is kept.
    if whole.is_err() || input.len() <= LONGEST_SIZE {
        assert_eq!(whole, last);
    }
}
