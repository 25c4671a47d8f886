//! Kinds of others that are installed while the controller runs, and what it says of a machine that
//! waits for them.
//!
//! Invariant: any object of such a kind is taken: its owner's schema is not what is tested.
//! Failure: the status as it was last.

use std::time::Duration;

use anyhow::{Result, ensure};
use crds::VirtualMachine;
use crds::conditions::find;
use kube::api::Api;
use serde_json::{Value, json};

use crate::wait::eventually;

/// The definition of a namespaced kind, `plural.group`.
pub fn definition(group: &str, version: &str, kind: &str, plural: &str) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.{group}"),
            "annotations": { "api-approved.kubernetes.io": "https://example.com" } },
        "spec": {
            "group": group, "scope": "Namespaced",
            "names": { "kind": kind, "plural": plural, "singular": kind.to_lowercase() },
            "versions": [{
                "name": version, "served": true, "storage": true, "subresources": { "status": {} },
                "schema": { "openAPIV3Schema": {
                    "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                }},
            }],
        },
    })
}

/// Waits until a condition of a machine, as `status reason: message`, has this text.
pub async fn await_words(
    vms: &Api<VirtualMachine>,
    name: &str,
    kind: &str,
    words: &str,
    within: Duration,
) -> Result<()> {
    eventually(within, &format!("{kind}: {words}"), || async {
        let status = vms.get(name).await?.status.unwrap_or_default();
        let found = find(&status.conditions, kind);
        let found = found.map(|c| format!("{} {}: {}", c.status, c.reason, c.message));
        ensure!(
            found.is_some_and(|text| text.contains(words)),
            "{status:#?}"
        );
        Ok(())
    })
    .await
}
