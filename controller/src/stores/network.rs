//! Multus' networks, of which only the existence is read.
//!
//! Invariant: plugins own the kind; no field but its metadata is read.
//! Failure: as long as the API is not served, the store is empty and ready.

use kube::CustomResource;
use serde::{Deserialize, Serialize};

/// What plugins read.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[kube(
    group = "k8s.cni.cncf.io",
    version = "v1",
    kind = "NetworkAttachmentDefinition",
    plural = "network-attachment-definitions",
    namespaced,
    schema = "disabled",
    derive = "PartialEq"
)]
pub struct NetworkAttachmentDefinitionSpec {}
