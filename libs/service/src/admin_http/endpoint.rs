//! Where pages are served: on the node alone.
//!
//! Invariant: a loopback address or an absolute path; no other node can connect.
//! Failure: a sentence that states what is allowed.

use std::borrow::Cow;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// A loopback address with a port, such as `127.0.0.1:9640`, or the absolute path of a Unix socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Endpoint {
    /// A loopback address.
    Tcp(SocketAddr),
    /// A socket that our own user and root may use.
    Unix(PathBuf),
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let path = Path::new(text);
        if path.is_absolute() && !text.ends_with('/') {
            return Ok(Self::Unix(path.to_owned()));
        }
        match text.parse::<SocketAddr>() {
            Ok(address) if address.ip().is_loopback() => Ok(Self::Tcp(address)),
            Ok(_) => Err("an address that other nodes can reach is not allowed".to_owned()),
            Err(_) => Err(
                "a loopback address such as 127.0.0.1:9640 or the path of a socket is expected"
                    .to_owned(),
            ),
        }
    }
}

impl TryFrom<String> for Endpoint {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
            .map_err(|reason: String| format!("{text:?}: {reason}"))
    }
}

impl From<Endpoint> for String {
    fn from(endpoint: Endpoint) -> Self {
        endpoint.to_string()
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

impl JsonSchema for Endpoint {
    fn schema_name() -> Cow<'static, str> {
        "Endpoint".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case("127.0.0.1:9640", true)]
    #[case("[::1]:0", true)]
    #[case("/run/vmlet/metrics.sock", true)]
    #[case("0.0.0.0:9640", false)]
    #[case("10.0.0.1:9640", false)]
    #[case("127.0.0.1", false)]
    #[case("run/metrics.sock", false)]
    #[case("/run/", false)]
    #[case("", false)]
    fn only_what_the_node_alone_reaches_is_allowed(#[case] text: &str, #[case] allowed: bool) {
        let parsed = text.parse::<Endpoint>();
        assert_eq!(parsed.is_ok(), allowed, "{parsed:?}");
        if let Ok(endpoint) = parsed {
            assert_eq!(endpoint.to_string(), text);
        }
    }
}
