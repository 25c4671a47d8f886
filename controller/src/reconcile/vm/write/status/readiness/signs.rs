//! Readiness of a guest without a probe: its first lease or agent start.
//!
//! Invariant: a guest that was ready since its start stays so: its agent may end, its lease may run
//! out.
//! Failure: a node that reports nothing leaves the guest silent.

use std::time::Duration;

use crds::guest_facts::{AgentState, GuestFacts};
use crds::names;

use super::{Answer, pods, recorded};
use crate::reconcile::vm::write::status::Pass;
use crate::reconcile::vm::write::status::network::{assures_pod_ip, is_enabled};

/// A guest that boots takes no longer than that to show a sign of life, as a rule.
const BOOT: i64 = 120;

/// Which signs are awaited; `None`: the guest has shown one, or does not have to.
pub(super) fn awaited(pass: &mut Pass<'_>, facts: Option<&GuestFacts>) -> Option<&'static str> {
    let runs = pass.view.pod.as_deref().is_some_and(pods::runs);
    let is_asked = pass.vm.spec.readiness_probe.is_some();
    // What it had in memory includes its addresses, which it does not have to request again.
    let pod = pass.view.pod.as_deref();
    let is_resumed = pod.is_some_and(|p| pods::annotation(p, names::RESTORE) == Some("true"));
    if !runs || is_asked || is_resumed || !is_enabled(&pass.vm) || assures_pod_ip(pass) {
        return None;
    }
    let shows = |facts: &GuestFacts| {
        facts.agent == AgentState::Connected || facts.usable_addresses().next().is_some()
    };
    if facts.is_some_and(shows) || recorded(pass) == Some(Answer::Yes) {
        return None;
    }
    let now = pass.now.clone();
    let instance = pass.view.instance.as_ref();
    let ran = instance.and_then(|i| i.ran_seconds(&now)).unwrap_or(0);
    if ran >= BOOT {
        return Some(
            "the guest has run for two minutes without an address lease and without a guest agent: \
             look at its console",
        );
    }
    let left = u64::try_from(BOOT - ran).unwrap_or_default();
    pass.requeue_within(Duration::from_secs(left));
    Some("the guest boots: it has neither taken an address lease nor started a guest agent yet")
}
