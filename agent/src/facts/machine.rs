//! Converts a machine of the node API to the guest facts of its pod.
//!
//! Invariant: the result is bounded; what the guest reported is text and nothing else.
//! Failure: a state of a newer daemon is `Unknown`.

use crds::guest_facts::{
    AddressSource, AgentState, GuestFacts, GuestInterface, GuestOs, POD_GUEST_AGENT_CONNECTED,
    POD_GUEST_NETWORK_READY, POD_PAUSED, Power,
};
use crds::{GuestProbe, NodeProbe, ProbeOutcome};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use nodeapi::v1::probe_state::Outcome;
use nodeapi::v1::{Agent, Interface, Machine, ProbeState, interface, machine};

/// What is known of a machine.
pub(super) fn facts(machine: &Machine) -> GuestFacts {
    let power = match machine::Power::try_from(machine.power) {
        Ok(machine::Power::Off) => Power::Off,
        Ok(machine::Power::On) => Power::On,
        Ok(machine::Power::Paused) => Power::Paused,
        Ok(machine::Power::Saving) => Power::Saving,
        Ok(machine::Power::Unknown) | Err(_) => Power::Unknown,
    };
    let agent = match Agent::try_from(machine.agent) {
        Ok(Agent::Connected) => AgentState::Connected,
        Ok(Agent::NotRunning) => AgentState::NotRunning,
        Ok(Agent::NoInfo) | Err(_) => AgentState::NoInfo,
    };
    let started = Timestamp::from_second(machine.started_ms.div_euclid(1000)).ok();
    let facts = GuestFacts {
        power,
        pause_reason: machine.pause_reason.clone(),
        pause_message: machine.pause_message.clone(),
        agent,
        container_id: machine.container_id.clone(),
        domain_uuid: machine.domain_uuid.clone(),
        machine_type: machine.machine_type.clone(),
        firmware: machine.firmware.clone(),
        started: started.filter(|_| machine.started_ms > 0).map(Time),
        host_name: machine.host_name.clone(),
        os: GuestOs {
            id: machine.os_id.clone(),
            name: machine.os_name.clone(),
            version: machine.os_version.clone(),
            kernel: machine.kernel.clone(),
        },
        interfaces: machine.interfaces.iter().map(interface).collect(),
        info: machine.guest_info.clone(),
        unsupported: machine.unsupported.clone(),
        probe: machine.probe.as_ref().and_then(probe),
    };
    facts.bounded()
}

fn interface(published: &Interface) -> GuestInterface {
    let source = match interface::Source::try_from(published.source) {
        Ok(interface::Source::GuestAgent) => AddressSource::GuestAgent,
        Ok(interface::Source::DhcpLease) => AddressSource::DhcpLease,
        Err(_) => AddressSource::Unknown,
    };
    GuestInterface {
        name: published.name.clone(),
        mac: published.mac.clone(),
        addresses: published.addresses.clone(),
        source,
    }
}

/// None for a probe that no request of ours can have set.
fn probe(state: &ProbeState) -> Option<GuestProbe> {
    let probe = state.probe.as_ref()?;
    let outcome = match Outcome::try_from(state.outcome) {
        Ok(Outcome::Connected) => ProbeOutcome::Connected,
        Ok(Outcome::Refused) => ProbeOutcome::Refused,
        Ok(Outcome::TimedOut) => ProbeOutcome::TimedOut,
        Ok(Outcome::NoAddress) => ProbeOutcome::NoAddress,
        Ok(Outcome::NotAllowed) => ProbeOutcome::NotAllowed,
        Ok(Outcome::Unknown) | Err(_) => ProbeOutcome::Unknown,
    };
    let probe = NodeProbe {
        port: probe.port.try_into().ok()?,
        host: Some(probe.host.clone()).filter(|host| !host.is_empty()),
        period_seconds: probe.period_seconds,
        timeout_seconds: probe.timeout_seconds,
    };
    Some(GuestProbe { probe, outcome })
}

/// One condition of the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Condition<'a> {
    pub(super) kind: &'static str,
    pub(super) status: &'static str,
    pub(super) reason: &'a str,
    pub(super) message: &'a str,
}

/// The conditions that follow from the facts.
pub(super) fn conditions(facts: &GuestFacts) -> [Condition<'_>; 3] {
    let condition = |kind, status, reason| Condition {
        kind,
        status,
        reason,
        message: match kind {
            POD_PAUSED if facts.power == Power::Paused => facts.pause_message.as_str(),
            _ => "",
        },
    };
    let (paused, why) = match facts.power {
        Power::Paused => ("True", reason(&facts.pause_reason)),
        Power::On | Power::Saving => ("False", "Running"),
        Power::Off => ("False", "PoweredOff"),
        Power::Unknown => ("Unknown", "NoMachineInfo"),
    };
    let agent = match facts.agent {
        AgentState::Connected => ("True", "Connected"),
        AgentState::NotRunning => ("False", "GuestAgentNotRunning"),
        AgentState::NoInfo => ("Unknown", "NoGuestInfo"),
    };
    let network = match facts.usable_addresses().next() {
        _ if facts.power == Power::Unknown => ("Unknown", "NoMachineInfo"),
        Some((interface, _)) if interface.source == AddressSource::DhcpLease => {
            ("True", "DhcpLease")
        }
        Some(_) => ("True", "GuestAddress"),
        None => ("False", "NoAddress"),
    };
    [
        condition(POD_PAUSED, paused, why),
        condition(POD_GUEST_AGENT_CONNECTED, agent.0, agent.1),
        condition(POD_GUEST_NETWORK_READY, network.0, network.1),
    ]
}

/// Reasons are one word to the API server.
fn reason(text: &str) -> &str {
    let is_word = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric());
    if is_word { text } else { "Paused" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        Machine {
            power: machine::Power::On.into(),
            agent: Agent::Connected.into(),
            started_ms: 1_700_000_000_999,
            host_name: "vm-1\u{1b}[2J".to_owned(),
            os_name: "evil\nname".to_owned(),
            guest_info: [("app", "up\u{7}"), ("no key", "x")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            interfaces: vec![Interface {
                name: "eth0".to_owned(),
                mac: "02:00:00:00:00:01".to_owned(),
                addresses: vec!["fe80::1/64".to_owned(), "10.0.0.7/24".to_owned()],
                source: interface::Source::DhcpLease.into(),
            }],
            ..Machine::default()
        }
    }

    #[test]
    fn a_probe_is_reported_with_its_result() {
        let reported = |outcome: i32, port: u32| {
            let probe = nodeapi::v1::TcpProbe {
                host: String::new(),
                port,
                period_seconds: 10,
                timeout_seconds: 1,
            };
            let machine = Machine {
                probe: Some(ProbeState {
                    probe: Some(probe),
                    outcome,
                }),
                ..machine()
            };
            facts(&machine).probe
        };
        let refused = reported(Outcome::Refused.into(), 22).unwrap();
        assert_eq!(
            (refused.outcome, refused.probe.port),
            (ProbeOutcome::Refused, 22)
        );
        assert_eq!(refused.probe.host, None);
        assert_eq!(reported(77, 22).unwrap().outcome, ProbeOutcome::Unknown);
        assert_eq!(reported(Outcome::Connected.into(), 65_536), None);
        assert_eq!(facts(&machine()).probe, None);
    }

    fn conditions_of(machine: &Machine) -> Vec<(&'static str, String)> {
        let facts = facts(machine);
        let conditions = conditions(&facts);
        conditions
            .iter()
            .map(|c| (c.status, c.reason.to_owned()))
            .collect()
    }

    #[test]
    fn guest_output_is_reduced_to_text() {
        let facts = facts(&machine());
        assert_eq!(
            (facts.host_name.as_str(), facts.os.name.as_str()),
            ("", "evilname")
        );
        let info: Vec<_> = facts.info.iter().collect();
        assert_eq!(info, [(&"app".to_owned(), &"up".to_owned())]);
        assert_eq!(facts.started.as_ref().unwrap().0.as_second(), 1_700_000_000);
        assert_eq!(GuestFacts::from_json(&facts.to_json()).unwrap(), facts);
    }

    #[test]
    fn conditions_follow_from_the_facts() {
        let mut machine = machine();
        let on = [
            ("False", "Running"),
            ("True", "Connected"),
            ("True", "DhcpLease"),
        ];
        assert_eq!(conditions_of(&machine), on.map(|(s, r)| (s, r.to_owned())));
        machine.power = machine::Power::Paused.into();
        machine.pause_reason = "PausedIOError".to_owned();
        machine.agent = Agent::NotRunning.into();
        machine.interfaces[0].addresses.truncate(1);
        let paused = [
            ("True", "PausedIOError"),
            ("False", "GuestAgentNotRunning"),
            ("False", "NoAddress"),
        ];
        assert_eq!(
            conditions_of(&machine),
            paused.map(|(s, r)| (s, r.to_owned()))
        );
        machine.pause_reason = "two words".to_owned();
        assert_eq!(conditions_of(&machine)[0].1, "Paused");
        machine.power = 77;
        machine.agent = 77;
        assert!(
            conditions_of(&machine)
                .iter()
                .all(|(status, _)| *status == "Unknown")
        );
    }
}
