//! An image of a namespace or of the cluster, which differ in their scope alone.
//!
//! Invariant: a key without a namespace is that of an image of the cluster.
//! Failure: what the API server reports of a write.

use std::sync::Arc;

use crds::conditions::{self, READY};
use crds::{
    ClusterVirtualMachineImage, ImageSource, ImageUpdate, ImageUpdateStatus, ImageVersion,
    IpAssurance, PrePull, PrePullStatus, VirtualMachineImage, VirtualMachineImageStatus,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, OwnerReference};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, Resource};
use serde_json::Value;

use super::name::{self, Named, NotSupported};
use super::update::versions;
use crate::context::{Key, Stores};
use crate::events::Events;

/// Kind of an image of a namespace.
pub(crate) const LOCAL: &str = "VirtualMachineImage";
/// Kind of an image of the cluster.
pub(crate) const CLUSTER: &str = "ClusterVirtualMachineImage";

/// Reason of `Ready` of an image that a node has read.
pub(crate) const AVAILABLE: &str = "Available";

/// An image of either kind.
#[derive(Debug, Clone)]
pub(crate) enum Object {
    Local(Arc<VirtualMachineImage>),
    Cluster(Arc<ClusterVirtualMachineImage>),
}

impl Object {
    /// The image with this key.
    pub(crate) fn find(stores: &Stores, key: &Key) -> Option<Self> {
        if key.namespace.is_empty() {
            let found = stores.cluster_images.get(&key.reference());
            return found.map(Self::Cluster);
        }
        stores.images.get(&key.reference()).map(Self::Local)
    }

    /// All images.
    pub(crate) fn all(stores: &Stores) -> impl Iterator<Item = Self> {
        let local = stores.images.state().into_iter().map(Self::Local);
        local.chain(stores.cluster_images.state().into_iter().map(Self::Cluster))
    }

    pub(crate) fn key(&self) -> Key {
        match self {
            Self::Local(image) => Key::from_object(&**image),
            Self::Cluster(image) => Key::from_object(&**image),
        }
    }

    pub(crate) const fn kind(&self) -> &'static str {
        match self {
            Self::Local(_) => LOCAL,
            Self::Cluster(_) => CLUSTER,
        }
    }

    pub(crate) fn meta(&self) -> &ObjectMeta {
        match self {
            Self::Local(image) => &image.metadata,
            Self::Cluster(image) => &image.metadata,
        }
    }

    pub(crate) fn uid(&self) -> &str {
        self.meta().uid.as_deref().unwrap_or_default()
    }

    pub(crate) fn generation(&self) -> i64 {
        self.meta().generation.unwrap_or_default()
    }

    /// Whether it is pulled with a secret.
    pub(crate) fn needs_credentials(&self) -> bool {
        let oci = self.source().oci.as_ref();
        oci.is_some_and(|oci| oci.pull_secret.is_some())
    }

    /// The Secret with certificates for its server. A Secret belongs to one namespace, an image of
    /// the cluster to none.
    pub(crate) fn tls_secret(&self) -> Option<&str> {
        let named = self.named_tls_secret();
        named.filter(|_| matches!(self, Self::Local(_)))
    }

    /// The claim that contains its disk.
    pub(crate) fn claim(&self) -> Option<&str> {
        self.source().pvc.as_ref().map(|claim| claim.name.as_str())
    }

    /// How it follows its tag or its file.
    pub(crate) fn update(&self) -> Option<&ImageUpdate> {
        match self {
            Self::Local(image) => image.spec.update.as_ref(),
            Self::Cluster(image) => image.spec.update.as_ref(),
        }
    }

    /// What it follows: the reference with a tag, or the URL of a file.
    pub(crate) fn followed(&self) -> Option<&str> {
        self.update()?;
        let source = self.source();
        let reference = source.oci.as_ref().map(|oci| oci.reference.as_str());
        reference.or_else(|| source.http.as_ref().map(|http| http.url.as_str()))
    }

    /// What is known of the versions of its present tag or file.
    pub(crate) fn updates(&self) -> Option<&ImageUpdateStatus> {
        let followed = self.followed()?;
        let known = self.status()?.update.as_ref()?;
        (known.reference == followed).then_some(known)
    }

    /// Whether machines use, or are to use, a version of a file that the web server does not have any more: it
    /// has the newest one alone.
    pub(crate) fn has_former_file(&self) -> bool {
        let newest = self.versions().first();
        let newest = newest.map(|newest| newest.digest.as_str());
        self.source().http.is_some() && self.version().is_some_and(|used| Some(used) != newest)
    }

    /// The versions of its present tag or file.
    pub(crate) fn versions(&self) -> &[ImageVersion] {
        let status = self.updates().and(self.status());
        status.map_or(&[], |status| status.versions.as_slice())
    }

    /// The version that new machines use, of an image that follows a tag or a file.
    pub(crate) fn version(&self) -> Option<&str> {
        let pin = self.update()?.digest.as_deref();
        // Which version a web server has is not known before.
        let is_known = self.source().http.is_none() || !self.versions().is_empty();
        versions::current(self.versions(), pin.filter(|_| is_known))
    }

    /// Virtual size of the disk in the version that pods request by this name, in bytes. It is on record
    /// before any machine uses the version.
    pub(crate) fn bytes_of_version(&self, name: &str) -> Option<i64> {
        let mut all = self.versions().iter();
        let version = all.find(|version| {
            let named = name::of_version(self.source(), &version.digest);
            named.is_ok_and(|named| named.name == name)
        })?;
        Some(version.image.virtual_bytes).filter(|bytes| *bytes > 0)
    }

    /// Whether it follows a tag or a file that no node has checked yet.
    pub(crate) fn lacks_version(&self) -> bool {
        self.update().is_some() && self.version().is_none()
    }

    /// The pulls of the version that new machines use, from the time when they did not use it yet.
    pub(crate) fn pulls_of_version(&self) -> Option<&PrePullStatus> {
        let newest = self.versions().first()?;
        let is_newest = self.version() == Some(newest.digest.as_str());
        self.updates()?.pulls.as_ref().filter(|_| is_newest)
    }

    /// The name by which new machines request it.
    pub(crate) fn named(&self) -> Result<Named, NotSupported> {
        match (self.update(), self.version()) {
            (None, _) => name::from_source(self.source()),
            (Some(_), Some(digest)) => name::of_version(self.source(), digest),
            (Some(update), None) => {
                name::of_followed(self.source(), update)?;
                Err(NotSupported("the image has no version yet".to_owned()))
            }
        }
    }

    /// What its source is called in the status.
    pub(crate) fn provider_id(&self) -> Option<String> {
        let named = self.named().ok()?;
        Some(match self.claim() {
            Some(claim) => format!("pvc/{claim}"),
            None => named.name,
        })
    }

    /// What one task of the image differs by from one of another source: nothing waits for the end
    /// of a task with other certificates.
    pub(crate) fn seed(&self, named: &str) -> String {
        let secret = self.tls_secret().map(|secret| format!("/{secret}"));
        format!("{}/{named}{}", self.uid(), secret.unwrap_or_default())
    }

    /// The Secret that it names, of use or not.
    pub(crate) fn named_tls_secret(&self) -> Option<&str> {
        self.source().http.as_ref()?.tls_secret.as_deref()
    }

    pub(crate) fn source(&self) -> &ImageSource {
        match self {
            Self::Local(image) => &image.spec.source,
            Self::Cluster(image) => &image.spec.source,
        }
    }

    /// The nodes that are to have it before a machine needs it.
    pub(crate) fn pre_pull(&self) -> Option<&PrePull> {
        match self {
            Self::Local(image) => image.spec.pre_pull.as_ref(),
            Self::Cluster(image) => image.spec.pre_pull.as_ref(),
        }
    }

    pub(crate) fn ip_assurance(&self) -> IpAssurance {
        let set = match self {
            Self::Local(image) => image.spec.ip_assurance,
            Self::Cluster(image) => image.spec.ip_assurance,
        };
        set.unwrap_or_default()
    }

    pub(crate) fn status(&self) -> Option<&VirtualMachineImageStatus> {
        match self {
            Self::Local(image) => image.status.as_ref(),
            Self::Cluster(image) => image.status.as_ref(),
        }
    }

    /// `Ready`, if it is of the present source: its name in pods follows from the source alone, and from
    /// the version of an image that follows a tag. A pre-pull, which changes the generation, needs no
    /// other answer.
    pub(crate) fn ready(&self) -> Option<&Condition> {
        let status = self.status()?;
        let ready = conditions::find(&status.conditions, READY)?;
        let is_generation = ready.observed_generation == Some(self.generation());
        let is_of_generation = is_generation && self.update().is_none();
        (is_of_generation || self.is_of_source(status)).then_some(ready)
    }

    /// Whether the status is about the present source.
    pub(crate) fn is_of_source(&self, status: &VirtualMachineImageStatus) -> bool {
        let id = self.provider_id();
        id.is_some() && status.provider_item_id == id
    }

    /// Virtual size of its disk, if it is known of the present source.
    pub(crate) fn virtual_size(&self) -> Option<&Quantity> {
        self.ready()?;
        self.status()?.disks.first()?.limit.as_ref()
    }

    /// Whether the present source was read.
    pub(crate) fn is_answered(&self) -> bool {
        self.ready().is_some_and(|ready| ready.reason == AVAILABLE)
    }

    /// As the owner of tasks, which go with it.
    pub(crate) fn owner(&self) -> OwnerReference {
        let owner = match self {
            Self::Local(image) => image.controller_owner_ref(&()),
            Self::Cluster(image) => image.controller_owner_ref(&()),
        };
        // Blocking the owner's deletion needs a right of its own, and nothing needs it.
        OwnerReference {
            block_owner_deletion: None,
            ..owner.unwrap_or_default()
        }
    }

    pub(crate) fn report(&self, events: &Events, is_warning: bool, reason: &str, message: &str) {
        match (self, is_warning) {
            (Self::Local(image), true) => events.warning(&**image, reason, message),
            (Self::Local(image), false) => events.normal(&**image, reason, message),
            (Self::Cluster(image), true) => events.warning(&**image, reason, message),
            (Self::Cluster(image), false) => events.normal(&**image, reason, message),
        }
    }

    /// Writes to the status.
    pub(crate) async fn patch_status(
        &self,
        client: &Client,
        params: &PatchParams,
        patch: &Patch<Value>,
    ) -> kube::Result<()> {
        let Key { namespace, name } = self.key();
        let client = client.clone();
        match self {
            Self::Local(_) => {
                let api = Api::<VirtualMachineImage>::namespaced(client, &namespace);
                api.patch_status(&name, params, patch).await.map(drop)
            }
            Self::Cluster(_) => {
                let api = Api::<ClusterVirtualMachineImage>::all(client);
                api.patch_status(&name, params, patch).await.map(drop)
            }
        }
    }
}
