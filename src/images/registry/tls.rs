//! Certificates for one server of a registry.
//!
//! Invariant: a server without any of these settings is reached by the client that all servers
//! share. Relative paths are below the directory of the server's file.
//! Failure: a sentence that names the file.

use std::path::{Path, PathBuf};

use reqwest::{Certificate, Client, ClientBuilder, Identity};
use serde::Deserialize;

/// Files of certificate authorities.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Authorities {
    One(PathBuf),
    Several(Vec<PathBuf>),
}

/// Files of client certificates: with their keys inside, or in pairs of certificate and key.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum ClientFiles {
    One(PathBuf),
    Several(Vec<PathBuf>),
    Pairs(Vec<(PathBuf, PathBuf)>),
}

/// What a server needs.
#[derive(Debug)]
pub(super) struct Tls {
    pub(super) authorities: Option<Authorities>,
    pub(super) client: Option<ClientFiles>,
    pub(super) skip_verify: bool,
}

impl Authorities {
    /// All files that end in `.crt` in a directory without a `hosts.toml`, as Docker has them.
    pub(super) fn beside(dir: &Path) -> Option<Self> {
        let found = files(dir, "crt");
        (!found.is_empty()).then_some(Self::Several(found))
    }
}

impl ClientFiles {
    /// All pairs of files that end in `.cert` and `.key` in such a directory.
    pub(super) fn beside(dir: &Path) -> Option<Self> {
        let pairs = files(dir, "cert").into_iter();
        let pairs: Vec<_> = pairs
            .map(|cert| (cert.clone(), cert.with_extension("key")))
            .collect();
        (!pairs.is_empty()).then_some(Self::Pairs(pairs))
    }

    fn texts(&self, dir: &Path) -> Result<Vec<Vec<u8>>, String> {
        let pair = |(cert, key): &(PathBuf, PathBuf)| {
            let mut text = read(dir, cert)?;
            text.push(b'\n');
            text.extend(read(dir, key)?);
            Ok(text)
        };
        match self {
            Self::One(path) => Ok(vec![read(dir, path)?]),
            Self::Several(paths) => paths.iter().map(|path| read(dir, path)).collect(),
            Self::Pairs(pairs) => pairs.iter().map(pair).collect(),
        }
    }
}

impl Tls {
    /// A client for this server, if it needs one of its own. Blocks.
    pub(super) fn client(
        &self,
        dir: &Path,
        builder: impl Fn() -> ClientBuilder,
    ) -> Result<Option<Client>, String> {
        if self.authorities.is_none() && self.client.is_none() && !self.skip_verify {
            return Ok(None);
        }
        let mut own = builder();
        let paths = match &self.authorities {
            None => &[][..],
            Some(Authorities::One(path)) => std::slice::from_ref(path),
            Some(Authorities::Several(paths)) => paths,
        };
        let mut authorities = Vec::new();
        for path in paths {
            let found = Certificate::from_pem_bundle(&read(dir, path)?);
            authorities.extend(found.map_err(|e| format!("{}: {e}", path.display()))?);
        }
        own = own.tls_certs_merge(authorities);
        let texts = self.client.as_ref().map(|client| client.texts(dir));
        let mut texts = texts.transpose()?.unwrap_or_default().into_iter();
        if let Some(text) = texts.next() {
            let identity = Identity::from_pem(&text);
            own = own.identity(identity.map_err(|e| format!("client certificate: {e}"))?);
        }
        if texts.next().is_some() {
            return Err("has more than one client certificate for a server".to_owned());
        }
        own = own.tls_danger_accept_invalid_certs(self.skip_verify);
        own.build().map(Some).map_err(|e| e.to_string())
    }
}

fn read(dir: &Path, path: &Path) -> Result<Vec<u8>, String> {
    let path = dir.join(path);
    std::fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))
}

/// The files with an extension, in order.
fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == extension))
        .collect();
    found.sort();
    found
}
