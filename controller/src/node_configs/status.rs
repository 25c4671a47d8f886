//! The status of an object, from what the nodes say.
//!
//! Invariant: pure; the message names a few nodes, however many there are.
//! Failure: none.

use std::collections::BTreeMap;

use crds::conditions::{self, READY, Status};
use crds::node_settings::SettingReport;
use crds::text::printable;
use crds::{NodeConfig, NodeConfigStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use super::known::Member;

/// Most nodes that a message names.
const NAMED: usize = 5;
/// Longest text about a node, and longest message, in bytes.
const ABOUT_NODE: usize = 400;
const MESSAGE: usize = 4096;

/// The reasons of `Ready`.
const APPLIED: &str = "Applied";
const PENDING: &str = "Pending";
const REFUSED: &str = "Refused";

/// Some of the nodes that a message is about.
#[derive(Default)]
struct Nodes {
    texts: Vec<String>,
    count: usize,
}

/// The status that the object is to have.
pub(super) fn next(
    object: &NodeConfig,
    nodes: &BTreeMap<String, Member>,
    now: &Time,
) -> NodeConfigStatus {
    let name = object.name_any();
    let generation = object.metadata.generation;
    let mut refused = Nodes::default();
    let mut waiting = Nodes::default();
    let mut overridden = Nodes::default();
    let mut matching = 0_u32;
    let all = nodes.iter();
    for (node, member) in all.filter(|(node, member)| object.spec.matches(node, &member.labels)) {
        matching = matching.saturating_add(1);
        let observed = member.report.observed.get(&name);
        let is_current = observed.is_some_and(|observed| {
            Some(observed.generation) == generation && object.uid().as_ref() == Some(&observed.uid)
        });
        if !is_current {
            waiting.add(node.clone());
            continue;
        }
        let given = member.report.settings.iter();
        let given: Vec<_> = given.filter(|(_, one)| one.node_config == name).collect();
        about(&mut refused, node, &given, |one| &one.refused);
        about(&mut overridden, node, &given, |one| &one.overridden_by);
    }
    let (status, reason, message) = if refused.count > 0 {
        (Status::False, REFUSED, refused.text("; "))
    } else if waiting.count > 0 {
        let count = waiting.count;
        let nodes = waiting.text(", ");
        let message = format!("{count} of {matching} nodes have not applied it: {nodes}");
        (Status::Unknown, PENDING, message)
    } else if overridden.count > 0 {
        let nodes = overridden.text("; ");
        let message = format!("settings of nodes themselves count there: {nodes}");
        (Status::True, APPLIED, message)
    } else {
        (Status::True, APPLIED, String::new())
    };
    let mut next = object.status.clone().unwrap_or_default();
    next.nodes = matching;
    next.observed_generation = generation;
    let message = printable(&message, MESSAGE);
    conditions::set(
        &mut next.conditions,
        READY,
        status,
        reason,
        &message,
        generation,
        now,
    );
    next
}

/// Adds the settings of a node of which `why` says something.
fn about(
    nodes: &mut Nodes,
    node: &str,
    given: &[(&String, &SettingReport)],
    why: fn(&SettingReport) -> &String,
) {
    let said = given.iter().filter(|(_, one)| !why(one).is_empty());
    let said: Vec<_> = said
        .map(|(key, one)| format!("{key}: {}", why(one)))
        .collect();
    if !said.is_empty() {
        let text = format!("node {node}: {}", said.join(", "));
        nodes.add(printable(&text, ABOUT_NODE));
    }
}

impl Nodes {
    fn add(&mut self, text: String) {
        self.count += 1;
        if self.texts.len() < NAMED {
            self.texts.push(text);
        }
    }

    fn text(&self, between: &str) -> String {
        let more = self.count - self.texts.len();
        let mut text = self.texts.join(between);
        if more > 0 {
            text += &format!("{between}and {more} more");
        }
        text
    }
}
