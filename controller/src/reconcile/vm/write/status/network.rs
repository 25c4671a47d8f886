//! The addresses of the machine.
//!
//! Invariant: a primary address is one that other hosts can use and that was confirmed: by the
//! guest agent, a lease that the guest took, or the image's statement that the pod's address is
//! enough.
//! Failure: nothing proved: no primary address, and the machine waits for one.

use std::net::IpAddr;

use crds::conditions::{GUEST_NETWORK_CONFIG_SYNCED, Status};
use crds::guest_facts::{GuestFacts, GuestInterface, is_usable};
use crds::vm::{InterfaceStatus, NetworkConfigStatus, NetworkStatus};
use crds::{IpAssurance, VirtualMachine};

use super::Pass;
use crate::reconcile::vm::observe::pods;

/// Whether the machine has a network at all; saying nothing means yes.
pub(crate) fn is_enabled(vm: &VirtualMachine) -> bool {
    !vm.spec.network.as_ref().is_some_and(|n| n.disabled)
}

pub(super) fn run(pass: &mut Pass<'_>, facts: Option<&GuestFacts>) {
    // Without a NIC there is no host behind the pod's addresses.
    let intended = if is_enabled(&pass.vm) {
        intended(pass)
    } else {
        Vec::new()
    };
    let config = (!intended.is_empty()).then(|| NetworkConfigStatus {
        addresses: intended.iter().map(ToString::to_string).collect(),
    });
    let mut network = NetworkStatus {
        config,
        ..NetworkStatus::default()
    };
    let runs = pass.view.pod.as_deref().is_some_and(pods::runs);
    if runs && is_enabled(&pass.vm) {
        if let Some(facts) = facts {
            describe(&mut network, facts);
        }
        if assures_pod_ip(pass) {
            fill(&mut network, intended.iter().copied());
        }
    }
    synced(pass, &network, facts);
    let is_empty = network == NetworkStatus::default();
    if pass.seen().is_some() || !is_empty {
        pass.status().network = Some(network).filter(|_| !is_empty);
    }
}

/// Addresses that CNI gave the pod.
fn intended(pass: &Pass<'_>) -> Vec<IpAddr> {
    let pod = pass.view.pod.as_deref().filter(|p| pods::runs(p));
    let status = pod.and_then(|p| p.status.as_ref());
    let ips = status.and_then(|s| s.pod_ips.as_ref());
    let ips = ips.into_iter().flatten();
    ips.filter_map(|ip| ip.ip.parse().ok()).collect()
}

/// The image declares that its guests use the pod's address without a DHCP request; the pod's
/// annotation specifies it at its start.
pub(super) fn assures_pod_ip(pass: &Pass<'_>) -> bool {
    let pod = pass.view.pod.as_deref();
    let reported = pod.and_then(|p| pods::annotation(p, crds::names::IP_ASSURANCE));
    reported
        == Some(crate::reconcile::vm::act::pod::assurance(
            IpAssurance::PodIP,
        ))
}

fn describe(network: &mut NetworkStatus, facts: &GuestFacts) {
    let reported = Some(facts.host_name.clone()).filter(|n| !n.is_empty());
    network.host_name = reported;
    let status = |i: &GuestInterface| InterfaceStatus {
        name: i.name.clone(),
        mac_addr: Some(i.mac.clone()).filter(|m| !m.is_empty()),
        addresses: i.addresses.clone(),
    };
    network.interfaces = facts.interfaces.iter().map(status).collect();
    // The first interface that has a usable address gives both families, so that they belong
    // together.
    let first = facts.usable_addresses().next().map(|(i, _)| i.clone());
    let Some(first) = first else {
        return;
    };
    let same = facts.usable_addresses().filter(|(i, _)| **i == first);
    fill(network, same.map(|(_, ip)| ip));
}

/// The first usable address of each family that has none yet.
fn fill(network: &mut NetworkStatus, addresses: impl Iterator<Item = IpAddr>) {
    for ip in addresses.filter(|ip| is_usable(*ip)) {
        let place = match ip {
            IpAddr::V4(_) => &mut network.primary_ip4,
            IpAddr::V6(_) => &mut network.primary_ip6,
        };
        place.get_or_insert_with(|| ip.to_string());
    }
}

/// True when each primary address also appears in the guest's own view, where there is one.
fn synced(pass: &mut Pass<'_>, network: &NetworkStatus, facts: Option<&GuestFacts>) {
    let kind = GUEST_NETWORK_CONFIG_SYNCED;
    let primaries: Vec<_> = [&network.primary_ip4, &network.primary_ip6]
        .into_iter()
        .flatten()
        .collect();
    if !pass.view.pod.as_deref().is_some_and(pods::runs) || !is_enabled(&pass.vm) {
        pass.drop_condition(kind);
        return;
    }
    let listed = |ip: &String| {
        let facts = facts.filter(|f| !f.interfaces.is_empty());
        facts.is_none_or(|f| {
            f.usable_addresses()
                .any(|(_, seen)| seen.to_string() == *ip)
        })
    };
    if !primaries.is_empty() && primaries.into_iter().all(listed) {
        pass.condition(kind, Status::True, "Synced", "");
    } else {
        let text = "the guest has not shown its addresses yet";
        pass.condition(kind, Status::False, "NotSynced", text);
    }
}
