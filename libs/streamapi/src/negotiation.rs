//! What a request and this server agree on: transport, version, ports.
//!
//! Invariant: the version is the first one of the client's list that this server has.
//! Failure: [`Refusal`], the answer to the request.

use http::{HeaderMap, HeaderName, Method, StatusCode, header};

use crate::{Channels, Coding, Results};

/// Header with the versions of the protocol above SPDY.
pub const VERSION: HeaderName = HeaderName::from_static("x-stream-protocol-version");
/// Header of a refusal with the versions that this server has.
pub const ACCEPTED: HeaderName = HeaderName::from_static("x-accepted-stream-protocol-versions");
/// Header with the versions of the protocol above WebSocket.
pub const PROTOCOL: HeaderName = header::SEC_WEBSOCKET_PROTOCOL;
/// The value of `Upgrade` for SPDY.
pub const SPDY: &str = "SPDY/3.1";
/// The value of `Upgrade` for WebSocket.
pub const WEBSOCKET: &str = "websocket";
/// Most ports of a port-forward session over WebSocket channels.
pub const MOST_PORTS: usize = 32;

/// The version of WebSocket itself.
const WEBSOCKET_VERSION: &str = "13";
/// Length of a WebSocket key: 16 bytes in base64.
const KEY: usize = 24;

/// What a session is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// `exec` and `attach`.
    RemoteCommand,
    /// `port-forward`.
    PortForward,
}

/// What carries the streams of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// SPDY, over the connection.
    Spdy,
    /// SPDY, in messages of WebSocket.
    Tunnel,
    /// Messages of WebSocket with the number of a channel.
    Channels(Channels),
}

/// What both sides agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreed {
    /// What carries the streams.
    pub transport: Transport,
    /// The version as the answer names it; empty when the client named none.
    pub version: &'static str,
    /// The form of results.
    pub results: Results,
    /// Whether clients send the size of their terminal.
    pub has_resize: bool,
}

/// A request that is no upgrade of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// The status of the answer.
    pub status: StatusCode,
    /// The text of the answer.
    pub message: &'static str,
}

const fn refused<T>(status: StatusCode, message: &'static str) -> Result<T, Refusal> {
    Err(Refusal { status, message })
}

const fn spdy(version: &'static str, results: Results, has_resize: bool) -> Agreed {
    Agreed {
        transport: Transport::Spdy,
        version,
        results,
        has_resize,
    }
}

const fn channels(version: &'static str, coding: Coding, results: Results) -> Agreed {
    Agreed {
        transport: Transport::Channels(Channels {
            coding,
            has_close: false,
        }),
        version,
        results,
        has_resize: true,
    }
}

/// Channels that clients end one by one.
const fn closing_channels(results: Results) -> Agreed {
    Agreed {
        transport: Transport::Channels(Channels {
            coding: Coding::Binary,
            has_close: true,
        }),
        version: "v5.channel.k8s.io",
        results,
        has_resize: true,
    }
}

/// Versions of `exec` over SPDY, the newest first.
const COMMANDS: &[Agreed] = &[
    spdy("v4.channel.k8s.io", Results::Json, true),
    spdy("v3.channel.k8s.io", Results::Text, true),
    spdy("v2.channel.k8s.io", Results::Text, false),
    spdy("channel.k8s.io", Results::Text, false),
];

/// Versions of `port-forward` over SPDY.
const PORTS: &[Agreed] = &[spdy("portforward.k8s.io", Results::Text, false)];

/// Versions of `exec` over WebSocket, the newest first.
const COMMAND_CHANNELS: &[Agreed] = &[
    closing_channels(Results::Json),
    channels("v4.channel.k8s.io", Coding::Binary, Results::Json),
    channels("v4.base64.channel.k8s.io", Coding::Base64, Results::Json),
    channels("channel.k8s.io", Coding::Binary, Results::Text),
    channels("base64.channel.k8s.io", Coding::Base64, Results::Text),
    channels("", Coding::Binary, Results::Text),
];

/// Versions of `port-forward` over WebSocket.
const PORT_CHANNELS: &[Agreed] = &[
    Agreed {
        transport: Transport::Tunnel,
        ..spdy("SPDY/3.1+portforward.k8s.io", Results::Text, false)
    },
    closing_channels(Results::Text),
    channels("v4.channel.k8s.io", Coding::Binary, Results::Text),
    channels("v4.base64.channel.k8s.io", Coding::Base64, Results::Text),
    channels("", Coding::Binary, Results::Text),
];

impl Service {
    /// Versions over SPDY, for a refusal.
    pub fn versions(self) -> impl Iterator<Item = &'static str> {
        self.spdy().iter().map(|own| own.version)
    }

    const fn spdy(self) -> &'static [Agreed] {
        match self {
            Self::RemoteCommand => COMMANDS,
            Self::PortForward => PORTS,
        }
    }

    const fn websocket(self) -> &'static [Agreed] {
        match self {
            Self::RemoteCommand => COMMAND_CHANNELS,
            Self::PortForward => PORT_CHANNELS,
        }
    }
}

/// Kind and token of the path `/KIND/TOKEN`.
#[must_use]
pub fn path(path: &str) -> Option<(&str, &str)> {
    let (kind, token) = path.strip_prefix('/')?.split_once('/')?;
    (!token.is_empty() && !token.contains('/')).then_some((kind, token))
}

/// What both sides have.
///
/// # Errors
///
/// [`Refusal`] when the request is no upgrade that this server has.
pub fn negotiate(
    method: &Method,
    headers: &HeaderMap,
    service: Service,
) -> Result<Agreed, Refusal> {
    if method != Method::GET && method != Method::POST {
        return refused(StatusCode::METHOD_NOT_ALLOWED, "use GET or POST");
    }
    let has = |name, token: &str| items(headers, name).any(|item| item.eq_ignore_ascii_case(token));
    if has(header::CONNECTION, "upgrade") && has(header::UPGRADE, SPDY) {
        over_spdy(headers, service)
    } else if has(header::CONNECTION, "upgrade") && has(header::UPGRADE, WEBSOCKET) {
        over_websocket(method, headers, service)
    } else {
        refused(
            StatusCode::BAD_REQUEST,
            "this server needs an upgrade to SPDY/3.1 or WebSocket",
        )
    }
}

fn over_spdy(headers: &HeaderMap, service: Service) -> Result<Agreed, Refusal> {
    let mut offered = items(headers, VERSION).peekable();
    if offered.peek().is_none() {
        return refused(
            StatusCode::BAD_REQUEST,
            "the header X-Stream-Protocol-Version is required",
        );
    }
    first_common(offered, service.spdy())
}

fn over_websocket(
    method: &Method,
    headers: &HeaderMap,
    service: Service,
) -> Result<Agreed, Refusal> {
    if method != Method::GET {
        return refused(StatusCode::METHOD_NOT_ALLOWED, "WebSocket needs GET");
    }
    let version = headers.get(header::SEC_WEBSOCKET_VERSION);
    if version.is_none_or(|version| version != WEBSOCKET_VERSION) {
        return refused(
            StatusCode::BAD_REQUEST,
            "this server has version 13 of WebSocket",
        );
    }
    let key = headers.get(header::SEC_WEBSOCKET_KEY);
    if key.is_none_or(|key| key.len() != KEY) {
        return refused(
            StatusCode::BAD_REQUEST,
            "a Sec-WebSocket-Key of 16 bytes is required",
        );
    }
    let mut offered = items(headers, PROTOCOL).peekable();
    let none = offered.peek().is_none().then_some("");
    first_common(none.into_iter().chain(offered), service.websocket())
}

fn first_common<'a>(
    mut offered: impl Iterator<Item = &'a str>,
    known: &'static [Agreed],
) -> Result<Agreed, Refusal> {
    match offered.find_map(|version| known.iter().find(|own| own.version == version)) {
        Some(agreed) => Ok(*agreed),
        None => refused(
            StatusCode::FORBIDDEN,
            "this server has none of the offered versions of the streaming protocol",
        ),
    }
}

/// The ports in a query, for channels: `port=80&port=443`, or `port=80,443`.
///
/// # Errors
///
/// [`Refusal`] when one is no port, or there are more than [`MOST_PORTS`].
pub fn ports(query: &str) -> Result<Vec<u16>, Refusal> {
    let values = query
        .split('&')
        .filter_map(|pair| pair.strip_prefix("port="));
    let mut ports = Vec::new();
    for text in values.flat_map(|value| value.split(',').flat_map(|part| part.split("%2C"))) {
        match text.parse() {
            Ok(port) if port > 0 && ports.len() < MOST_PORTS => ports.push(port),
            Ok(0) | Err(_) => {
                return refused(StatusCode::BAD_REQUEST, "the query has a port that is none");
            }
            Ok(_) => return refused(StatusCode::BAD_REQUEST, "the query has more than 32 ports"),
        }
    }
    Ok(ports)
}

/// The items of all headers of a name: each value may be a list.
fn items(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &str> {
    let values = headers.get_all(name).into_iter();
    values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|item| !item.is_empty())
}

#[cfg(test)]
mod tests;
