//! The image of the root disk.
//!
//! Invariant: an image of the namespace goes before one of the cluster with the same name.
//! Failure: an image that is missing, not ready, or in a form that nodes cannot use.

use crds::conditions::{self, READY};
use crds::{IpAssurance, VirtualMachineImageSpec, VirtualMachineImageStatus};

use super::{Missing, Pass, image_name};
use crate::context::Key;

/// Kind of an image of a namespace.
const LOCAL: &str = "VirtualMachineImage";
/// Kind of an image of the cluster.
const CLUSTER: &str = "ClusterVirtualMachineImage";
/// Reasons of an image's own condition that are passed on; a condition's reason is one of a fixed set here.
const PASSED_ON: [&str; 3] = ["NotReady", "NotSupported", "Failed"];

/// Longest name of an image that statuses and tasks hold, in bytes.
const LONGEST: usize = 1024;

/// An image.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Image {
    /// As a pod names it.
    pub(crate) name: String,
    /// Secret that kubelet pulls with.
    pub(crate) pull_secret: Option<String>,
    /// What proves an address.
    pub(crate) ip_assurance: IpAssurance,
    /// It comes from a registry.
    pub(crate) is_oci: bool,
    /// Its server wants to know who asks.
    pub(crate) has_tls_secret: bool,
}

type Parts = (VirtualMachineImageSpec, Option<VirtualMachineImageStatus>);

/// The image, as it is now; that of a disk which exists keeps the name that the disk was made by.
pub(super) fn look(pass: &Pass<'_>) -> Result<Image, Missing> {
    let found = current(pass);
    let recorded = pass.seen().and_then(|s| s.image.clone());
    match recorded.filter(|_| pass.is_created()) {
        Some(name) => Ok(Image {
            name,
            ..found.unwrap_or_else(|_| none())
        }),
        None => found,
    }
}

fn current(pass: &Pass<'_>) -> Result<Image, Missing> {
    let spec = &pass.vm.spec;
    let (kind, name) = match (&spec.image, &spec.image_name) {
        (Some(image), _) => (Some(image.kind.as_str()), image.name.as_str()),
        (None, Some(name)) => (None, name.as_str()),
        (None, None) if pass.root_claim().is_some() => return Ok(none()),
        (None, None) => return Err(Missing::new("NotSet", "the machine names no image")),
    };
    let found = match kind {
        Some(LOCAL) => local(pass, name),
        Some(CLUSTER) => cluster(pass, name),
        Some(other) => {
            let message = format!("{other} is not a kind of image");
            return Err(Missing::new("UnknownKind", message));
        }
        None => match local(pass, name) {
            Some(found) => Some(found),
            None => cluster(pass, name),
        },
    };
    let Some((spec, status)) = found else {
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
    ready(name, status.as_ref())?;
    let known = status.and_then(|s| s.provider_item_id);
    let in_pods = match known.filter(|n| !n.is_empty()) {
        Some(known) => known,
        None => image_name::of(&spec.source)?,
    };
    if in_pods.len() > LONGEST {
        let message = format!("image {name} has a name of more than {LONGEST} bytes for pods");
        return Err(Missing::new("NotSupported", message));
    }
    Ok(Image {
        name: in_pods,
        pull_secret: spec.source.oci.as_ref().and_then(|o| o.pull_secret.clone()),
        ip_assurance: spec.ip_assurance.unwrap_or_default(),
        is_oci: spec.source.oci.is_some(),
        has_tls_secret: spec.source.http.is_some_and(|h| h.tls_secret.is_some()),
    })
}

/// An image whose controller said nothing is taken as it is.
fn ready(name: &str, status: Option<&VirtualMachineImageStatus>) -> Result<(), Missing> {
    let all = status.map(|s| s.conditions.as_slice());
    match all.and_then(|c| conditions::find(c, READY)) {
        Some(ready) if ready.status != "True" => {
            let own = PASSED_ON.iter().find(|r| **r == ready.reason);
            let message = format!("image {name} is not ready: {}", ready.message);
            Err(Missing::new(own.copied().unwrap_or("NotReady"), message))
        }
        _ => Ok(()),
    }
}

/// A machine whose root disk is a claim still needs a word in its pod where the image stands.
fn none() -> Image {
    Image {
        name: "vmlet.dev/none".to_owned(),
        pull_secret: None,
        ip_assurance: IpAssurance::default(),
        is_oci: false,
        has_tls_secret: false,
    }
}

fn local(pass: &Pass<'_>, name: &str) -> Option<Parts> {
    let key = Key::new(&pass.key.namespace, name);
    let found = pass.ctx.stores.images.get(&key.reference())?;
    Some((found.spec.clone(), found.status.clone()))
}

fn cluster(pass: &Pass<'_>, name: &str) -> Option<Parts> {
    let key = Key::new("", name);
    let found = pass.ctx.stores.cluster_images.get(&key.reference())?;
    Some((found.spec.clone().into(), found.status.clone()))
}
