//! Whether the guest is ready: by the machine's own readiness probe, as far as facts answer it;
//! without one, by a first sign of life.
//!
//! Invariant: an event is sent when the answer changes, and only then.
//! Failure: no answer is `Unknown`.

mod published;
mod signs;

use crds::conditions::{self, READY};
use crds::guest_facts::{AgentState, GuestFacts, Power};
use crds::vm::{HeartbeatThreshold, ReadinessProbe};
use lifecycle::conditions::Guest;

use super::Pass;
use crate::reconcile::vm::observe::answer::Answer;
use crate::reconcile::vm::observe::pods;
use crate::reconcile::vm::observe::probe::{self, is_kubelets};

/// Looks, and remembers the answer in the pass.
pub(super) fn run(pass: &mut Pass<'_>, facts: Option<&GuestFacts>) {
    pass.view.probe = facts.and_then(|facts| facts.probe.clone());
    let answer = pass.vm.spec.readiness_probe.clone();
    pass.view.readiness = answer.map(|probe| evaluate(pass, &probe, facts));
    pass.view.silence = signs::awaited(pass, facts);
    report_change(pass);
}

fn evaluate(pass: &Pass<'_>, probe: &ReadinessProbe, facts: Option<&GuestFacts>) -> Answer {
    if !pass.view.pod.as_deref().is_some_and(pods::runs) {
        return Answer::No("the machine is not on");
    }
    if let Some(socket) = &probe.tcp_socket {
        if is_kubelets(pass, socket) {
            let instance = pass.view.instance.as_ref();
            return match instance.and_then(|instance| instance.ready) {
                Some(true) => Answer::Yes,
                Some(false) => Answer::No("the port does not open for kubelet"),
                None => Answer::Unknown("not probed yet"),
            };
        }
        let reported = facts.and_then(|facts| facts.probe.as_ref());
        let wanted = probe::of_node(pass);
        let answer = wanted.and_then(|wanted| probe::answer(pass, &wanted, reported));
        let answer = answer.or_else(|| recorded(pass));
        return answer.unwrap_or(Answer::Unknown("the node has not probed the machine yet"));
    }
    if let Some(heartbeat) = &probe.guest_heartbeat {
        let least = heartbeat
            .threshold_status
            .unwrap_or(HeartbeatThreshold::Green);
        return match colour(facts) {
            None => Answer::Unknown("there is no report of the guest agent yet"),
            Some(Some(colour)) if colour >= least => Answer::Yes,
            Some(_) => Answer::No("the heartbeat is below its threshold"),
        };
    }
    published::evaluate(&probe.guest_info, facts)
}

/// The recorded answer of this instance: a probe that was edited, and has no result yet, does not change
/// the status.
fn recorded(pass: &Pass<'_>) -> Option<Answer> {
    let status = pass.base.status.as_ref()?;
    let instance = status.instance.as_ref()?;
    let is_it = pass.view.pod.as_deref()?.metadata.uid.as_deref() == Some(&instance.uid)
        && instance.phase.as_deref() == Some("Running");
    let ready = conditions::find(&status.conditions, READY).filter(|_| is_it)?;
    match (ready.status.as_str(), ready.reason.as_str()) {
        ("True", _) => Some(Answer::Yes),
        ("False", "NotReady") => Some(Answer::No(
            "the readiness probe failed when it was last made",
        )),
        _ => None,
    }
}

/// Green: answers; red and gray are no colour at all. `None`: nothing is known.
#[allow(
    clippy::option_option,
    reason = "no news and bad news are different answers"
)]
fn colour(facts: Option<&GuestFacts>) -> Option<Option<HeartbeatThreshold>> {
    let facts = facts?;
    match facts.agent {
        AgentState::NoInfo => None,
        AgentState::NotRunning => Some(None),
        // A guest with paused vCPUs cannot respond, whatever the last answer was.
        AgentState::Connected if facts.power == Power::Paused => {
            Some(Some(HeartbeatThreshold::Yellow))
        }
        AgentState::Connected => Some(Some(HeartbeatThreshold::Green)),
    }
}

/// What the condition `Ready` depends on beside the pod.
pub(super) fn guest(pass: &Pass<'_>) -> Guest {
    match (&pass.view.readiness, pass.view.silence) {
        (Some(Answer::Yes), _) => Guest::Probed(true),
        (Some(Answer::No(why)), _) if probe::of_node(pass).is_some() => Guest::Unreachable(why),
        (Some(_), _) => Guest::Probed(false),
        (None, Some(text)) => Guest::Silent(text),
        (None, None) => Guest::Pod,
    }
}

/// Reason and message of an answer that is not known.
pub(super) fn unknown<'a>(pass: &'a Pass<'_>) -> Option<(&'static str, &'a str)> {
    match pass.view.readiness.as_ref()? {
        Answer::Unknown(why) => Some(("Unknown", why)),
        Answer::Unsupported(why) => Some((conditions::PROBE_UNAVAILABLE, why)),
        Answer::Yes | Answer::No(_) => None,
    }
}

fn report_change(pass: &Pass<'_>) {
    let Some(answer) = &pass.view.readiness else {
        return;
    };
    let all = pass.seen().map(|s| s.conditions.as_slice());
    let before = all.and_then(|c| conditions::find(c, READY));
    let (status, reason) = match answer {
        Answer::Yes => ("True", "Ready"),
        Answer::No(_) => ("False", "NotReady"),
        Answer::Unknown(_) | Answer::Unsupported(_) => ("Unknown", "Unknown"),
    };
    if before.is_some_and(|b| b.status == status) {
        return;
    }
    match answer {
        Answer::Yes => pass.normal(reason, "the readiness probe succeeds"),
        Answer::No(why) | Answer::Unknown(why) => pass.warning(reason, why),
        Answer::Unsupported(why) => pass.warning(reason, why),
    }
}
