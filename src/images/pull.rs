//! Pulls an image by its name into the store.
//!
//! Invariant: what a pull has recorded survives its caller; what it has not recorded is collected
//! or continued later. The server gets a request each time, unless the name has a digest that is
//! here already.
//! Failure: every participant of a shared download gets its error; the partial stays if it is of
//! use.

use std::sync::Arc;

use super::Inner;
use super::catalog::{Entry, Facts, Image, names_of};
use super::digest::Digest;
use super::download::Fetched;
use super::error::{Error, Result};
use super::format::inspect;
use super::locator::Locator;
use super::partial::{Handle, Validators};
use super::reference::Name;
use super::rows;
use super::share::{Leadership, Turn};
use super::translate::Source;

/// What one caller wants.
#[derive(Debug, Clone)]
struct DesiredImage {
    name: Name,
    source: Source,
}

impl Inner {
    pub(super) async fn pull(self: &Arc<Self>, locator: Locator<'_>) -> Result<Image> {
        let (name, url) = locator.parse()?;
        if let Some(digest) = name.digest()
            && let Some(image) = self.adopt(&name, digest).await?
        {
            return Ok(image);
        }
        let source = self.translator.translate(&name, url)?;
        let desired = DesiredImage { name, source };
        loop {
            let followed = match self.downloads.turn(desired.source.key()).await {
                Turn::Lead(leadership) => return self.download(desired, leadership).await,
                Turn::Follow(outcome) => outcome,
            };
            match followed {
                Ok(digest) => {
                    desired.check(digest)?;
                    if let Some(image) = self.adopt(&desired.name, digest).await? {
                        return Ok(image);
                    }
                }
                // The other one wanted other content of this URL than we do.
                Err(Error::Digest { expected, .. }) if desired.name.digest() != Some(expected) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Downloads for all callers that wait for this URL.
    async fn download(
        self: &Arc<Self>,
        desired: DesiredImage,
        leadership: Leadership,
    ) -> Result<Image> {
        match self.fetch(&desired, &leadership).await {
            Ok(Arrival::Known(image)) => {
                leadership.publish(Ok(image.digest));
                Ok(image)
            }
            Ok(Arrival::New(partial)) => {
                let inner = Arc::clone(self);
                let commit = async move {
                    let outcome = inner.commit(&desired, &partial).await;
                    drop(partial);
                    leadership.publish(
                        outcome
                            .as_ref()
                            .map(|image| image.digest)
                            .map_err(Error::clone),
                    );
                    outcome
                };
                self.detached(commit).await
            }
            Err(error) => {
                leadership.publish(Err(error.clone()));
                Err(error)
            }
        }
    }

    async fn fetch(
        self: &Arc<Self>,
        desired: &DesiredImage,
        leadership: &Leadership,
    ) -> Result<Arrival> {
        let key = desired.source.key();
        loop {
            let known = self.known(&key);
            let partial =
                Handle::open(self.store.partial(), key.clone(), self.boot_id_file.clone()).await?;
            faultpoint::point("images.pull.part-created");
            let validators = known.as_ref().map(|(_, validators)| validators);
            let fetched =
                self.downloader
                    .fetch(&desired.source, partial, validators, leadership.meter());
            match (fetched.await?, known) {
                (Fetched::Whole(partial), _) => return Ok(Arrival::New(partial)),
                (Fetched::Unchanged, Some((digest, _))) => {
                    desired.check(digest)?;
                    if let Some(image) = self.adopt(&desired.name, digest).await? {
                        return Ok(Arrival::Known(image));
                    }
                }
                // Only requested with a known digest; without one, request everything.
                (Fetched::Unchanged, None) => {}
            }
        }
    }

    /// The image that came from this URL last, and what its server called it.
    fn known(&self, key: &str) -> Option<(Digest, Validators)> {
        self.catalog.read(|rows| {
            let (digest, validators) = rows.sources.get(key)?;
            let usable = rows.entries.contains_key(digest) && !validators.is_empty();
            usable.then(|| (*digest, validators.clone()))
        })
    }

    /// Adds the name to an image that is here already; `None` if it is not.
    async fn adopt(self: &Arc<Self>, name: &Name, digest: Digest) -> Result<Option<Image>> {
        if self.catalog.image(digest).is_none() {
            return Ok(None);
        }
        let (inner, names) = (Arc::clone(self), names_of(name, digest));
        self.detached(async move {
            let _held = inner.locks.lock(&digest).await;
            if !inner.is_sound(digest).await? {
                return Ok(None);
            }
            rows::named(&inner.db, digest, names.clone()).await?;
            inner.catalog.change(|rows| rows.name(digest, &names));
            Ok(inner.catalog.image(digest))
        })
        .await
    }

    /// Checks a complete download, moves it into the store and records it.
    async fn commit(self: &Arc<Self>, desired: &DesiredImage, partial: &Handle) -> Result<Image> {
        let digest = match partial.work(|p| p.finish()).await {
            Ok(digest) => digest,
            Err(error) => {
                partial.discard().await?;
                return Err(error);
            }
        };
        faultpoint::point("images.pull.downloaded");
        if let Err(error) = desired.check(digest) {
            partial.discard().await?;
            return Err(error);
        }
        let facts = self.judge(desired, partial).await?;

        let held = self.locks.lock(&digest).await;
        let (store, target) = (self.store.clone(), self.catalog.path(digest));
        let place = partial.work(move |p| {
            if store.holds(digest, facts.size) {
                p.discard()
            } else {
                p.place(&target)
            }
        });
        place.await?;
        faultpoint::point("images.pull.renamed");

        let names = names_of(&desired.name, digest);
        let validators = partial.read(|p| p.note().validators.clone());
        let source = (desired.source.key(), validators);
        rows::arrived(&self.db, digest, facts, source.clone(), names.clone()).await?;
        faultpoint::point("images.pull.recorded");
        self.catalog.change(|rows| {
            rows.entries
                .entry(digest)
                .or_insert_with(|| Entry::new(facts));
            rows.name(digest, &names);
            rows.sources.insert(source.0, (digest, source.1));
        });
        let image = self.catalog.image(digest);
        drop(held);
        self.metrics.received(facts.size);
        let (name, location) = (&desired.name, desired.source.location());
        tracing::info!(%digest, %name, location, size = facts.size, "image pulled");
        image.ok_or_else(|| Error::Absent {
            reference: digest.to_string(),
        })
    }

    /// Finds out what kind of disk the download is; anything else is discarded.
    async fn judge(&self, desired: &DesiredImage, partial: &Handle) -> Result<Facts> {
        let limit = self.max_virtual_bytes;
        match partial.work(move |p| inspect(p.file(), limit)).await? {
            Ok(disk) => Ok(Facts {
                size: partial.read(|p| p.received()),
                virtual_size: disk.virtual_size,
                format: disk.format,
            }),
            Err(reason) => {
                partial.discard().await?;
                Err(Error::Format {
                    location: desired.source.location(),
                    reason,
                })
            }
        }
    }
}

/// How a fetch ended well.
enum Arrival {
    New(Handle),
    Known(Image),
}

impl DesiredImage {
    fn check(&self, actual: Digest) -> Result<()> {
        match self.name.digest() {
            Some(expected) if expected != actual => Err(Error::Digest {
                location: self.source.location(),
                expected,
                actual,
            }),
            _ => Ok(()),
        }
    }
}
