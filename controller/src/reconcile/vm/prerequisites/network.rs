//! The networks of a machine.
//!
//! Invariant: the first interface is on the pod network, unless it names another network as the
//! default one.
//! Failure: a network that does not exist, whose event wakes the machine, or that cannot be read, which no
//! watch shows; its interface is named.

use kube::Api;
use kube::core::PartialObjectMeta;
use serde_json::{Value, json};

use super::{Missing, Pass};
use crate::reconcile::answers::is_gone;
use crate::stores::{self, NetworkAttachmentDefinition};

/// Networks beyond the pod's own, as Multus reads them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Attachments {
    /// `namespace/name` of the network that replaces the pod network.
    pub(crate) default: Option<String>,
    /// Content of the annotation `k8s.v1.cni.cncf.io/networks`; empty: none.
    pub(crate) more: Vec<Value>,
}

pub(super) async fn check(pass: &Pass<'_>) -> Result<Attachments, Missing> {
    let mut found = Attachments::default();
    let mut wrong = Vec::new();
    let mut is_unwatched = false;
    let network = pass.vm.spec.network.clone().unwrap_or_default();
    if network.disabled {
        return Ok(found);
    }
    for (index, interface) in network.interfaces.iter().enumerate() {
        let Some(reference) = interface.network_ref.as_deref().filter(|r| !r.is_empty()) else {
            if index > 0 {
                let name = &interface.name;
                wrong.push(format!(
                    "interface {name}: only the first one may be on the pod network"
                ));
            }
            continue;
        };
        let key = stores::network(&pass.key.namespace, reference);
        let namespace = &key.namespace;
        let name = &key.name;
        if let Err(missing) = exists(pass, namespace, name).await {
            is_unwatched |= missing.is_unwatched;
            wrong.push(format!("interface {}: {}", interface.name, missing.message));
            continue;
        }
        if index == 0 {
            found.default = Some(format!("{namespace}/{name}"));
            continue;
        }
        let mut one = json!({ "name": name, "namespace": namespace });
        if let Some(mac) = &interface.mac_addr {
            one["mac"] = json!(mac);
        }
        if !interface.addresses.is_empty() {
            one["ips"] = json!(interface.addresses);
        }
        found.more.push(one);
    }
    if wrong.is_empty() {
        return Ok(found);
    }
    let missing = Missing::new("NotReady", wrong.join("; "));
    Err(if is_unwatched {
        missing.unwatched()
    } else {
        missing
    })
}

async fn exists(pass: &Pass<'_>, namespace: &str, name: &str) -> Result<(), Missing> {
    let client = pass.ctx.client.clone();
    let api = Api::<PartialObjectMeta<NetworkAttachmentDefinition>>::namespaced(client, namespace);
    let found = match api.get_opt(name).await {
        // The API server does not serve the kind: the path itself is unknown, which has another
        // message than a missing object.
        Err(error) if is_gone(&error) => {
            let what = format!(
                "network {namespace}/{name}: the cluster does not serve k8s.cni.cncf.io/v1: \
                 install Multus"
            );
            return Err(Missing::new("NotReady", what));
        }
        found => found,
    };
    let found = found.map_err(|e| Missing::read(&format!("network {namespace}/{name}"), &e))?;
    let absent = || {
        let what = format!("NetworkAttachmentDefinition {namespace}/{name} does not exist");
        Missing::new("NotReady", what)
    };
    found.map(|_| ()).ok_or_else(absent)
}
