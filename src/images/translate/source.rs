//! A URL that an image is fetched from, and the transport to its server.
//!
//! Invariant: messages, file names and the database get host, port and path, or a hash, never the rest of the URL.
//! Failure: none here.

use std::fmt;
use std::sync::Arc;

use reqwest::Url;
use sha2::{Digest as _, Sha256};

use crate::images::digest::Digest;
use crate::images::transport::{ServerTls, Transport};

/// A URL that may hold secrets: shown as host and path only.
#[derive(Clone, PartialEq, Eq)]
pub(in crate::images) struct Source {
    url: Url,
    /// How its server is reached; `None`: as all servers.
    transport: Option<Arc<Transport>>,
}

impl Source {
    /// A URL that is fetched as it is.
    pub(in crate::images) const fn from_url(url: Url) -> Self {
        Self {
            url,
            transport: None,
        }
    }

    /// Reached by this transport.
    pub(super) fn over(self, transport: Option<Arc<Transport>>) -> Self {
        Self { transport, ..self }
    }

    /// With these certificates, unless its rule has a transport.
    pub(in crate::images) fn secured(mut self, tls: Option<&ServerTls>) -> Self {
        let given = || tls.map(|ServerTls(transport)| Arc::clone(transport));
        self.transport = self.transport.or_else(given);
        self
    }

    pub(in crate::images) const fn url(&self) -> &Url {
        &self.url
    }

    pub(in crate::images) fn transport(&self) -> Option<&Transport> {
        self.transport.as_deref()
    }

    /// Host, port and path, for messages.
    pub(in crate::images) fn location(&self) -> String {
        location(&self.url)
    }

    /// Stands for the URL in file names and the database, which must not hold its secrets. What
    /// came by another transport, which may trust other servers, has another key.
    pub(in crate::images) fn key(&self) -> String {
        let mut hash = Sha256::new_with_prefix(self.url.as_str());
        if let Some(transport) = &self.transport {
            hash.update([b'\n']);
            hash.update(transport.fingerprint());
        }
        Digest::from_bytes(hash.finalize().into()).hex()
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.location())
    }
}

/// Host, port and path of a URL.
pub(in crate::images) fn location(url: &Url) -> String {
    let port = url
        .port()
        .map_or_else(String::new, |port| format!(":{port}"));
    format!("{}{port}{}", url.host_str().unwrap_or_default(), url.path())
}
