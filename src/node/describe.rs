//! Machines as messages of the node API.
//!
//! Invariant: made of rows and of what is known; no call is made.
//! Failure: none; what is not known is empty.

use std::collections::BTreeMap;

use libvirt::{Pause, Power};
use nodeapi::v1;
use podspec::ContainerId;

use super::facts::Interface;
use super::machines::{Agent, Machines};
use super::probes::Probes;
use super::wire;
use crate::disk::Disks;
use crate::platform::Platform;
use crate::vm::Container;
use crate::vm::state::Phase;

/// Why a guest is paused whose disk failed.
const IO_ERROR: &str = "PausedIOError";

/// Nanoseconds in a millisecond.
const MILLI: i64 = 1_000_000;

/// Every machine of the node; pods that never boot are none.
pub(super) fn all<P: Platform>(
    machines: &Machines<P>,
    probes: &Probes<P>,
    disks: &Disks,
) -> BTreeMap<ContainerId, v1::Machine> {
    let rows = machines.containers.machines().into_iter();
    let described = rows.map(|row| {
        let mut machine = one(machines, disks, &row);
        let probe = row.probe.as_ref().filter(|_| row.phase.runs());
        machine.probe = probe.map(|probe| wire::probe_state(probe, probes.outcome(&row)));
        (row.id.clone(), machine)
    });
    described.collect()
}

fn one<P: Platform>(machines: &Machines<P>, disks: &Disks, row: &Container) -> v1::Machine {
    let known = if row.phase.runs() {
        machines.known(&row.id)
    } else {
        Default::default()
    };
    let disk = row.vm().and_then(|vm| disks.get(vm));
    let saving = disk.is_some_and(|disk| disk.is_being_saved());
    let cause = cause(known.power, row.held, known.for_merge);
    let (power, pause_reason) = power(row.phase, cause, saving);
    let sandbox = machines.containers.sandbox_of(row);
    let pod = sandbox.map(|sandbox| sandbox.config.metadata.clone());
    let pod = pod.unwrap_or_default();
    let vm = machines.containers.vm_of(row);
    let reply = known.reply;
    let mut unsupported = row.spec.unsupported.clone();
    unsupported.extend(machines.containers.lost_shares(row));
    unsupported.extend(row.spec.missing(&reply.missing));
    v1::Machine {
        vm_uid: vm.map(|vm| vm.to_string()).unwrap_or_default(),
        pod_namespace: pod.namespace,
        pod_name: pod.name,
        pod_uid: pod.uid,
        container_id: row.id.to_string(),
        power: power.into(),
        pause_reason: pause_reason.to_owned(),
        pause_message: match pause_reason {
            IO_ERROR => known.failed_disks,
            _ => String::new(),
        },
        agent: match known.agent {
            Agent::NoInfo => v1::Agent::NoInfo,
            Agent::NotRunning => v1::Agent::NotRunning,
            Agent::Connected => v1::Agent::Connected,
        }
        .into(),
        interfaces: reply.interfaces.into_iter().map(interface).collect(),
        host_name: reply.host_name,
        os_id: reply.os_id,
        os_name: reply.os_name,
        os_version: reply.os_version,
        kernel: reply.kernel,
        guest_info: reply.published,
        machine_type: known.machine_type,
        domain_uuid: row.domain().to_string(),
        unsupported,
        started_ms: row.started_at / MILLI,
        probe: None,
        firmware: row.spec.firmware().to_owned(),
    }
}

fn interface(interface: Interface) -> v1::Interface {
    v1::Interface {
        name: interface.name,
        mac: interface.mac,
        addresses: interface.addresses,
        source: v1::interface::Source::GuestAgent.into(),
    }
}

/// A guest that its owner has paused as well continues only for a request, whatever its disks do. One that is
/// paused for the end of a merge alone counts as one that runs: it is for a moment, and the event of its end may come
/// later than that of the record.
fn cause(known: Option<Power>, held: bool, for_merge: bool) -> Option<Power> {
    match known {
        Some(Power::Paused(Pause::Asked)) if for_merge && !held => Some(Power::On),
        Some(Power::Paused(Pause::IoError)) if held => Some(Power::Paused(Pause::Asked)),
        known => known,
    }
}

fn power(phase: Phase, known: Option<Power>, saving: bool) -> (v1::machine::Power, &'static str) {
    use v1::machine::Power as Wire;
    match (phase, known) {
        (Phase::Creating | Phase::Starting, _) => (Wire::Unknown, ""),
        (Phase::Created | Phase::Exited | Phase::Removing, _) => (Wire::Off, ""),
        _ if saving => (Wire::Saving, ""),
        (_, Some(Power::Paused(Pause::Asked))) => (Wire::Paused, "PausedByUser"),
        (_, Some(Power::Paused(Pause::IoError))) => (Wire::Paused, IO_ERROR),
        _ => (Wire::On, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_by_the_owner_outranks_that_by_a_disk() {
        let failed = Some(Power::Paused(Pause::IoError));
        assert_eq!(cause(failed, true, true), Some(Power::Paused(Pause::Asked)));
        for (power, held) in [(failed, false), (Some(Power::On), true), (None, true)] {
            assert_eq!(cause(power, held, false), power);
            assert_eq!(cause(power, held, true), power);
        }
    }

    #[test]
    fn a_guest_that_is_paused_for_a_merge_counts_as_one_that_runs_unless_its_owner_paused_it() {
        let paused = Some(Power::Paused(Pause::Asked));
        assert_eq!(cause(paused, false, true), Some(Power::On));
        assert_eq!(cause(paused, true, true), paused);
        assert_eq!(cause(paused, false, false), paused);
    }

    #[test]
    fn power_follows_the_row_first_and_then_the_hypervisor() {
        use v1::machine::Power as Wire;
        let paused = Some(Power::Paused(Pause::Asked));
        let failed = Some(Power::Paused(Pause::IoError));
        assert_eq!(power(Phase::Exited, paused, true), (Wire::Off, ""));
        assert_eq!(power(Phase::Starting, None, false), (Wire::Unknown, ""));
        assert_eq!(power(Phase::Running, None, false), (Wire::On, ""));
        assert_eq!(power(Phase::Running, paused, true), (Wire::Saving, ""));
        assert_eq!(
            power(Phase::Running, paused, false),
            (Wire::Paused, "PausedByUser")
        );
        assert_eq!(
            power(Phase::Stopping, failed, false),
            (Wire::Paused, "PausedIOError")
        );
    }
}
