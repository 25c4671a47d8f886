//! The networks of a machine.
//!
//! Invariant: the first interface is on the pod network, unless it names another network as the default one.
//! Failure: a network that does not exist; its interface is named.

use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use serde_json::{Value, json};

use super::{Missing, Pass};

/// Networks beyond the pod's own, as Multus reads them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Attachments {
    /// `namespace/name` of the network that stands in for the pod network.
    pub(crate) default: Option<String>,
    /// Content of the annotation `k8s.v1.cni.cncf.io/networks`; empty: none.
    pub(crate) more: Vec<Value>,
}

pub(super) async fn look(pass: &Pass<'_>) -> Result<Attachments, Missing> {
    let mut found = Attachments::default();
    let mut wrong = Vec::new();
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
        let own = pass.key.namespace.as_str();
        let (namespace, name) = reference.split_once('/').unwrap_or((own, reference));
        if let Err(missing) = exists(pass, namespace, name).await {
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
        Ok(found)
    } else {
        Err(Missing::new("NotReady", wrong.join("; ")))
    }
}

async fn exists(pass: &Pass<'_>, namespace: &str, name: &str) -> Result<(), Missing> {
    let kind = GroupVersionKind::gvk("k8s.cni.cncf.io", "v1", "NetworkAttachmentDefinition");
    let mut resource = ApiResource::from_gvk(&kind);
    resource.plural = "network-attachment-definitions".to_owned();
    let client = pass.ctx.client.clone();
    let api: Api<DynamicObject> = Api::namespaced_with(client, namespace, &resource);
    let found = api.get_opt(name).await;
    let found = found.map_err(|e| Missing::read(&format!("network {namespace}/{name}"), &e))?;
    let absent = || {
        let what = format!("NetworkAttachmentDefinition {namespace}/{name} does not exist");
        Missing::new("NotReady", what)
    };
    found.map(|_| ()).ok_or_else(absent)
}
