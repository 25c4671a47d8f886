//! The protocols of Kubernetes for `exec`, `attach` and `port-forward`, without I/O: what the HTTP
//! request agrees on, the messages of WebSocket channels, terminal sizes, and results.
//!
//! ```text
//! request ─► negotiate ─► Agreed ─► Spdy: streams with headers      (libs/spdy)
//!                                 ├► Channels: a byte before each message
//!                                 └► Tunnel: SPDY within WebSocket messages
//! ```
//!
//! Invariant: nothing here waits or keeps more than one message or [`LONGEST_SIZE`] bytes. All
//! input is what a client sends, and any bytes are answered without a panic.
//! Failure: [`Refusal`] for a request; [`Malformed`] for a message.

mod channels;
mod negotiation;
mod result;
mod sizes;

pub use channels::{Channels, Coding, Encoded, Received};
pub use negotiation::{
    ACCEPTED, Agreed, MOST_PORTS, PROTOCOL, Refusal, SPDY, Service, Transport, VERSION, WEBSOCKET,
    negotiate, path, ports,
};
pub use result::{Outcome, Results};
pub use sizes::{LONGEST_SIZE, Size, Sizes};

/// A message that is not what the protocol defines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the client sent a malformed {0}")]
pub struct Malformed(pub &'static str);
