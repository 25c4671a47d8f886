//! The image store: disks by name, pulled from web servers and registries, kept by content.
//!
//! Invariant: an image in the lists has a complete, checked file; a pinned file stays until its
//! owner lets go, whatever happens to names. Look-ups and lists never touch disk or database.
//! Failure: [`Error`]; a pull that failed or was dropped is continued by the next one.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use podspec::Content;
use service::locks::Locks;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

mod access;
mod addresses;
mod adjustable;
mod boot;
mod catalog;
mod checksum;
mod checksums;
mod client;
mod collect;
mod conversion;
mod convertible;
mod digest;
mod download;
mod error;
mod format;
pub(crate) mod fuzzing;
mod inspect;
mod keep;
mod locator;
mod mappings;
mod none;
mod opening;
mod partial;
mod pod_pulls;
mod progress;
mod pull;
mod qcow2;
mod reference;
mod registry;
mod rows;
mod settings;
mod share;
mod store;
mod translate;
mod transport;
mod unpack;

pub use addresses::Private;
pub(crate) use addresses::foreign_only;
pub use adjustable::Adjustable;
pub use boot::{Boot, boot_of};
pub use catalog::{Image, ImageUse, Pinned};
pub use checksum::{Checksum, ParseChecksum, Sha512};
pub use collect::{Collection, Marks, Users};
pub use conversion::{Conversion, Converter, Unconverted};
pub use convertible::{Convertible, Error as ConvertibleError};
pub use digest::{Digest, ParseDigest};
pub use error::{Error, Result};
pub use format::{Error as FormatError, Format, RawData, head_of};
pub use inspect::{Firmware, Inspected};
pub use locator::Locator;
pub use mappings::ClusterMapping;
pub use none::{is_none, none};
pub use pod_pulls::{PodPull, Requester};
pub use progress::Progress;
pub use pull::{Receiver, Upload};
pub use qcow2::Error as Qcow2Error;
pub(crate) use qcow2::{has_data_file, names_backing_file, tables as qcow2_tables};
pub use reference::{Name, Reference, Version};
pub use registry::Credentials;
pub use settings::{Pattern, Protocol, Proxy, Settings, Translation};
pub use store::Usage;
pub use transport::ServerTls;
pub use unpack::{Work, run as decode};

use crate::clock;
use crate::metadata::Db;
use crate::metrics::Metrics;
use crate::steps::{step, trace};
use adjustable::Live;
use catalog::Catalog;
use download::Downloader;
pub(crate) use format::judge;
use mappings::Mappings;
use pod_pulls::PodPulls;
use pull::Diskless;
use registry::Registries;
use share::Downloads;
use store::Store;
use translate::Place;
use transport::Profile;

/// Points of [`faultpoint`] in this module, in the order in which a life passes them.
pub const FAULT_POINTS: &[&str] = &[
    "images.pull.part-created",
    "images.pull.downloaded",
    "images.pull.unpacked",
    "images.pull.renamed",
    "images.pull.recorded",
    "images.pin.recorded",
    "images.move.recorded",
    "images.remove.unrecorded",
    "images.remove.unlinked",
    "images.unpin.unrecorded",
    "images.unpin.unlinked",
];

/// Handle to the image store; clones share it. One store per directory and database.
#[derive(Debug, Clone)]
pub struct Images {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    db: Db,
    store: Store,
    catalog: Catalog,
    /// By content: who places, unlinks, names or pins a file holds the lock of its digest.
    locks: Locks<Digest>,
    downloads: Downloads,
    pod_pulls: PodPulls,
    downloader: Downloader,
    /// For disks that are extracted while their layers arrive.
    extractions: Arc<Semaphore>,
    diskless: Diskless,
    mappings: Arc<Mappings>,
    registries: Arc<Registries>,
    live: Arc<Live>,
    converter: Option<Arc<dyn Converter>>,
    boot_id_file: PathBuf,
    tasks: TaskTracker,
    /// Ends what takes long when the daemon stops.
    stopping: CancellationToken,
    collection: Collection,
    /// Known once the containers are.
    users: OnceLock<Arc<dyn Users>>,
    /// Held by a round of the collection.
    collecting: tokio::sync::Mutex<()>,
    /// Whether the last round left the file system above its mark.
    short: AtomicBool,
    metrics: Arc<Metrics>,
}

impl Images {
    /// Brings the image that a name means now into the store. The server gets a request each time,
    /// but an unchanged file is not sent again; with a digest in the name, content that is here and came
    /// by the same credentials, or by none, is enough. Pulls of one URL at the same time share one download. Dropping the future stops the
    /// download (unless others wait for it) and keeps what was received for the next pull.
    pub async fn pull(&self, image: impl Into<Locator<'_>>) -> Result<Image> {
        self.pull_with(image, None).await
    }

    /// As [`Images::pull`], with credentials for a registry; other servers do not get them.
    pub async fn pull_with(
        &self,
        image: impl Into<Locator<'_>>,
        credentials: Option<&Credentials>,
    ) -> Result<Image> {
        // The request has the name of the image.
        trace(
            step!("image.pull"),
            self.pull_or_make_room(image.into(), credentials),
        )
        .await
    }

    async fn pull_or_make_room(
        &self,
        image: Locator<'_>,
        credentials: Option<&Credentials>,
    ) -> Result<Image> {
        let mut pulled = self.inner.pull(image, credentials).await;
        if let Err(Error::NoSpace { required, .. }) = pulled
            && self.inner.make_room(required, clock::now()).await?
        {
            pulled = self.inner.pull(image, credentials).await;
        }
        self.inner.metrics.pulled(pulled.is_ok());
        pulled
    }

    /// Uses these settings from now on, also for pulls in progress.
    pub fn adjust(&self, values: Adjustable) {
        self.inner.live.set(values);
    }

    /// Puts the mappings of the cluster in the place of those that were there; why each is refused,
    /// in order. They are kept over restarts.
    pub async fn replace_cluster_mappings(
        &self,
        wanted: Vec<ClusterMapping>,
    ) -> Result<Vec<Option<String>>> {
        let replaced = self.inner.mappings.replace_in_turn(wanted).await;
        replaced.map_err(|error| Error::Mappings(Arc::new(error)))
    }

    /// Certificates for the server of an image, from the content of a Secret; or what is wrong with
    /// it, without a part of it.
    pub async fn server_tls(&self, content: Content) -> Result<ServerTls, String> {
        let mappings = Arc::clone(&self.inner.mappings);
        let make = move || {
            let profile = Profile::of_secret(&content.0)?;
            let transport = mappings.transport(&profile)?;
            Ok(ServerTls(Arc::new(transport)))
        };
        let made = tokio::task::spawn_blocking(make).await;
        made.unwrap_or_else(|_| Err("the daemon is stopping".to_owned()))
    }

    /// Whether an image is here, so that a machine gets it without a request to its server. One whose name
    /// is made of a URL has to have come by the same certificates, or by none, or before that was recorded;
    /// of all other images kubelet has compared the credentials.
    pub fn is_usable<'a>(&self, image: impl Into<Locator<'a>>) -> bool {
        let image = image.into();
        let Ok((name, origin)) = image.parse() else {
            return false;
        };
        let Some(digest) = self.inner.catalog.resolve(&name.to_string()) else {
            return false;
        };
        self.inner.is_for(digest, &origin, image.tls())
    }

    /// Whether this is an image as of [`Images::is_usable`], whatever its name means by now.
    pub(crate) fn is_of<'a>(&self, digest: Digest, image: impl Into<Locator<'a>>) -> bool {
        let image = image.into();
        let parsed = image.parse();
        parsed.is_ok_and(|(_, origin)| self.inner.is_for(digest, &origin, image.tls()))
    }

    /// Whether an image is in a registry, where credentials are of use.
    pub async fn is_in_registry(&self, image: impl Into<Locator<'_>>) -> Result<bool> {
        let image = image.into();
        let (name, origin) = image.parse()?;
        let place = self.inner.place(&name, origin, None).await?;
        Ok(matches!(place, Place::Registry(_)))
    }

    /// Says what the image is from its first bytes, as the server has it now; nothing is kept. The
    /// server is asked as by a pull, also when the image is here.
    pub async fn inspect(&self, image: impl Into<Locator<'_>>) -> Result<Inspected> {
        self.inner.inspect(image.into()).await
    }

    /// Begins to receive a file of `size` bytes with this digest from a client. The image gets this
    /// name, which must be one that no server has.
    pub async fn upload(&self, name: &str, size: u64, digest: Digest) -> Result<Upload> {
        let mut begun = self.inner.upload(name, size, digest).await;
        if let Err(Error::NoSpace { required, .. }) = begun
            && self.inner.make_room(required, clock::now()).await?
        {
            begun = self.inner.upload(name, size, digest).await;
        }
        begun
    }

    /// Finds an image by `sha256:<hex>`, bare hexadecimal digits, `name` (meaning `:latest`),
    /// `name:tag`, `name@sha256:<hex>`, or by 12 or more first digits of the id that only one image
    /// has.
    pub fn find(&self, reference: &str) -> Option<Image> {
        let digest = self.inner.catalog.resolve(reference)?;
        self.inner.catalog.image(digest)
    }

    /// All images, by digest.
    pub fn list(&self) -> Vec<Image> {
        self.inner.catalog.list()
    }

    /// Removes an image with all its names; afterwards it is neither listed nor found. Its file
    /// stays as long as it is pinned. That there is no such image is fine.
    pub async fn remove(&self, reference: &str) -> Result<()> {
        self.inner.remove(reference).await
    }

    /// How far the download for a name is; `None` if none is in progress.
    pub fn progress<'a>(&self, image: impl Into<Locator<'a>>) -> Option<Progress> {
        let image = image.into();
        let (name, origin) = image.parse().ok()?;
        let inner = &self.inner;
        let serves = |host: &str| inner.registries.serves(host);
        let key = match inner
            .mappings
            .latest()
            .translate(&name, origin, serves)
            .ok()?
        {
            Place::File(source) => source.secured(image.tls()).key(),
            Place::Registry(place) => pull::progress_key(&name, &place),
        };
        inner.downloads.progress(&key)
    }

    /// The names of the images that are being pulled, and how far each is.
    pub fn pulls(&self) -> Vec<(String, Progress)> {
        self.inner.downloads.all()
    }

    /// What the store's own files take, downloads in progress included.
    pub async fn usage(&self) -> Result<Usage> {
        let store = self.inner.store.clone();
        tokio::task::spawn_blocking(move || store.usage()).await?
    }

    /// Removes downloads that no pull has continued for long, or that take more than they may. For
    /// a round of the daemon.
    pub async fn age(&self) -> Result<()> {
        let removed = self
            .inner
            .downloader
            .trim(self.inner.store.partial())
            .await?;
        if removed > 0 {
            tracing::info!(removed, "partial downloads removed");
        }
        Ok(())
    }

    /// Collects images that nothing uses, as the settings request it. For a round of the daemon.
    pub async fn collect(&self) -> Result<()> {
        self.inner.collect(clock::now()).await
    }

    /// Gives the collection the containers, before which it must not begin.
    pub fn set_users(&self, users: Arc<dyn Users>) {
        let _only_the_first = self.inner.users.set(users);
    }

    /// When an image was pulled and used, and the owners of its pins.
    pub fn use_of(&self, digest: Digest) -> Option<ImageUse> {
        self.inner.catalog.use_of(digest)
    }

    /// Waits until changes whose callers disconnected are complete. For the end of the daemon.
    pub async fn settle(&self) {
        self.inner.stopping.cancel();
        self.inner.tasks.close();
        self.inner.tasks.wait().await;
    }
}

impl Inner {
    /// Whether an image came by the same certificates, where its name is made of a URL.
    fn is_for(&self, digest: Digest, origin: &locator::Origin, tls: Option<&ServerTls>) -> bool {
        if !matches!(origin, locator::Origin::Url(_)) {
            return true;
        }
        self.catalog.read(|rows| {
            let identity = rows.key.with_file(origin.signed(), tls);
            let is_unknown = |entry: &catalog::Entry| entry.access.is_unknown();
            rows.entries.get(&digest).is_some_and(is_unknown) || rows.admits(digest, identity)
        })
    }

    /// Runs a change to its end, even if the caller disconnects.
    async fn detached<T: Send + 'static>(
        &self,
        change: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.tasks.spawn(change).await?
    }
}

/// An image of a registry in a store, for the fixtures of later versions.
#[cfg(test)]
pub(crate) async fn record_from_registry(db: &Db, data: &std::path::Path) {
    use sha2::Digest as _;
    let file = b"QFI\xfb, from a registry";
    let digest = Digest::from_bytes(sha2::Sha256::digest(file).into());
    std::fs::write(data.join(digest.hex()), file).unwrap();
    let arrival = rows::Arrival {
        arrived: share::Arrived {
            digest,
            content: Digest::from_bytes([7; 32]),
        },
        facts: catalog::Facts {
            size: file.len() as u64,
            virtual_size: 1 << 20,
            format: Format::Qcow2,
        },
        source: "registry.example/machines/web:1".to_owned(),
        identity: None,
        validators: partial::Validators::default(),
        user: "1000:1000".to_owned(),
        names: vec!["registry.example/machines/web:1".to_owned()],
        at: 1_764_200_000_000_000_000,
    };
    rows::arrived(db, arrival).await.unwrap();
}

#[cfg(test)]
mod tests;
