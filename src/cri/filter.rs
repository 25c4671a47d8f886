//! Filters of lists.
//!
//! Invariant: an object is listed when it fits every part of the filter; a part that is not given
//! fits all. Ids may be given as prefixes that only one object has.
//! Failure: none; a filter that nothing fits yields an empty list.

use std::collections::BTreeMap;
use std::sync::Arc;

use cri_proto::v1::{ContainerFilter, PodSandboxFilter};

use super::convert;
use crate::sandbox::Sandbox;
use crate::vm::Container;

/// The sandboxes that fit.
pub(super) fn sandboxes(
    mut all: Vec<Arc<Sandbox>>,
    filter: Option<PodSandboxFilter>,
) -> Vec<Arc<Sandbox>> {
    let Some(filter) = filter else { return all };
    if !filter.id.is_empty() {
        let id = unique(&filter.id, all.iter().map(|s| s.id.as_str()));
        all.retain(|s| id.as_deref() == Some(s.id.as_str()));
    }
    all.retain(|sandbox| {
        let state = convert::sandbox::state(sandbox.phase) as i32;
        filter.state.is_none_or(|wanted| wanted.state == state)
            && selects(&filter.label_selector, &sandbox.config.labels)
    });
    all
}

/// The containers that fit.
pub(super) fn containers(
    mut all: Vec<Arc<Container>>,
    filter: Option<ContainerFilter>,
) -> Vec<Arc<Container>> {
    let Some(filter) = filter else { return all };
    if !filter.id.is_empty() {
        let id = unique(&filter.id, all.iter().map(|c| c.id.as_str()));
        all.retain(|c| id.as_deref() == Some(c.id.as_str()));
    }
    if !filter.pod_sandbox_id.is_empty() {
        let id = unique(
            &filter.pod_sandbox_id,
            all.iter().map(|c| c.sandbox.as_str()),
        );
        all.retain(|c| id.as_deref() == Some(c.sandbox.as_str()));
    }
    all.retain(|container| {
        let state = convert::container::state(container.phase) as i32;
        filter.state.is_none_or(|wanted| wanted.state == state)
            && selects(&filter.label_selector, &container.spec.config.labels)
    });
    all
}

/// The one id that begins with `prefix`.
fn unique<'a>(prefix: &str, ids: impl Iterator<Item = &'a str>) -> Option<String> {
    let mut matching = ids.filter(|id| id.starts_with(prefix));
    let first = matching.next()?;
    matching.all(|id| id == first).then(|| first.to_owned())
}

fn selects(selector: &BTreeMap<String, String>, labels: &BTreeMap<String, String>) -> bool {
    selector.iter().all(|(k, v)| labels.get(k) == Some(v))
}

#[cfg(test)]
mod tests;
