//! Settings of traces.
//!
//! Invariant: a [`CollectorUrl`] is one that the exporter can use.
//! Failure: a sentence that states what is allowed.

use std::fmt::{self, Display};
use std::str::FromStr;

use http::Uri;
use http::uri::Scheme;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Export of traces by OpenTelemetry.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Tracing {
    /// Address of the collector, which receives traces by OTLP over gRPC, such as
    /// `http://127.0.0.1:4317`; no traces if unset. Needs a build with the feature `otel`.
    pub endpoint: Option<CollectorUrl>,
    /// Number of requests per million that are traced although their client does not trace, from 0
    /// to 1000000. If the client traces, its decision counts.
    pub sampling_rate_per_million: u32,
}

/// Address of a collector: host and port, without encryption.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct CollectorUrl(String);

impl FromStr for CollectorUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refuse =
            || "an address with a port such as http://127.0.0.1:4317 is allowed".to_owned();
        let uri: Uri = text.parse().map_err(|_| refuse())?;
        if uri.scheme() == Some(&Scheme::HTTPS) {
            return Err(
                "https is not supported: http://127.0.0.1:4317 is the usual address of a \
                        collector on the node, which can export further with encryption"
                    .to_owned(),
            );
        }
        let authority = uri.authority();
        let is_host_and_port = authority.is_some_and(|authority| {
            !authority.host().is_empty()
                && authority.port_u16().is_some_and(|port| port > 0)
                && !authority.as_str().contains('@')
        });
        let is_bare = ["", "/"].contains(&uri.path()) && uri.query().is_none();
        if uri.scheme() == Some(&Scheme::HTTP) && is_host_and_port && is_bare {
            Ok(Self(text.to_owned()))
        } else {
            Err(refuse())
        }
    }
}

impl TryFrom<String> for CollectorUrl {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        // The text may have a password.
        text.parse()
    }
}

impl From<CollectorUrl> for String {
    fn from(url: CollectorUrl) -> Self {
        url.0
    }
}

impl Display for CollectorUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
