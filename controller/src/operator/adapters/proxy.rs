//! The CRI proxy on each node.
//!
//! Invariant: a proxy that fails is a fault at once, for every pod of its node depends on it.
//! Failure: a node whose agent is configured without a proxy does not count.

use super::{NodeView, conditions, names};
use crate::operator::component::Conditions;

/// The four conditions of the proxies; `version` is the one that they should have.
#[must_use]
pub fn proxy(nodes: &[NodeView], version: &str) -> Conditions {
    let has_proxy = |node: &&NodeView| {
        let facts = node.facts.as_ref();
        !node.excluded && facts.is_none_or(|facts| facts.proxy.is_some())
    };
    let nodes: Vec<_> = nodes.iter().filter(has_proxy).collect();
    let serves = |node: &NodeView| {
        let facts = node.facts.as_ref().and_then(|facts| facts.proxy.as_ref());
        node.fresh && facts.is_some_and(|proxy| proxy.reachable)
    };
    let which = |wanted: &dyn Fn(&NodeView) -> bool| {
        names(
            nodes
                .iter()
                .filter(|node| wanted(node))
                .map(|node| node.name.as_str()),
        )
    };
    let other_version = |node: &NodeView| {
        let proxy = node.facts.as_ref().and_then(|facts| facts.proxy.as_ref());
        node.fresh
            && proxy.is_some_and(|proxy| !proxy.version.is_empty() && proxy.version != version)
    };
    let stale = which(&|node| !node.fresh);
    let silent = which(&|node| !serves(node) || node.runtime_down);
    let none = !nodes.iter().any(|node| serves(node));
    conditions(
        none.then(|| "no node has a proxy that answers".to_owned()),
        which(&other_version).map(|names| format!("not of version {version}: {names}")),
        silent.map(|names| format!("no answer, or kubelet misses its runtime: {names}")),
        stale.map(|names| format!("no news from {names}")),
    )
}
