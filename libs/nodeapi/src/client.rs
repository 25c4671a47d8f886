//! A connection to the daemon's node API that reconnects by itself.
//!
//! Invariant: every call has a deadline until its first answer; a daemon that hangs ends its
//! streams within [`Deadlines::silence`], since it answers no pings.
//! Failure: [`Error`] for an endpoint that is none. A daemon that is away is `Unavailable` at the
//! call, and each call tries again.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::transport::{Channel, Endpoint, Uri};

use crate::v1::node_client::NodeClient;

/// Where the daemon serves the node API unless configured otherwise.
pub const DEFAULT_ENDPOINT: &str = "unix:///run/vmlet/node/node.sock";

/// Longest message that is read.
const MESSAGE: usize = 16 << 20;

/// How long to wait for a daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// For the connection.
    pub connect: Duration,
    /// For the answer of a call, or the first sign of a stream.
    pub call: Duration,
    /// For any sign of life on a connection with open streams.
    pub silence: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(2),
            call: Duration::from_secs(10),
            silence: Duration::from_secs(15),
        }
    }
}

/// Not an endpoint.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not the path of a socket.
    #[error("{0:?} is no node endpoint: it must be an absolute path or unix:///path")]
    Endpoint(String),
    /// A path that cannot be an address.
    #[error("node endpoint {}", path.display())]
    Address {
        /// The path.
        path: PathBuf,
        /// The reason.
        #[source]
        source: tonic::transport::Error,
    },
}

/// The socket that `endpoint` names: an absolute path, alone or after `unix://` or `unix:`.
///
/// # Errors
///
/// [`Error::Endpoint`] for anything else.
pub fn socket_path(endpoint: &str) -> Result<&Path, Error> {
    let path = endpoint
        .strip_prefix("unix://")
        .or_else(|| endpoint.strip_prefix("unix:"))
        .unwrap_or(endpoint);
    let path = Path::new(path);
    if path.is_absolute() {
        Ok(path)
    } else {
        Err(Error::Endpoint(endpoint.to_owned()))
    }
}

/// A client for the daemon at `endpoint`. Nothing is sent before the first call. Must be called on
/// a runtime.
///
/// # Errors
///
/// [`Error`] when `endpoint` is none.
pub fn connect(endpoint: &str, deadlines: Deadlines) -> Result<NodeClient<Channel>, Error> {
    let client = NodeClient::new(channel(endpoint, deadlines)?);
    Ok(client.max_decoding_message_size(MESSAGE))
}

/// A connection to any gRPC service at `endpoint`, with the same care. Must be called on a runtime.
///
/// # Errors
///
/// [`Error`] when `endpoint` is none.
pub fn channel(endpoint: &str, deadlines: Deadlines) -> Result<Channel, Error> {
    let path = socket_path(endpoint)?;
    let address = |source| Error::Address {
        path: path.to_owned(),
        source,
    };
    let transport = Endpoint::from_shared(format!("unix://{}", path.display()))
        .map_err(address)?
        // The path of a socket is no authority of HTTP/2; servers refuse it.
        .origin(Uri::from_static("http://localhost"))
        .connect_timeout(deadlines.connect)
        .timeout(deadlines.call)
        .http2_keep_alive_interval(deadlines.silence / 2)
        .keep_alive_timeout(deadlines.silence / 2)
        .user_agent(concat!("vmlet-nodeapi/", env!("CARGO_PKG_VERSION")))
        .map_err(address)?;
    Ok(transport.connect_lazy())
}

#[cfg(test)]
mod tests;
