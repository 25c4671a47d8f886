//! The mode by which the root disk of a machine is created.
//!
//! Invariant: decided again in every pass, from the source, the annotation, the setting and the storage
//! class.
//! Failure: none; a storage class that does not exist changes nothing here, and a condition reports
//! it elsewhere.

use crds::{VirtualMachine, names};
use kube::ResourceExt;

use crate::context::Context;

/// Parameter of a storage class whose volumes are encrypted.
const ENCRYPTED: &str = "vmlet.dev/encrypted";
/// Parameter of a storage class that lives and dies with a node's instance storage.
const INSTANCE_STORAGE: &str = "vmlet.dev/instance-storage";

/// How the root disk is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// An overlay on the image in the node's store.
    Linked,
    /// A full copy of it.
    Direct,
    /// A full copy, without waiting for image caches.
    Plain,
}

impl Mode {
    pub(crate) const fn is_fast(self) -> bool {
        !matches!(self, Self::Plain)
    }

    fn parse(text: &str) -> Self {
        if text.eq_ignore_ascii_case("linked") {
            Self::Linked
        } else if text.eq_ignore_ascii_case("direct") {
            Self::Direct
        } else {
            Self::Plain
        }
    }
}

/// Decides how the root disk of a machine is made.
pub(crate) fn resolve(ctx: &Context, vm: &VirtualMachine) -> Mode {
    // A clone stands alone.
    if vm.spec.source.is_some() {
        return Mode::Plain;
    }
    let usual = ctx.config.machines.fast_deploy.as_str();
    if usual.is_empty() {
        return Mode::Plain;
    }
    let requested = vm.annotations().get(names::FAST_DEPLOY);
    let mode = Mode::parse(requested.map_or(usual, String::as_str));
    let class = vm.spec.storage_class.as_deref().filter(|c| !c.is_empty());
    let Some(class) = class.filter(|_| mode.is_fast()) else {
        return mode;
    };
    let found = ctx.stores.storage_class(class);
    let parameters = found.as_ref().and_then(|c| c.parameters.as_ref());
    let is_set = |key: &str| parameters.is_some_and(|p| p.get(key).is_some_and(|v| v == "true"));
    if is_set(ENCRYPTED) || is_set(INSTANCE_STORAGE) {
        Mode::Plain
    } else {
        mode
    }
}
