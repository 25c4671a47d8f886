//! Pulls an image from a registry.
//!
//! Invariant: pulls of one name with the same credentials share one request; pulls of one blob from one
//! host share its download, whatever their names. A blob whose disk is here and came from this host is
//! not sent again, nor a layer that was found to hold none: another host, which a tenant may run, could
//! name the blobs of others without having them, and this one is asked for a byte of a blob that came by other
//! credentials. A blob leaves here with the digest of its manifest.
//! Failure: as of every pull; a partial blob is continued by the next pull that needs it.

use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use super::super::Inner;
use super::super::access::Identity;
use super::super::catalog::{Image, names_of};
use super::super::digest::Digest;
use super::super::download::Fetched;
use super::super::error::{Error, Result};
use super::super::partial::{Partial, Validators};
use super::super::progress::Meter;
use super::super::reference::{Name, Reference};
use super::super::registry::{Blob, Place, Resolved, Wanted};
use super::super::rows;
use super::super::share::{Arrived, Turn};
use super::Arrival;
use super::commit::{Download, NO_DISK};

/// One pull.
struct Request<'a> {
    name: &'a Name,
    wanted: Wanted<'a>,
    identity: Identity,
}

impl Inner {
    pub(super) async fn pull_from_registry(
        self: &Arc<Self>,
        name: &Name,
        wanted: Wanted<'_>,
        identity: Identity,
    ) -> Result<Image> {
        let request = Request {
            name,
            wanted,
            identity,
        };
        loop {
            match self.downloads.turn(request.key(), &name.to_string()).await {
                Turn::Lead(leadership) => {
                    let outcome = self.bring(&request, leadership.meter()).await;
                    let published = outcome.as_ref().map(|(_, arrived)| *arrived);
                    leadership.publish(published.map_err(Error::clone));
                    return outcome.map(|(image, _)| image);
                }
                Turn::Follow(outcome) => {
                    let arrived = outcome?;
                    let names = names_of(name, arrived.content);
                    let adopted = self.adopt(names, arrived.digest, Some(identity)).await?;
                    if let Some(image) = adopted {
                        return Ok(image);
                    }
                }
            }
        }
    }

    /// Asks the registry what the image is, and brings its disk.
    async fn bring(
        self: &Arc<Self>,
        request: &Request<'_>,
        meter: &Meter,
    ) -> Result<(Image, Arrived)> {
        let place = request.wanted.place;
        let resolved = self.registries.resolve(&self.downloader, request.wanted);
        let resolved = resolved.await?;
        let unknown = |blob: &&Blob| !self.diskless.has(blob);
        for blob in resolved.candidates.iter().filter(unknown) {
            match self.bring_blob(request, &resolved, blob, meter).await {
                Ok(image) => {
                    let arrived = Arrived {
                        digest: image.digest,
                        content: resolved.digest,
                    };
                    return Ok((image, arrived));
                }
                // The disk may be in a layer below.
                Err(Error::Content { reason, .. }) if reason == NO_DISK => {
                    self.diskless.add(blob);
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::Content {
            location: place.to_string(),
            reason: NO_DISK.to_owned(),
        })
    }

    /// Brings one blob for all pulls that need it.
    async fn bring_blob(
        self: &Arc<Self>,
        request: &Request<'_>,
        resolved: &Resolved,
        blob: &Blob,
        meter: &Meter,
    ) -> Result<Image> {
        let key = request.key_of(blob.digest);
        let names = names_of(request.name, resolved.digest);
        let identity = Some(request.identity);
        self.take_over(request.name, blob.digest, &key).await?;
        loop {
            if let Some((arrived, _)) = self.known(&key) {
                let digest = arrived.digest;
                if !self
                    .catalog
                    .read(|rows| rows.admits(digest, request.identity))
                {
                    self.confirm(request, resolved, blob).await?;
                }
                if let Some(image) = self.adopt(names.clone(), digest, identity).await? {
                    return Ok(image);
                }
            }
            match self.downloads.turn(key.clone(), "").await {
                Turn::Lead(leadership) => {
                    let fetched = self.fetch_blob(request, resolved, blob, meter).await;
                    return self.lead(leadership, fetched).await;
                }
                // It is known now.
                Turn::Follow(outcome) => drop(outcome?),
            }
        }
    }

    /// Asks for the first byte of a blob that is here: the registry has it in this repository, and sends it for these
    /// credentials. Not every registry looks for what a manifest names.
    async fn confirm(&self, request: &Request<'_>, resolved: &Resolved, blob: &Blob) -> Result<()> {
        let (mut servers, mut target) = resolved.servers(&self.downloader, request.wanted, blob)?;
        loop {
            match self.downloader.peek(&target, 1).await {
                Ok(_) => return Ok(()),
                Err(error) => target = servers.after(error).await?,
            }
        }
    }

    /// Takes a blob that an earlier version brought, which recorded neither host nor credentials, for one of
    /// this host if a name of its image says so. Its server has confirmed it just now.
    async fn take_over(&self, name: &Name, blob: Digest, key: &str) -> Result<()> {
        let before = key_before_hosts(blob);
        let Some((arrived, validators)) = self.known(&before) else {
            return Ok(());
        };
        let is_here = |named: &String| match Reference::parse(named) {
            Ok(Reference::Named(named)) => host_of(&named) == host_of(name),
            _ => false,
        };
        let is_ours = self.catalog.read(|rows| {
            let entry = rows.entries.get(&arrived.digest);
            entry.is_some_and(|e| e.access.is_unknown() && e.names.iter().any(is_here))
        });
        if !is_ours {
            return Ok(());
        }
        let _held = self.locks.lock(&arrived.digest).await;
        rows::resourced(&self.db, before.clone(), key.to_owned()).await?;
        self.catalog.change(|rows| {
            // A removal in between took it with its image.
            if rows.sources.remove(&before).is_some() {
                let sourced = (arrived, validators);
                rows.sources.insert(key.to_owned(), sourced);
            }
        });
        Ok(())
    }

    async fn fetch_blob(
        self: &Arc<Self>,
        request: &Request<'_>,
        resolved: &Resolved,
        blob: &Blob,
        meter: &Meter,
    ) -> Result<Arrival> {
        let key = request.key_of(blob.digest);
        let download = Download {
            name: request.name.clone(),
            key,
            identity: Some(request.identity),
            location: request.wanted.place.to_string(),
            shape: blob.shape,
            expected: Some(blob.digest.into()),
            named: Some(resolved.digest),
            user: resolved.user.clone(),
            validators: Validators {
                etag: Some(blob.digest.to_string()),
                modified: None,
            },
        };
        let (mut servers, mut target) = resolved.servers(&self.downloader, request.wanted, blob)?;
        loop {
            let partial = self.partial(&download.key).await?;
            let is_continued = partial.read(|p| p.received() > 0).await;
            let early = self.extract_early(&download, &partial, blob.size).await?;
            let fetched = self.downloader.fetch(&target, partial, None, meter).await;
            let error = match fetched {
                Ok(Fetched::Whole(partial)) => {
                    let actual = partial.read(Partial::digest).await;
                    if actual == blob.digest {
                        return Ok(Arrival::New(download, partial, early));
                    }
                    partial.discard().await?;
                    Error::digest(target.source.location(), blob.digest, actual)
                }
                // Nothing was known, so that the server has nothing to compare.
                Ok(Fetched::Unchanged) => Error::Content {
                    location: request.wanted.place.to_string(),
                    reason: "its server did not send the file".to_owned(),
                },
                Err(error) => error,
            };
            if let Some(early) = early {
                early.discard().await;
            }
            // The wrong bytes may be those of another server.
            let is_retried = is_continued && matches!(error, Error::Digest { .. });
            if !is_retried {
                target = servers.after(error).await?;
            }
        }
    }
}

impl Request<'_> {
    /// Other credentials may lead to another answer, so that their pulls do not share one.
    fn key(&self) -> String {
        let own = progress_key(self.name, self.wanted.place);
        match self.wanted.credentials {
            None => own,
            Some(given) => format!("{own}/{}", Digest::from_bytes(given.mark()).hex()),
        }
    }

    /// Stands for a blob of its host in file names and the database.
    fn key_of(&self, blob: Digest) -> String {
        let host = self.wanted.place.host();
        let text = format!("blob {blob} of {host}");
        Digest::from_bytes(Sha256::digest(text).into()).hex()
    }
}

/// Stands for the pulls of a name from a place.
pub(in crate::images) fn progress_key(name: &Name, place: &Place) -> String {
    let text = format!("oci {name} {place}");
    Digest::from_bytes(Sha256::digest(text).into()).hex()
}

/// What stood for a blob of any host.
fn key_before_hosts(blob: Digest) -> String {
    Digest::from_bytes(Sha256::digest(format!("blob {blob}")).into()).hex()
}

/// The host in the name of an image.
fn host_of(name: &Name) -> &str {
    name.bare().split('/').next().unwrap_or_default()
}
