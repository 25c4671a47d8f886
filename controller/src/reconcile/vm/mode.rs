//! How the root disk of a machine is made.
//!
//! Invariant: decided anew in every pass, from the annotation, the setting and the storage class.
//! Failure: a storage class that cannot be read ends the pass before anything is written.

use crds::{VirtualMachine, names};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::{Api, ResourceExt};

use super::error::Error;
use crate::context::Context;
use crate::outcome::{Outcome, Stop};

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

    fn of(text: &str) -> Self {
        if text.eq_ignore_ascii_case("linked") {
            Self::Linked
        } else if text.eq_ignore_ascii_case("direct") {
            Self::Direct
        } else {
            Self::Plain
        }
    }
}

/// Decides.
pub(crate) async fn resolve(ctx: &Context, vm: &VirtualMachine) -> Outcome<Mode> {
    let usual = ctx.config.machines.fast_deploy.as_str();
    if usual.is_empty() {
        return Ok(Mode::Plain);
    }
    let asked = vm.annotations().get(names::FAST_DEPLOY);
    let mode = Mode::of(asked.map_or(usual, String::as_str));
    let class = vm.spec.storage_class.as_deref().filter(|c| !c.is_empty());
    let Some(class) = class.filter(|_| mode.is_fast()) else {
        return Ok(mode);
    };
    let api: Api<StorageClass> = Api::all(ctx.client.clone());
    let found = api.get_opt(class).await.map_err(|source| {
        let what = format!("storage class {class}");
        Stop::Failed(Error::Read { what, source }.into())
    })?;
    let parameters = found.and_then(|c| c.parameters).unwrap_or_default();
    let is_set = |key: &str| parameters.get(key).is_some_and(|v| v == "true");
    Ok(if is_set(ENCRYPTED) || is_set(INSTANCE_STORAGE) {
        Mode::Plain
    } else {
        mode
    })
}
