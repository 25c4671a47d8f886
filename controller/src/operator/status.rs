//! Computes the new status of the object from the old one and the findings.
//!
//! Invariant: equal input gives an equal status, so that a quiet system writes nothing; conditions
//! of other types are left alone.
//! Failure: more related objects than the limit are cut, ours first.

use crds::conditions::set;
use crds::{ComponentVersion, RelatedObject, VmletSpec, VmletStatus};
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Resource;

use super::Summary;
use super::adapters::Wanted;
use super::observe::Observation;

/// Name of the controller's own version.
pub const OPERATOR: &str = "operator";

/// The version recorded, if there is any.
#[must_use]
pub fn recorded(status: &VmletStatus) -> Option<&str> {
    let found = status.versions.iter().find(|found| found.name == OPERATOR);
    found.map(|found| found.version.as_str())
}

/// Writes the conditions and the health into a status.
pub fn summarize(status: &mut VmletStatus, summary: &Summary, generation: Option<i64>, now: &Time) {
    for verdict in &summary.conditions {
        let kind = verdict.kind.as_str();
        let reason = &verdict.reason;
        let state = verdict.status;
        let message = &verdict.message;
        set(
            &mut status.conditions,
            kind,
            state,
            reason,
            message,
            generation,
            now,
        );
    }
    status.health = summary.health;
    status.observed_generation = generation;
}

/// Records a version that is rolled out.
pub fn record(status: &mut VmletStatus, version: &str) {
    let version = version.to_owned();
    match status
        .versions
        .iter_mut()
        .find(|found| found.name == OPERATOR)
    {
        Some(found) => found.version = version,
        None => status.versions.push(ComponentVersion {
            name: OPERATOR.to_owned(),
            version,
        }),
    }
}

/// The related objects, in the order in which they are checked: each that was found, and each
/// that is only away for now with the UID that it had. Components that are no longer observed are removed.
#[must_use]
pub fn related(
    old: &[RelatedObject],
    spec: &VmletSpec,
    definitions: &[Wanted],
    seen: &Observation,
) -> Vec<RelatedObject> {
    let mut all = wanted(spec, definitions);
    all.retain_mut(|wanted| {
        let known = old.iter().find(|known| is_same(known, wanted));
        wanted.uid = uid_of(wanted, seen).or_else(|| known?.uid.clone());
        wanted.uid.is_some()
    });
    all.truncate(VmletStatus::MOST_RELATED);
    all
}

fn wanted(spec: &VmletSpec, definitions: &[Wanted]) -> Vec<RelatedObject> {
    let watch = &spec.watch;
    let local = |name: &str| (Some(watch.namespace.clone()), name.to_owned());
    let mut all = vec![
        reference::<DaemonSet>(local(&watch.daemon_set)),
        reference::<Deployment>(local(&watch.deployment)),
    ];
    for name in &watch.admission_policies {
        all.push(reference::<ValidatingAdmissionPolicy>((None, name.clone())));
        all.push(reference::<ValidatingAdmissionPolicyBinding>((
            None,
            name.clone(),
        )));
    }
    for wanted in definitions {
        all.push(reference::<CustomResourceDefinition>((
            None,
            wanted.name.clone(),
        )));
    }
    all.extend(spec.components.iter().map(|wanted| RelatedObject {
        api_version: wanted.api_version.clone(),
        kind: wanted.kind.clone(),
        namespace: wanted.namespace.clone(),
        name: wanted.name.clone(),
        uid: None,
    }));
    all
}

fn uid_of(wanted: &RelatedObject, seen: &Observation) -> Option<String> {
    let policy = || {
        let policies = seen.policies.as_ref().ok()?;
        policies.iter().find(|policy| policy.name == wanted.name)
    };
    match wanted.kind.as_str() {
        "DaemonSet" => seen.daemon_set.as_ref().ok()?.as_ref()?.meta().uid.clone(),
        "Deployment" => seen.deployment.as_ref().ok()?.as_ref()?.meta().uid.clone(),
        "ValidatingAdmissionPolicy" => policy()?.policy.as_ref()?.meta().uid.clone(),
        "ValidatingAdmissionPolicyBinding" => policy()?.binding.as_ref()?.meta().uid.clone(),
        "CustomResourceDefinition" => {
            let found = seen.definitions.as_ref().ok()?;
            let name = Some(&wanted.name);
            let found = found
                .iter()
                .find(|found| found.meta().name.as_ref() == name)?;
            found.meta().uid.clone()
        }
        _ => seen.others.iter().find_map(|(other, read)| {
            let is_it = other.api_version == wanted.api_version
                && other.kind == wanted.kind
                && other.name == wanted.name
                && other.namespace == wanted.namespace;
            let object = read.as_ref().ok().filter(|_| is_it)?.as_ref()?;
            object.pointer("/metadata/uid")?.as_str().map(str::to_owned)
        }),
    }
}

fn is_same(known: &RelatedObject, wanted: &RelatedObject) -> bool {
    known.api_version == wanted.api_version
        && known.kind == wanted.kind
        && known.name == wanted.name
        && known.namespace == wanted.namespace
}

fn reference<K: Resource<DynamicType = ()>>(
    (namespace, name): (Option<String>, String),
) -> RelatedObject {
    RelatedObject {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        namespace,
        name,
        uid: None,
    }
}
