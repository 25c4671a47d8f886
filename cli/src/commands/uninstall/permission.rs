//! The permission to delete the kinds: an annotation on each of them.
//!
//! Invariant: nothing else writes it. The policy `vmlet-removal` refuses the deletion of a kind without
//! it; with it, `vmlet-removal-allowed` refuses new machines and new disks.
//! Failure: the cluster's; kinds before the one that was refused are changed already, and the next call
//! changes the others.

use crds::names;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use super::left::Kind;
use crate::cluster::ClusterError;

const MANAGER: &str = "vmletctl";

/// Whether the kind may be deleted.
pub(super) fn is_given(definition: &CustomResourceDefinition) -> bool {
    let found = definition.annotations().get(names::REMOVAL);
    found.is_some_and(|value| value == names::REMOVAL_ALLOWED)
}

/// Lets an administrator delete the kinds, and keeps machines from being created.
pub(super) async fn give(client: &Client, kinds: &[Kind]) -> Result<(), ClusterError> {
    annotate(client, kinds, &json!(names::REMOVAL_ALLOWED)).await
}

/// Takes it back.
pub(super) async fn withdraw(client: &Client, kinds: &[Kind]) -> Result<(), ClusterError> {
    annotate(client, kinds, &Value::Null).await
}

async fn annotate(client: &Client, kinds: &[Kind], value: &Value) -> Result<(), ClusterError> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let params = PatchParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let change = Patch::Merge(json!({ "metadata": { "annotations": { names::REMOVAL: value } } }));
    for kind in kinds {
        let patched = api.patch_metadata(&kind.name, &params, &change).await;
        patched.map_err(ClusterError::from_api)?;
    }
    Ok(())
}
