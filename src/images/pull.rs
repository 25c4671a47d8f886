//! Pulls an image by its name into the store.
//!
//! Invariant: what a pull has recorded survives its caller; what it has not recorded is collected
//! or continued later. The server gets a request each time, unless the name has a digest that is
//! here already and came by the same credentials, or by none. What the server of one host sent is of
//! use to pulls from this host alone: another one has to send the content itself.
//! Failure: every participant of a shared download gets its error; the partial stays if it is of
//! use.

use std::sync::Arc;

use super::Inner;
use super::access::Identity;
use super::catalog::{Image, names_of};
use super::digest::Digest;
use super::download::{Fetched, Target};
use super::error::{Error, Result};
use super::locator::{Locator, Origin};
use super::partial::{Handle, Validators};
use super::reference::{Name, Version};
use super::registry::{Credentials, DOCKER_HUB, Wanted};
use super::rows;
use super::share::{Arrived, Leadership, Turn};
use super::translate::{Place, Source};
use super::transport::ServerTls;
use super::unpack::Shape;
use crate::clock;

mod commit;
mod convert;
mod diskless;
mod extract;
mod from_registry;
mod upload;

use commit::Download;
pub(super) use commit::NO_DISK;
pub(super) use diskless::Diskless;
pub(super) use extract::EXTRACTIONS;
use extract::Early;
pub(super) use from_registry::progress_key;
pub(super) use upload::is_uploaded;
pub use upload::{Receiver, Upload};

const TLS_OF_REGISTRY: &str = "is in a registry, and certificates of a Secret are for files on web \
    servers; configure the registry in images.registries_dir";
const TLS_OF_HTTP: &str =
    "is fetched without TLS, and has a Secret with certificates; use https or remove the Secret";

/// What one caller wants of a web server.
#[derive(Debug, Clone)]
struct DesiredImage {
    name: Name,
    source: Source,
    identity: Identity,
}

impl Inner {
    pub(super) async fn pull(
        self: &Arc<Self>,
        locator: Locator<'_>,
        credentials: Option<&Credentials>,
    ) -> Result<Image> {
        let (name, origin) = locator.parse()?;
        if is_uploaded(&name) {
            return self.uploaded(&name).await;
        }
        // It needs no place, so that it is of use where no rule leads to one any more.
        if let Some(image) = self.present(&name, Identity::Anyone).await? {
            return Ok(image);
        }
        let key = self.catalog.read(|rows| rows.key);
        let of_file = key.with_file(origin.signed(), locator.tls());
        let place = self.place(&name, origin, locator.tls()).await?;
        let identity = match place {
            Place::File(_) => of_file,
            Place::Registry(_) => key.with_credentials(credentials),
        };
        if let Some(image) = self.present(&name, identity).await? {
            return Ok(image);
        }
        match place {
            Place::File(source) => {
                let desired = DesiredImage {
                    name,
                    source,
                    identity,
                };
                self.pull_file(desired).await
            }
            Place::Registry(place) => {
                let wanted = Wanted {
                    place: &place,
                    credentials,
                };
                self.pull_from_registry(&name, wanted, identity).await
            }
        }
    }

    /// Where an image is, and how its server is reached.
    pub(super) async fn place(
        &self,
        name: &Name,
        origin: Origin,
        tls: Option<&ServerTls>,
    ) -> Result<Place> {
        let host = name.bare().split('/').next().unwrap_or_default().to_owned();
        let translator = self.mappings.read_in_turn().await;
        let registries = Arc::clone(&self.registries);
        let read = move || {
            let hosts = [host.as_str(), DOCKER_HUB];
            let served = hosts.into_iter().filter(|host| registries.serves(host));
            served.map(str::to_owned).collect::<Vec<_>>()
        };
        let served = tokio::task::spawn_blocking(read).await?;
        let serves = |host: &str| served.iter().any(|one| one == host);
        let place = translator.translate(name, origin, serves)?;
        let refuse = |reason: &'static str| Error::InvalidName {
            name: name.repository().to_owned(),
            reason: reason.into(),
        };
        match (place, tls) {
            (place, None) => Ok(place),
            (Place::Registry(_), Some(_)) => Err(refuse(TLS_OF_REGISTRY)),
            (Place::File(source), Some(_)) if source.url().scheme() != "https" => {
                Err(refuse(TLS_OF_HTTP))
            }
            (Place::File(source), tls) => Ok(Place::File(source.secured(tls))),
        }
    }

    /// The image that a name with a digest means, if it is here and is for pulls with these credentials.
    async fn present(self: &Arc<Self>, name: &Name, identity: Identity) -> Result<Option<Image>> {
        let named = self.catalog.resolve(&name.to_string());
        let file = match name.version() {
            Version::Tag(_) => None,
            Version::Digest(digest) => Some(named.unwrap_or(*digest)),
            Version::Sha512(_) => self.catalog.known_as(name),
        };
        let Some(file) = file else {
            return Ok(None);
        };
        if !self.catalog.read(|rows| rows.admits(file, identity)) {
            return Ok(None);
        }
        self.adopt(vec![name.to_string()], file, Some(identity))
            .await
    }

    async fn pull_file(self: &Arc<Self>, desired: DesiredImage) -> Result<Image> {
        loop {
            let key = desired.source.key();
            let name = desired.name.to_string();
            let followed = match self.downloads.turn(key, &name).await {
                Turn::Lead(leadership) => return self.download(desired, leadership).await,
                Turn::Follow(outcome) => outcome,
            };
            match followed {
                // It says nothing about this SHA-512.
                Ok(arrived) if self.is_unchecked(&desired.name, arrived) => {}
                Ok(arrived) => {
                    desired.check(arrived.content)?;
                    let names = names_of(&desired.name, arrived.content);
                    let identity = Some(desired.identity);
                    if let Some(image) = self.adopt(names, arrived.digest, identity).await? {
                        return Ok(image);
                    }
                }
                // The other one wanted other content of this URL than we do.
                Err(Error::Digest { expected, .. })
                    if desired.name.checksum() != Some(*expected) => {}
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
        let fetched = self.fetch(&desired, &leadership).await;
        self.lead(leadership, fetched).await
    }

    /// Publishes what a fetch led to, once that is in the store.
    async fn lead(
        self: &Arc<Self>,
        leadership: Leadership,
        fetched: Result<Arrival>,
    ) -> Result<Image> {
        match fetched {
            Ok(Arrival::Known(image, arrived)) => {
                leadership.publish(Ok(arrived));
                Ok(image)
            }
            Ok(Arrival::New(download, partial, early)) => {
                let inner = Arc::clone(self);
                let commit = async move {
                    let outcome = inner.commit(&download, &partial, early).await;
                    drop(partial);
                    let published = outcome.as_ref().map(|(_, arrived)| *arrived);
                    leadership.publish(published.map_err(Error::clone));
                    outcome.map(|(image, _)| image)
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
        let target = Target::for_source(desired.source.clone());
        loop {
            let known = match desired.name.version() {
                // Of what is here the SHA-256 alone is known.
                Version::Sha512(_) => None,
                Version::Tag(_) | Version::Digest(_) => self.known(&key),
            };
            let partial = self.partial(&key).await?;
            let validators = known.as_ref().map(|(_, validators)| validators);
            let fetched = self
                .downloader
                .fetch(&target, partial, validators, leadership.meter());
            match (fetched.await?, known) {
                (Fetched::Whole(partial), _) => {
                    return Ok(Arrival::New(
                        desired.download(&partial).await,
                        partial,
                        None,
                    ));
                }
                (Fetched::Unchanged, Some((arrived, _))) => {
                    desired.check(arrived.content)?;
                    let names = names_of(&desired.name, arrived.content);
                    let identity = Some(desired.identity);
                    if let Some(image) = self.adopt(names, arrived.digest, identity).await? {
                        return Ok(Arrival::Known(image, arrived));
                    }
                }
                // Only requested with a known digest; without one, request everything.
                (Fetched::Unchanged, None) => {}
            }
        }
    }

    /// Whether a name has a SHA-512 that this file was not compared with.
    fn is_unchecked(&self, name: &Name, arrived: Arrived) -> bool {
        let is_long = matches!(name.version(), Version::Sha512(_));
        is_long && self.catalog.resolve(&name.to_string()) != Some(arrived.digest)
    }

    async fn partial(&self, key: &str) -> Result<Handle> {
        let dir = self.store.partial();
        let boot = self.boot_id_file.clone();
        let partial = Handle::open(dir, key.to_owned(), boot).await?;
        faultpoint::point("images.pull.part-created");
        Ok(partial)
    }

    /// The image that came from a source last, and what its server called it.
    fn known(&self, key: &str) -> Option<(Arrived, Validators)> {
        self.catalog.read(|rows| {
            let (arrived, validators) = rows.sources.get(key)?;
            let usable = rows.entries.contains_key(&arrived.digest) && !validators.is_empty();
            usable.then(|| (*arrived, validators.clone()))
        })
    }

    /// Adds names to an image that is here already, and the credentials by which its server has confirmed
    /// it; `None` if it is not here.
    async fn adopt(
        self: &Arc<Self>,
        names: Vec<String>,
        digest: Digest,
        identity: Option<Identity>,
    ) -> Result<Option<Image>> {
        if self.catalog.image(digest).is_none() {
            return Ok(None);
        }
        let inner = Arc::clone(self);
        self.detached(async move {
            let _held = inner.locks.lock(&digest).await;
            if !inner.is_sound(digest).await? {
                return Ok(None);
            }
            let now = clock::now();
            rows::named(&inner.db, digest, names.clone(), identity, now).await?;
            inner.catalog.change(|rows| {
                rows.name(digest, &names);
                rows.admit(digest, identity);
                rows.used(digest, now);
            });
            Ok(inner.catalog.image(digest))
        })
        .await
    }
}

/// How a fetch ended well.
enum Arrival {
    New(Download, Handle, Option<Early>),
    Known(Image, Arrived),
}

impl DesiredImage {
    fn check(&self, actual: Digest) -> Result<()> {
        match self.name.digest() {
            Some(expected) if expected != actual => {
                Err(Error::digest(self.source.location(), expected, actual))
            }
            _ => Ok(()),
        }
    }

    async fn download(&self, partial: &Handle) -> Download {
        Download {
            name: self.name.clone(),
            key: self.source.key(),
            identity: Some(self.identity),
            location: self.source.location(),
            shape: Shape::Disk,
            expected: self.name.checksum(),
            named: None,
            user: String::new(),
            validators: partial.read(|p| p.note().validators.clone()).await,
        }
    }
}
