//! Pulls an image from a registry.
//!
//! Invariant: pulls of one name with the same credentials share one request; pulls of one blob
//! share its download, whatever their names. A blob whose disk is here is not sent again, nor a layer
//! that was found to hold none. A blob leaves here with the digest of its manifest.
//! Failure: as of every pull; a partial blob is continued by the next pull that needs it.

use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use super::super::Inner;
use super::super::catalog::{Image, names_of};
use super::super::digest::Digest;
use super::super::download::Fetched;
use super::super::error::{Error, Result};
use super::super::partial::{Partial, Validators};
use super::super::progress::Meter;
use super::super::reference::Name;
use super::super::registry::{Blob, Credentials, Place, Resolved, Wanted};
use super::super::share::{Arrived, Turn};
use super::Arrival;
use super::commit::{Download, NO_DISK};

/// One pull.
struct Request<'a> {
    name: &'a Name,
    wanted: Wanted<'a>,
}

impl Inner {
    pub(super) async fn pull_from_registry(
        self: &Arc<Self>,
        name: &Name,
        place: &Place,
        credentials: Option<&Credentials>,
    ) -> Result<Image> {
        let request = Request {
            name,
            wanted: Wanted { place, credentials },
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
                    if let Some(image) = self.adopt(names, arrived.digest).await? {
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
        let key = key_of(blob.digest);
        let names = names_of(request.name, resolved.digest);
        loop {
            if let Some((arrived, _)) = self.known(&key)
                && let Some(image) = self.adopt(names.clone(), arrived.digest).await?
            {
                return Ok(image);
            }
            match self.downloads.turn(key.clone(), "").await {
                Turn::Lead(leadership) => {
                    let fetched = self.fetch_blob(request, resolved, blob, meter).await;
                    return self.lead(leadership, fetched).await;
                }
                Turn::Follow(outcome) => {
                    let arrived = outcome?;
                    if let Some(image) = self.adopt(names.clone(), arrived.digest).await? {
                        return Ok(image);
                    }
                }
            }
        }
    }

    async fn fetch_blob(
        self: &Arc<Self>,
        request: &Request<'_>,
        resolved: &Resolved,
        blob: &Blob,
        meter: &Meter,
    ) -> Result<Arrival> {
        let key = key_of(blob.digest);
        let download = Download {
            name: request.name.clone(),
            key,
            location: request.wanted.place.to_string(),
            shape: blob.shape,
            expected: Some(blob.digest),
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
                    Error::Digest {
                        location: target.source.location(),
                        expected: blob.digest,
                        actual,
                    }
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
}

/// Stands for the pulls of a name from a place.
pub(in crate::images) fn progress_key(name: &Name, place: &Place) -> String {
    let text = format!("oci {name} {place}");
    Digest::from_bytes(Sha256::digest(text).into()).hex()
}

/// Stands for a blob in file names and the database: its content is the same in all registries.
fn key_of(blob: Digest) -> String {
    Digest::from_bytes(Sha256::digest(format!("blob {blob}")).into()).hex()
}
