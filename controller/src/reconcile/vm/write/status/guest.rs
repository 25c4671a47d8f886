//! The reports of the guest and its node about the machine.
//!
//! Invariant: facts count only while the pod that carries them is live; they are bounded before
//! they are used.
//! Failure: facts that cannot be read leave everything as it was.

use crds::conditions::{GUEST_AGENT, Status};
use crds::guest_facts::{AgentState, GuestFacts};
use crds::names;
use crds::vm::GuestStatus;

use super::Pass;
use crate::reconcile::vm::observe::pods;

/// The facts on the live pod, if there are any.
pub(super) fn facts(pass: &Pass<'_>) -> anyhow::Result<Option<GuestFacts>> {
    let pod = pass.view.pod.as_deref().filter(|p| pods::runs(p));
    let text = pod.and_then(|p| pods::annotation(p, names::GUEST_FACTS));
    match text {
        Some(text) => Ok(Some(GuestFacts::from_json(text)?)),
        None => Ok(None),
    }
}

pub(super) fn run(pass: &mut Pass<'_>, facts: Option<&GuestFacts>) {
    let Some(facts) = facts else {
        if pass.view.pod.is_none() {
            pass.drop_condition(GUEST_AGENT);
            pass.status().guest = None;
        }
        return;
    };
    let (status, reason, text) = match facts.agent {
        AgentState::Connected => (Status::True, "", ""),
        AgentState::NotRunning => {
            let text = "the guest agent does not answer; is qemu-guest-agent installed?";
            (Status::False, "GuestAgentNotRunning", text)
        }
        AgentState::NoInfo => (Status::Unknown, "NoGuestInfo", ""),
    };
    pass.condition(GUEST_AGENT, status, reason, text);
    let os = &facts.os;
    let reported = |text: &String| Some(text.clone()).filter(|t| !t.is_empty());
    let guest = GuestStatus {
        os_id: reported(&os.id),
        os_name: reported(&os.name),
        os_version: reported(&os.version),
        kernel: reported(&os.kernel),
    };
    let status = pass.status();
    status.guest = Some(guest).filter(|g| *g != GuestStatus::default());
    if let Some(machine) = reported(&facts.machine_type) {
        status.machine_type = Some(machine);
    }
    if let Some(firmware) = reported(&facts.firmware) {
        status.firmware = Some(firmware);
    }
}
