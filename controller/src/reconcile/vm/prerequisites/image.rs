//! The image of the root disk.
//!
//! Invariant: an image of the namespace precedes one of the cluster with the same name. A machine whose
//! root disk is a clone of a claim needs neither its image nor that claim any more; a clone of a machine never has one. A root disk that has
//! its content needs no image on its node, whose server may be gone.
//! Failure: an image that is missing, not ready, or in a form that nodes cannot use.

use crds::{IpAssurance, conditions, names};
use kube::ResourceExt;

use super::{Missing, Pass, bytes, root_claim, volumes};
use crate::context::Key;
use crate::reconcile::image::object::{CLUSTER, LOCAL, Object};
use crate::reconcile::vm::act::clone;

/// Reasons of an image's own condition that are passed on; a condition's reason is one of a fixed
/// set here.
const PASSED_ON: [&str; 3] = ["NotReady", "NotSupported", "Failed"];

/// An image.
#[derive(Debug, Clone)]
pub(crate) struct Image {
    /// As a pod names it that needs it.
    pub(crate) name: String,
    /// The root disk has its content: no pod of the machine needs the image.
    pub(crate) is_on_disk: bool,
    /// The URL that the name refers to, where it is made of the URL's hash, or that says that the name
    /// is one of a registry.
    pub(crate) url: Option<String>,
    /// As it was found; none for a disk that exists, whose image may be gone.
    pub(crate) object: Option<Object>,
    /// Name of the claim that is cloned.
    pub(crate) claim: Option<String>,
    /// Virtual size, if a node has read it.
    pub(crate) virtual_bytes: Option<i128>,
    /// Secret that kubelet pulls with.
    pub(crate) pull_secret: Option<String>,
    /// What proves an address.
    pub(crate) ip_assurance: IpAssurance,
    /// Secret with certificates for its server, which nodes read.
    pub(crate) tls_secret: Option<String>,
    /// It names such a Secret, which has no namespace.
    pub(crate) has_unused_tls_secret: bool,
}

impl Image {
    /// As the machine's pods name it.
    pub(crate) fn of_pods(&self) -> &str {
        if self.is_on_disk {
            names::NO_IMAGE
        } else {
            &self.name
        }
    }

    /// Its name, if pods do not have it.
    pub(crate) fn only_recorded(&self) -> Option<&str> {
        let name = self.name.as_str();
        Some(name).filter(|name| *name != self.of_pods())
    }
}

/// The image, as it is now; that of a disk which exists keeps the name that the disk was made by.
pub(super) fn check(pass: &Pass<'_>) -> Result<Image, Missing> {
    let found = current(pass);
    if root_claim::is_clone(pass) {
        return Ok(Image {
            ip_assurance: found.map(|image| image.ip_assurance).unwrap_or_default(),
            ..none()
        });
    }
    let recorded = pass.seen().map(|s| (s.image.clone(), s.image_url.clone()));
    match recorded.filter(|_| pass.is_created()) {
        Some((Some(name), url)) => {
            let found = found.unwrap_or_else(|_| none());
            Ok(Image {
                is_on_disk: is_on_disk(pass),
                virtual_bytes: if found.name == name {
                    found.virtual_bytes
                } else {
                    found.object.as_ref().and_then(|o| bytes_of(o, &name))
                },
                tls_secret: found.tls_secret.clone().filter(|_| found.name == name),
                name,
                url,
                object: None,
                ..found
            })
        }
        _ => found,
    }
}

/// Whether a root disk in a claim has its content, so that no pod of the machine needs the image.
pub(crate) fn has_content(pass: &Pass<'_>) -> bool {
    let is_filled = pass.seen().is_some_and(|status| status.image.is_some());
    root_claim::is_clone(pass) || is_filled && pass.root_claim().is_some() && is_on_disk(pass)
}

/// Whether the machine names an image that follows a tag, of which the registry may drop the version that
/// the root disk was made from.
pub(crate) fn follows_tag(pass: &Pass<'_>) -> bool {
    let found = find(pass).ok().flatten();
    found.is_some_and(|found| found.update().is_some())
}

/// Size of the disk in a version of an image that follows a tag.
fn bytes_of(image: &Object, name: &str) -> Option<i128> {
    image.bytes_of_version(name).map(i128::from)
}

/// Whether the pod of a machine with a recorded image can be without it. The image of the machine's
/// own claim is recorded after its guest has run, and forgotten before the claim is made again; a claim
/// that a volume names may be another one with every start, unless its UID is on record.
fn is_on_disk(pass: &Pass<'_>) -> bool {
    if pass.root_claim().is_some() {
        return pass.own_root_claim().is_some() || is_claim_on_record(pass);
    }
    let agents = &pass.ctx.stores.agents;
    let node_can = |node: String| agents.has(&node, names::DISK_WITHOUT_IMAGE);
    pass.node_name().is_some_and(node_can)
}

fn is_claim_on_record(pass: &Pass<'_>) -> bool {
    let recorded = pass.vm.annotations().get(names::ROOT_CLAIM_UID);
    let claim = root_claim::named(pass);
    recorded.is_some() && claim.and_then(|claim| claim.uid()).as_ref() == recorded
}

fn current(pass: &Pass<'_>) -> Result<Image, Missing> {
    match find(pass)? {
        Some(found) => of_object(pass, found),
        None if pass.root_claim().is_some() || clone::is_wanted(pass) => Ok(none()),
        None => Err(Missing::new("NotSet", "the machine names no image")),
    }
}

/// The image that the machine names, if it names one.
fn find(pass: &Pass<'_>) -> Result<Option<Object>, Missing> {
    let spec = &pass.vm.spec;
    let (kind, name) = match (&spec.image, &spec.image_name) {
        (Some(image), _) => (Some(image.kind.as_str()), image.name.as_str()),
        (None, Some(name)) => (None, name.as_str()),
        (None, None) => return Ok(None),
    };
    let stores = &pass.ctx.stores;
    let local = || Object::find(stores, &Key::new(&pass.key.namespace, name));
    let cluster = || Object::find(stores, &Key::new("", name));
    let found = match kind {
        Some(LOCAL) => local(),
        Some(CLUSTER) => cluster(),
        Some(other) => {
            let message = format!("{other} is not a kind of image");
            return Err(Missing::new("UnknownKind", message));
        }
        None => local().or_else(cluster),
    };
    let Some(found) = found else {
        let namespace = &pass.key.namespace;
        let where_sought = match kind {
            None => format!(
                "there is neither a {LOCAL} in namespace {namespace} nor a {CLUSTER} of that name"
            ),
            Some(LOCAL) => format!("there is no {LOCAL} of that name in namespace {namespace}"),
            Some(_) => format!("there is no {CLUSTER} of that name"),
        };
        let message = format!("image {name} does not exist: {where_sought}");
        return Err(Missing::new("NotFound", message));
    };
    Ok(Some(found))
}

fn of_object(pass: &Pass<'_>, found: Object) -> Result<Image, Missing> {
    let key = found.key();
    let name = key.name.as_str();
    ready(name, &found)?;
    if found.lacks_version() {
        return Err(Missing::new("NotReady", without_version(name, &found)));
    }
    let named = found.named();
    let named = named.map_err(|refused| Missing::new("NotSupported", refused.0))?;
    if let Some(claim) = found.claim().filter(|_| !is_claim_on_record(pass)) {
        can_clone(pass, name, claim)?;
    }
    let source = found.source();
    let of_version = bytes_of(&found, &named.name);
    let of_status = || {
        let size = found.virtual_size().filter(|_| found.claim().is_none());
        size.and_then(bytes)
    };
    Ok(Image {
        virtual_bytes: of_version.or_else(of_status),
        name: named.name,
        is_on_disk: false,
        url: named.url,
        claim: found.claim().map(str::to_owned),
        pull_secret: source.oci.as_ref().and_then(|o| o.pull_secret.clone()),
        ip_assurance: found.ip_assurance(),
        tls_secret: found.tls_secret().map(str::to_owned),
        has_unused_tls_secret: found.tls_secret().is_none() && found.named_tls_secret().is_some(),
        object: Some(found),
    })
}

/// An image that is known to be unusable. One of which nothing is known, or only that of another
/// source, is taken as it is.
fn ready(name: &str, image: &Object) -> Result<(), Missing> {
    match image.ready().filter(|ready| ready.status == "False") {
        Some(ready) => {
            let own = PASSED_ON.iter().find(|r| **r == ready.reason);
            let message = format!("image {name} is not ready: {}", ready.message);
            Err(Missing::new(own.copied().unwrap_or("NotReady"), message))
        }
        None => Ok(()),
    }
}

/// Why an image that follows a tag has no version.
fn without_version(name: &str, image: &Object) -> String {
    let status = image
        .status()
        .filter(|status| !status.conditions.is_empty());
    let ready = status.and_then(|status| conditions::find(&status.conditions, conditions::READY));
    match ready.map(|ready| ready.message.as_str()) {
        None | Some("") => format!("image {name} has no version yet"),
        Some(message) => format!("image {name} has no version yet: {message}"),
    }
}

/// Whether this machine can have a clone of that claim.
fn can_clone(pass: &Pass<'_>, image: &str, claim: &str) -> Result<(), Missing> {
    if pass.own_root_claim().is_none() {
        let message = format!(
            "image {image} is in claim {claim}, of which each machine gets a clone in a claim of its own: set \
             storageClass, and no volume with root: true"
        );
        return Err(Missing::new("NotSupported", message));
    }
    match volumes::claim(pass, claim) {
        Some(_) => Ok(()),
        None => {
            let message = format!("claim {claim} of image {image} does not exist");
            Err(Missing::new("NotFound", message))
        }
    }
}

/// The `image` field of a pod must not be empty, even if the root disk is a claim.
fn none() -> Image {
    Image {
        name: names::NO_IMAGE.to_owned(),
        is_on_disk: false,
        url: None,
        object: None,
        claim: None,
        virtual_bytes: None,
        pull_secret: None,
        ip_assurance: IpAssurance::default(),
        tls_secret: None,
        has_unused_tls_secret: false,
    }
}
