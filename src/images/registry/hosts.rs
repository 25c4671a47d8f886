//! The servers of a registry: its own, and the mirrors that the node's administrator configured in
//! containerd's format, `DIRECTORY/HOST/hosts.toml` or `DIRECTORY/_default/hosts.toml`.
//!
//! Invariant: files are read at each pull, so that changes have effect at once; mirrors come in the
//! order of the file, the registry's own server last. A key that is not understood is refused.
//! Failure: [`Error::Registry`] names the file and the line.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Url};
use serde::Deserialize;
use toml::Spanned;

use super::super::adjustable::Live;
use super::super::error::{Error, Result};
use super::place::Place;
use super::tls::{Authorities, ClientFiles, Tls};

const FILE: &str = "hosts.toml";
const DEFAULT: &str = "_default";

/// One server of a registry.
#[derive(Debug, Clone)]
pub(super) struct Endpoint {
    /// Of the API, with `/v2/` at its end.
    pub(super) base: Url,
    /// With the certificates for this server; `None`: the one for all servers.
    pub(super) client: Option<Client>,
    pub(super) headers: HeaderMap,
    /// Whether it is the registry itself, which the credentials of a pull are for.
    pub(super) is_registry: bool,
    /// Whether it may say which image a tag means.
    pub(super) resolves: bool,
}

/// Finds the servers of registries.
#[derive(Debug, Clone)]
pub(in crate::images) struct Hosts {
    dir: PathBuf,
    live: Arc<Live>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    server: Option<String>,
    #[serde(default)]
    host: HashMap<Spanned<String>, Server>,
    capabilities: Option<Vec<Capability>>,
    ca: Option<Authorities>,
    client: Option<ClientFiles>,
    #[serde(default)]
    skip_verify: bool,
    #[serde(default)]
    override_path: bool,
    #[serde(default)]
    header: HashMap<String, HeaderValues>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Server {
    capabilities: Option<Vec<Capability>>,
    ca: Option<Authorities>,
    client: Option<ClientFiles>,
    #[serde(default)]
    skip_verify: bool,
    #[serde(default)]
    override_path: bool,
    #[serde(default)]
    header: HashMap<String, HeaderValues>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Capability {
    Pull,
    Resolve,
    Push,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum HeaderValues {
    One(String),
    Several(Vec<String>),
}

impl Hosts {
    pub(in crate::images) const fn new(dir: PathBuf, live: Arc<Live>) -> Self {
        Self { dir, live }
    }

    /// Whether the administrator configured this host as a registry. Blocks.
    pub(in crate::images) fn knows(&self, host: &str) -> bool {
        self.dirs(host).iter().any(|dir| dir.is_dir())
    }

    /// All servers of the registry of an image, in the order of use. `builder` makes a client as
    /// all others are. Blocks.
    pub(super) fn endpoints(
        &self,
        place: &Place,
        builder: impl Fn() -> reqwest::ClientBuilder,
    ) -> Result<Vec<Endpoint>> {
        let mut dirs = self.dirs(place.host());
        dirs.push(self.dir.join(DEFAULT));
        let found = dirs.into_iter().find(|dir| dir.is_dir());
        let Some(dir) = found else {
            let server = self.server(place);
            let registry = Reader::new(&self.dir, builder).registry(&server, Server::default())?;
            return Ok(registry.into_iter().collect());
        };
        let file = dir.join(FILE);
        let reader = Reader::new(&dir, builder);
        let written = match std::fs::read_to_string(&file) {
            Ok(text) => {
                let parsed = toml::from_str::<Written>(&text);
                parsed.map_err(|e| reader.refuse(e.to_string()))?
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let ca = Authorities::beside(&dir);
                let client = ClientFiles::beside(&dir);
                let is_encrypted = ca.is_some() || client.is_some();
                Written {
                    server: is_encrypted.then(|| format!("https://{}", place.api_host())),
                    ca,
                    client,
                    ..Written::default()
                }
            }
            Err(e) => return Err(Error::io("read", &file)(e)),
        };
        self.endpoints_from_file(place, written, &reader)
    }

    fn endpoints_from_file(
        &self,
        place: &Place,
        written: Written,
        reader: &Reader<impl Fn() -> reqwest::ClientBuilder>,
    ) -> Result<Vec<Endpoint>> {
        let mut mirrors: Vec<_> = written.host.into_iter().collect();
        mirrors.sort_by_key(|(name, _)| name.span().start);
        let own = written.server.clone().unwrap_or_else(|| self.server(place));
        let settings = Server {
            capabilities: written.capabilities,
            ca: written.ca,
            client: written.client,
            skip_verify: written.skip_verify,
            override_path: written.override_path,
            header: written.header,
        };
        let mut endpoints = Vec::new();
        for (name, server) in mirrors {
            endpoints.extend(reader.endpoint(name.get_ref(), server)?);
        }
        endpoints.extend(reader.registry(&own, settings)?);
        Ok(endpoints)
    }

    /// The directories of a host, as containerd names them.
    fn dirs(&self, host: &str) -> Vec<PathBuf> {
        let mut dirs = vec![self.dir.join(host)];
        if let Some((name, port)) = host.rsplit_once(':') {
            dirs.push(self.dir.join(format!("{name}_{port}_")));
        }
        dirs
    }

    fn server(&self, place: &Place) -> String {
        format!(
            "{}://{}",
            self.live.get().protocol.as_str(),
            place.api_host()
        )
    }
}

/// Makes servers of what a file says of them.
struct Reader<'a, B> {
    dir: &'a Path,
    builder: B,
}

impl<'a, B: Fn() -> reqwest::ClientBuilder> Reader<'a, B> {
    const fn new(dir: &'a Path, builder: B) -> Self {
        Self { dir, builder }
    }

    /// The registry itself; `None` where only its mirrors serve.
    fn registry(&self, url: &str, server: Server) -> Result<Option<Endpoint>> {
        let endpoint = self.endpoint(url, server)?;
        Ok(endpoint.map(|endpoint| Endpoint {
            is_registry: true,
            ..endpoint
        }))
    }

    /// `None`: a server that images are only pushed to.
    fn endpoint(&self, url: &str, server: Server) -> Result<Option<Endpoint>> {
        let can = |capability| {
            let listed = server.capabilities.as_ref();
            listed.is_none_or(|listed| listed.contains(&capability))
        };
        let pulls = can(Capability::Pull);
        let resolves = can(Capability::Resolve);
        if !pulls {
            return Ok(None);
        }
        let base = base(url, server.override_path).map_err(|reason| {
            let shown = super::super::reference::presentable(url);
            self.refuse(format!("server {shown:?} {reason}"))
        })?;
        let tls = Tls {
            authorities: server.ca,
            client: server.client,
            skip_verify: server.skip_verify,
        };
        let client = tls.client(self.dir, &self.builder);
        Ok(Some(Endpoint {
            base,
            client: client.map_err(|reason| self.refuse(reason))?,
            headers: self.headers(server.header)?,
            is_registry: false,
            resolves,
        }))
    }

    fn headers(&self, written: HashMap<String, HeaderValues>) -> Result<HeaderMap> {
        let mut headers = HeaderMap::new();
        for (name, values) in written {
            let values = match values {
                HeaderValues::One(value) => vec![value],
                HeaderValues::Several(values) => values,
            };
            let invalid = || self.refuse(format!("header {name:?} is not valid"));
            let key = HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid())?;
            for value in values {
                let mut value = HeaderValue::from_str(&value).map_err(|_| invalid())?;
                value.set_sensitive(true);
                headers.append(key.clone(), value);
            }
        }
        Ok(headers)
    }

    fn refuse(&self, reason: String) -> Error {
        Error::Registry {
            path: self.dir.join(FILE),
            reason,
        }
    }
}

/// The URL of the API at a server.
fn base(server: &str, override_path: bool) -> Result<Url, &'static str> {
    let text = if server.contains("://") {
        server.to_owned()
    } else {
        format!("https://{server}")
    };
    let mut url = Url::parse(&text).map_err(|_| "is no valid URL")?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err("is neither http nor https");
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("has credentials in its URL; use the table header");
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err("has a query or a fragment");
    }
    let path = url.path().trim_end_matches('/').to_owned();
    let path = if override_path || path.ends_with("/v2") {
        format!("{path}/")
    } else {
        format!("{path}/v2/")
    };
    url.set_path(&path);
    Ok(url)
}

#[cfg(test)]
mod tests;
