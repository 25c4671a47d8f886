//! Our kinds: CustomResourceDefinitions.
//!
//! Invariant: a kind that another version still has objects of is served, and not upgradeable.
//! Failure: a kind that does not exist is named.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;

use super::{conditions, names};
use crate::operator::component::ComponentState;

/// A kind that must be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Name of its definition.
    pub name: String,
    /// The version that must be served.
    pub version: String,
}

/// The four conditions of all kinds together.
#[must_use]
pub fn definitions(wanted: &[Wanted], found: &[CustomResourceDefinition]) -> ComponentState {
    let of = |name: &str| found.iter().find(|found| found.name_any() == name);
    let absent = wanted.iter().filter(|wanted| of(&wanted.name).is_none());
    if let Some(absent) = names(absent.map(|wanted| wanted.name.as_str())) {
        return ComponentState::Nothing(format!("{absent} not found"));
    }
    let which = |bad: &dyn Fn(&CustomResourceDefinition, &str) -> bool| {
        names(wanted.iter().filter_map(|wanted| {
            let definition = of(&wanted.name)?;
            bad(definition, &wanted.version).then_some(wanted.name.as_str())
        }))
    };
    let unserved = which(&|definition, version| {
        let served = definition
            .spec
            .versions
            .iter()
            .any(|found| found.name == version && found.served);
        !is(definition, "Established") || is(definition, "Terminating") || !served
    });
    let unseen = which(&|definition, _| {
        let status = definition.status.as_ref();
        let seen = status.and_then(|status| status.observed_generation);
        // Older API servers do not say.
        seen.is_some() && seen < definition.metadata.generation
    });
    let broken = which(&|definition, _| {
        !is(definition, "NamesAccepted") || is(definition, "NonStructuralSchema")
    });
    let stored = which(&|definition, _| {
        let storage = definition.spec.versions.iter().find(|found| found.storage);
        let storage = storage.map(|version| version.name.as_str());
        let status = definition.status.as_ref();
        let stored = status.and_then(|status| status.stored_versions.as_ref());
        stored.is_some_and(|stored| stored.iter().any(|found| Some(found.as_str()) != storage))
    });
    ComponentState::Found(conditions(
        unserved.map(|names| format!("not served: {names}")),
        unseen.map(|names| format!("changed and not acted upon yet: {names}")),
        broken.map(|names| format!("names or schema are not accepted: {names}")),
        stored.map(|names| format!("objects of other versions are stored: {names}")),
    ))
}

fn is(definition: &CustomResourceDefinition, kind: &str) -> bool {
    let status = definition.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    conditions
        .and_then(|conditions| conditions.iter().find(|found| found.type_ == kind))
        .is_some_and(|found| found.status == "True")
}
