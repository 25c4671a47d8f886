//! Writes what a pass drafted: status by server-side apply, metadata by another manager, requests
//! by JSON patch.
//!
//! Invariant: nothing is written when nothing differs; a write applies to the version that was
//! read, so that neither a newer status nor an appended request is ever overwritten.
//! Failure: a conflict is resolved once when only requests or metadata moved on; otherwise the pass
//! is repeated.

use std::collections::BTreeMap;

use crds::names;
use crds::{VirtualMachine, VirtualMachineStatus};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::flow::{Outcome, PassError};
use crate::reconcile::answers::{again, is_conflict, is_gone, is_lost_test, json_patch};
use crate::reconcile::vm::error::Error;
use crate::reconcile::vm::pass::Pass;

/// Owner of the status fields.
pub(crate) const STATUS_MANAGER: &str = "vmlet-controller";
/// Owner of our labels, annotations and finalizer.
pub(crate) const META_MANAGER: &str = "vmlet-controller-meta";
/// Annotations of the machine that the controller writes.
const OUR_ANNOTATIONS: [&str; 10] = [
    names::CREATED_AT_BUILD,
    names::CREATED_AT_SCHEMA,
    names::DISK_RECORD,
    names::FIRST_BOOT_DONE,
    names::IMAGE_CACHE_LOCATION,
    names::REVERT_IN_PROGRESS,
    names::ROOT_CLAIM_UID,
    names::UPGRADED_TO_BUILD,
    names::UPGRADED_TO_FEATURE,
    names::UPGRADED_TO_SCHEMA,
];
/// Labels of the machine that the controller writes.
const OUR_LABELS: [&str; 2] = [names::IMAGE_CACHE_LABEL, names::PAUSED_LABEL];

/// Everything that is left to write; the finalizer's removal comes last because the object may
/// vanish with it.
pub(crate) async fn finish(pass: &mut Pass<'_>) -> Outcome<()> {
    if pass.writes.pops_request {
        pop_request(pass).await?;
    }
    add_metadata(pass).await?;
    if !pass.writes.postpones_status {
        status(pass).await?;
    }
    release(pass).await?;
    remove_metadata(pass).await
}

/// Writes the status draft now, for what must be recorded before an effect.
pub(crate) async fn status(pass: &mut Pass<'_>) -> Outcome<()> {
    let Some(draft) = &pass.vm.status else {
        return Ok(());
    };
    let wanted = without_requests(draft);
    let had = pass.base.status.as_ref().map(without_requests);
    if had.is_some_and(|had| coarse(had) == coarse(wanted.clone())) {
        return Ok(());
    }
    let new = match apply_status(pass, &pass.base, &wanted).await {
        Err(error) if is_conflict(&error) => {
            let live = read_again(pass).await?;
            apply_status(pass, &live, &wanted).await
        }
        result => result,
    };
    match new {
        Ok(new) => {
            pass.vm.status = new.status.clone();
            rebase(pass, new);
            Ok(())
        }
        // Deleted while it was checked.
        Err(error) if is_gone(&error) => Ok(()),
        Err(error) if is_conflict(&error) => Err(again()),
        Err(source) => Err(write_error("status", source)),
    }
}

/// The live object, if nothing but requests and metadata moved on since it was read.
async fn read_again(pass: &Pass<'_>) -> Outcome<VirtualMachine> {
    let live = pass.api::<VirtualMachine>().get(&pass.key.name).await;
    let live = live.map_err(|source| write_error("status", source))?;
    let same = |a: &VirtualMachine, b: &VirtualMachine| {
        a.uid() == b.uid()
            && a.spec == b.spec
            && a.status.as_ref().map(without_requests) == b.status.as_ref().map(without_requests)
    };
    if same(&live, &pass.base) {
        Ok(live)
    } else {
        Err(again())
    }
}

async fn apply_status(
    pass: &Pass<'_>,
    on: &VirtualMachine,
    wanted: &Value,
) -> kube::Result<VirtualMachine> {
    let body = json!({
        "apiVersion": "vmlet.dev/v1alpha1",
        "kind": "VirtualMachine",
        "metadata": identity(on),
        "status": wanted,
    });
    let manager = PatchParams::apply(STATUS_MANAGER).force();
    let api = pass.api::<VirtualMachine>();
    api.patch_status(&pass.key.name, &manager, &Patch::Apply(&body))
        .await
}

/// Removes the first request, if it is still the one that was acted upon.
async fn pop_request(pass: &mut Pass<'_>) -> Outcome<()> {
    let requests = pass.seen().map(|s| s.state_change_requests.as_slice());
    let queue = "/status/stateChangeRequests";
    // A missing and an empty list differ for a writer that tests before it writes: the list is
    // never left empty.
    let operations = match requests.unwrap_or_default() {
        [] => return Ok(()),
        [only] => json!([
            { "op": "test", "path": queue, "value": [only] },
            { "op": "remove", "path": queue },
        ]),
        [first, ..] => {
            let path = format!("{queue}/0");
            json!([
                { "op": "test", "path": path, "value": first },
                { "op": "remove", "path": path },
            ])
        }
    };
    let patch: Patch<()> = json_patch(operations)?;
    let manager = PatchParams {
        field_manager: Some(STATUS_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let api = pass.api::<VirtualMachine>();
    match api.patch_status(&pass.key.name, &manager, &patch).await {
        Ok(new) => {
            let left = new.status.as_ref().map(|s| s.state_change_requests.clone());
            pass.status().state_change_requests = left.unwrap_or_default();
            rebase(pass, new);
            Ok(())
        }
        Err(error) if is_gone(&error) => Ok(()),
        Err(error) if is_lost_test(&error) => Err(again()),
        Err(source) => Err(write_error("requests", source)),
    }
}

/// Adds labels, annotations and the finalizer of the draft.
async fn add_metadata(pass: &mut Pass<'_>) -> Outcome<()> {
    let ours = |all: &BTreeMap<String, String>, keys: &[&str]| -> BTreeMap<String, String> {
        let of = |key: &&str| all.get(*key).map(|v| ((*key).to_owned(), v.clone()));
        keys.iter().filter_map(of).collect()
    };
    let part = |vm: &VirtualMachine| {
        (
            ours(vm.annotations(), &OUR_ANNOTATIONS),
            ours(vm.labels(), &OUR_LABELS),
            vm.finalizers().iter().any(|f| f == names::FINALIZER),
        )
    };
    let wanted = part(&pass.vm);
    let had = part(&pass.base);
    let adds = wanted.0.iter().any(|(k, v)| had.0.get(k) != Some(v))
        || wanted.1.iter().any(|(k, v)| had.1.get(k) != Some(v))
        || (wanted.2 && !had.2);
    if !adds {
        return Ok(());
    }
    let mut metadata = identity(&pass.base);
    // What is still to be removed stays in this manager's set until then.
    let mut annotations = had.0;
    let mut labels = had.1;
    annotations.extend(wanted.0);
    labels.extend(wanted.1);
    metadata["annotations"] = json!(annotations);
    metadata["labels"] = json!(labels);
    if wanted.2 || had.2 {
        metadata["finalizers"] = json!([names::FINALIZER]);
    }
    let body = json!({
        "apiVersion": "vmlet.dev/v1alpha1",
        "kind": "VirtualMachine",
        "metadata": metadata,
    });
    let manager = PatchParams::apply(META_MANAGER).force();
    let api = pass.api::<VirtualMachine>();
    match api
        .patch(&pass.key.name, &manager, &Patch::Apply(&body))
        .await
    {
        Ok(new) => {
            rebase(pass, new);
            Ok(())
        }
        Err(error) if is_conflict(&error) => Err(again()),
        Err(source) => Err(write_error("metadata", source)),
    }
}

/// Removes labels, annotations and the finalizer that the draft no longer has, from any writer.
async fn remove_metadata(pass: &mut Pass<'_>) -> Outcome<()> {
    let mut operations = Vec::new();
    let mut remove = |map: &str, key: &str, value: &str| {
        let path = format!(
            "/metadata/{map}/{}",
            key.replace('~', "~0").replace('/', "~1")
        );
        operations.push(json!({ "op": "test", "path": path, "value": value }));
        operations.push(json!({ "op": "remove", "path": path }));
    };
    for (key, value) in pass.base.annotations() {
        if !pass.vm.annotations().contains_key(key) {
            remove("annotations", key, value);
        }
    }
    for (key, value) in pass.base.labels() {
        if !pass.vm.labels().contains_key(key) {
            remove("labels", key, value);
        }
    }
    let is_ours = |f: &String| f == names::FINALIZER;
    let before = pass.base.finalizers().iter().position(is_ours);
    if let Some(index) = before.filter(|_| !pass.vm.finalizers().iter().any(is_ours)) {
        remove("finalizers", &index.to_string(), names::FINALIZER);
    }
    if operations.is_empty() {
        return Ok(());
    }
    let patch: Patch<()> = json_patch(Value::Array(operations))?;
    let manager = PatchParams {
        field_manager: Some(META_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let api = pass.api::<VirtualMachine>();
    match api.patch(&pass.key.name, &manager, &patch).await {
        Ok(new) => {
            rebase(pass, new);
            Ok(())
        }
        Err(error) if is_gone(&error) => Ok(()),
        Err(error) if is_lost_test(&error) => Err(again()),
        Err(source) => Err(write_error("metadata", source)),
    }
}

/// Lets the pod go whose end is recorded.
async fn release(pass: &mut Pass<'_>) -> Outcome<()> {
    match pass.writes.releases.take() {
        Some(pod) => release_pod(&pass.api(), &pod).await,
        None => Ok(()),
    }
}

/// Takes our finalizer off a pod.
pub(crate) async fn release_pod(api: &kube::Api<Pod>, pod: &Pod) -> Outcome<()> {
    let is_ours = |f: &String| f == names::FINALIZER;
    let Some(index) = pod.finalizers().iter().position(is_ours) else {
        return Ok(());
    };
    let path = format!("/metadata/finalizers/{index}");
    let patch: Patch<()> = json_patch(json!([
        { "op": "test", "path": "/metadata/uid", "value": pod.uid() },
        { "op": "test", "path": path, "value": names::FINALIZER },
        { "op": "remove", "path": path },
    ]))?;
    match api
        .patch(&pod.name_any(), &PatchParams::default(), &patch)
        .await
    {
        Ok(_) => Ok(()),
        Err(error) if is_gone(&error) => Ok(()),
        Err(error) if is_lost_test(&error) => Err(again()),
        Err(source) => Err(write_error("pod's finalizer", source)),
    }
}

/// The object is now as `new`; what others added to its metadata meanwhile is not ours to remove.
pub(crate) fn rebase(pass: &mut Pass<'_>, new: VirtualMachine) {
    let keep = |draft: &mut BTreeMap<String, String>, old: &BTreeMap<String, String>, new| {
        let new: &BTreeMap<String, String> = new;
        for (key, value) in new.iter().filter(|(key, _)| !old.contains_key(*key)) {
            draft.entry(key.clone()).or_insert_with(|| value.clone());
        }
    };
    keep(
        pass.vm.annotations_mut(),
        pass.base.annotations(),
        new.annotations(),
    );
    keep(pass.vm.labels_mut(), pass.base.labels(), new.labels());
    pass.vm.metadata.resource_version = new.metadata.resource_version.clone();
    let expected = &pass.ctx.shared.expected;
    expected.wrote(pass.key, &new, pass.seconds());
    pass.base = new;
}

/// Name, and the version that a write applies to.
fn identity(vm: &VirtualMachine) -> Value {
    json!({
        "name": vm.metadata.name,
        "namespace": vm.metadata.namespace,
        "uid": vm.metadata.uid,
        "resourceVersion": vm.metadata.resource_version,
    })
}

/// On its way from "created" to "has a node" an instance alone is worth no write: both show as
/// `Starting`.
fn coarse(mut status: Value) -> Value {
    if let Some(phase) = status
        .pointer_mut("/instance/phase")
        .filter(|p| *p == "Scheduled")
    {
        *phase = json!("Pending");
    }
    status
}

/// The status less the queue that verbs append to.
fn without_requests(status: &VirtualMachineStatus) -> Value {
    let mut value = json!(status);
    if let Some(fields) = value.as_object_mut() {
        fields.remove("stateChangeRequests");
    }
    value
}

fn write_error(part: &'static str, source: kube::Error) -> PassError {
    Error::Write { part, source }.into()
}
