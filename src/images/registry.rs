//! Images in OCI registries: container disks, and artifacts whose one file is a disk.
//!
//! Invariant: every manifest and configuration has the digest that led to it, or that its name
//! demands; replies are bounded. Mirrors are used before the registry, which follows when they fail or
//! send other content; only the registry's own answer counts as final.
//! Failure: [`Error`] of the registry itself, after all mirrors have failed.

use std::collections::BTreeSet;
use std::sync::Arc;

use http::{HeaderMap, HeaderValue, header};
use reqwest::ClientBuilder;
use sha2::{Digest as _, Sha256};

use super::adjustable::Live;
use super::digest::Digest;
use super::download::{Downloader, Target};
use super::error::{Error, Result};
use super::reference::Version;
use super::settings::Settings;

mod credentials;
mod hosts;
pub(super) mod manifest;
mod place;
mod session;
mod tls;

pub use credentials::Credentials;
use hosts::{Endpoint, Hosts};
pub(super) use manifest::Blob;
use manifest::Manifest;
pub(super) use place::{DOCKER_HUB, Place, SCHEME};
use session::Session;

/// Longest manifest: registries refuse larger ones.
const MANIFEST: usize = 4 << 20;

/// Makes HTTP clients as all others are.
type Builder = dyn Fn() -> ClientBuilder + Send + Sync;

/// The registries as the node's configuration has them.
pub(super) struct Registries {
    hosts: Hosts,
    known: BTreeSet<String>,
    builder: Arc<Builder>,
}

impl std::fmt::Debug for Registries {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registries")
            .field("hosts", &self.hosts)
            .field("known", &self.known)
            .finish_non_exhaustive()
    }
}

/// What a registry says of an image.
#[derive(Debug)]
pub(super) struct Resolved {
    /// Of the manifest or index that the name means.
    pub(super) digest: Digest,
    /// The user that its configuration names; empty for none.
    pub(super) user: String,
    /// The blobs that may have the disk, the most likely first.
    pub(super) candidates: Vec<Blob>,
    endpoints: Vec<Endpoint>,
    /// The first endpoint that knows the image.
    first: usize,
    /// What that one gave for the requests so far.
    authorization: Option<HeaderValue>,
}

impl Registries {
    pub(super) fn new(
        settings: &Settings,
        live: &Arc<Live>,
        builder: impl Fn() -> ClientBuilder + Send + Sync + 'static,
    ) -> Self {
        Self {
            hosts: Hosts::new(settings.registries_dir.clone(), Arc::clone(live)),
            known: settings.registries.iter().cloned().collect(),
            builder: Arc::new(builder),
        }
    }

    /// Whether names with this host are those of a registry. Blocks.
    pub(super) fn serves(&self, host: &str) -> bool {
        self.known.contains(host) || self.hosts.knows(host)
    }

    /// Finds out what an image is.
    pub(super) async fn resolve(
        &self,
        downloader: &Downloader,
        wanted: Wanted<'_>,
    ) -> Result<Resolved> {
        let place = wanted.place;
        let endpoints = self.endpoints(place).await?;
        let by_tag = matches!(place.version(), Version::Tag(_));
        let mut failed = None;
        for (first, endpoint) in endpoints.iter().enumerate() {
            if by_tag && !endpoint.resolves {
                continue;
            }
            let mut session = Session::new(downloader, endpoint, wanted);
            match resolve_at(&mut session, place).await {
                Ok((digest, user, candidates)) => {
                    return Ok(Resolved {
                        digest,
                        user,
                        candidates,
                        authorization: session.authorization(),
                        endpoints,
                        first,
                    });
                }
                Err(error) => {
                    if !endpoint.is_registry {
                        tracing::warn!(%error, image = %place, "mirror of registry not used");
                    }
                    failed = Some(error);
                }
            }
        }
        Err(failed.unwrap_or_else(|| Error::NotFound {
            location: place.to_string(),
            status: "no server resolves tags".to_owned(),
        }))
    }

    async fn endpoints(&self, place: &Place) -> Result<Vec<Endpoint>> {
        let (hosts, builder, place) =
            (self.hosts.clone(), Arc::clone(&self.builder), place.clone());
        tokio::task::spawn_blocking(move || hosts.endpoints(&place, || builder())).await?
    }
}

/// The servers that may have a blob, one after the other.
#[derive(Debug)]
pub(super) struct Servers<'a> {
    resolved: &'a Resolved,
    blob: &'a Blob,
    downloader: &'a Downloader,
    wanted: Wanted<'a>,
    index: usize,
    session: Session<'a>,
    renewed: bool,
}

/// An image, and the credentials for it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) place: &'a Place,
    pub(super) credentials: Option<&'a Credentials>,
}

impl Resolved {
    /// The servers of a blob, and where the first one has it.
    pub(super) fn servers<'a>(
        &'a self,
        downloader: &'a Downloader,
        wanted: Wanted<'a>,
        blob: &'a Blob,
    ) -> Result<(Servers<'a>, Target)> {
        let mut session = Session::new(downloader, &self.endpoints[self.first], wanted);
        session.resume(self.authorization.clone());
        let target = session.blob(blob)?;
        let servers = Servers {
            resolved: self,
            blob,
            downloader,
            wanted,
            index: self.first,
            session,
            renewed: false,
        };
        Ok((servers, target))
    }
}

impl Servers<'_> {
    /// Where to try next after a failure; the failure itself where nothing else is to be tried.
    pub(super) async fn after(&mut self, mut error: Error) -> Result<Target> {
        // Not authorized yet, or a download that takes longer than its token is valid.
        if matches!(error, Error::Refused { code: 401, .. }) && !self.renewed {
            self.renewed = true;
            match self.session.authorize_blob(self.blob).await {
                Ok(()) => return self.session.blob(self.blob),
                Err(refused) => error = refused,
            }
        }
        let endpoints = &self.resolved.endpoints;
        let is_mirror = endpoints.get(self.index).is_some_and(|e| !e.is_registry);
        let next = endpoints.get(self.index + 1);
        let Some(next) = next.filter(|_| is_mirror && is_of_server(&error)) else {
            return Err(error);
        };
        tracing::warn!(%error, image = %self.wanted.place, "mirror of registry not used");
        self.index += 1;
        self.renewed = false;
        self.session = Session::new(self.downloader, next, self.wanted);
        self.session.blob(self.blob)
    }
}

/// Whether another server may do better.
const fn is_of_server(error: &Error) -> bool {
    error.is_passing()
        || matches!(
            error,
            Error::NotFound { .. }
                | Error::Refused { .. }
                | Error::Untrusted { .. }
                | Error::Redirect { .. }
                | Error::Address { .. }
                | Error::Digest { .. }
        )
}

/// Digest, user and candidates of an image, as one server has it.
async fn resolve_at(
    session: &mut Session<'_>,
    place: &Place,
) -> Result<(Digest, String, Vec<Blob>)> {
    let (bytes, digest) = manifest_at(session, place, &place.label(), expected(place)).await?;
    let unusable = |reason: String| Error::content(place.to_string(), &reason);
    let mut found = manifest::read(&bytes).map_err(unusable)?;
    if let Manifest::Index(ours) = found {
        let (bytes, _) = manifest_at(session, place, &ours.to_string(), Some(ours)).await?;
        found = manifest::read(&bytes).map_err(unusable)?;
    }
    let Manifest::Image { config, candidates } = found else {
        return Err(unusable("its index leads to another index".to_owned()));
    };
    let user = match config {
        None => String::new(),
        Some(config) => {
            let path = session::blob_path(config.digest);
            let bytes = session.get(&path, HeaderMap::new(), MANIFEST).await?;
            check(place, Some(config.digest), &bytes)?;
            manifest::user(&bytes).map_err(unusable)?
        }
    };
    Ok((digest, user, candidates))
}

async fn manifest_at(
    session: &mut Session<'_>,
    place: &Place,
    label: &str,
    expected: Option<Digest>,
) -> Result<(Vec<u8>, Digest)> {
    let mut headers = HeaderMap::new();
    headers.insert(
        header::ACCEPT,
        HeaderValue::from_static(manifest::MANIFESTS),
    );
    let path = format!("manifests/{label}");
    let bytes = session.get(&path, headers, MANIFEST).await?;
    let digest = check(place, expected, &bytes)?;
    Ok((bytes, digest))
}

const fn expected(place: &Place) -> Option<Digest> {
    match place.version() {
        Version::Digest(digest) => Some(*digest),
        // No place has a SHA-512.
        Version::Tag(_) | Version::Sha512(_) => None,
    }
}

/// The digest of a reply, which must be the expected one.
fn check(place: &Place, expected: Option<Digest>, bytes: &[u8]) -> Result<Digest> {
    let actual = Digest::from_bytes(Sha256::digest(bytes).into());
    match expected {
        Some(expected) if expected != actual => {
            Err(Error::digest(place.to_string(), expected, actual))
        }
        _ => Ok(actual),
    }
}
