//! Wishes that are passed on although nodes cannot fulfil them yet.
//!
//! Invariant: the condition is there exactly as long as the machine has such a wish.
//! Failure: none; the machine starts without them, or its node refuses it in its own words.

use crds::conditions::{self, Status};

use super::need::{Image, Size};
use super::pass::Pass;

/// The wishes, in a fixed order.
pub(super) fn list(pass: &Pass<'_>, size: &Size, image: &Image) -> Vec<String> {
    let spec = &pass.vm.spec;
    let network = spec.network.clone().unwrap_or_default();
    let interfaces = network.interfaces.as_slice();
    let is_fixed = |i: &crds::vm::InterfaceSpec| i.dhcp4 == Some(false) || i.dhcp6 == Some(false);
    let first_has_wishes = interfaces
        .first()
        .is_some_and(|i| i.mac_addr.is_some() || !i.addresses.is_empty());
    let cpu_model = size.cpu_model.as_deref().unwrap_or_default();
    let checks = [
        ("volumes", !spec.volumes.is_empty()),
        ("bootstrap.cloudInit", spec.bootstrap.is_some()),
        (
            "machineType",
            size.machine_type.is_some() || spec.min_machine_type.is_some(),
        ),
        ("cpuModel", !matches!(cpu_model, "" | "host-model")),
        ("network.disabled", network.disabled),
        ("network.hostName", network.host_name.is_some()),
        (
            "network.interfaces: address or MAC on the pod network",
            first_has_wishes,
        ),
        (
            "network.interfaces: no DHCP",
            interfaces.iter().any(is_fixed),
        ),
        ("image.oci", image.is_oci),
        ("image.http.tlsSecret", image.has_tls_secret),
        ("currentSnapshotName", spec.current_snapshot_name.is_some()),
    ];
    let wished = checks.iter().filter(|(_, is_wished)| *is_wished);
    wished.map(|(name, _)| (*name).to_owned()).collect()
}

/// Sets or drops the condition.
pub(super) fn report(pass: &mut Pass<'_>, wishes: &[String]) {
    if wishes.is_empty() {
        pass.drop_condition(conditions::UNSUPPORTED);
        return;
    }
    let message = format!("nodes do not do this yet: {}", wishes.join(", "));
    let kind = conditions::UNSUPPORTED;
    pass.condition(kind, Status::True, "NotImplemented", &message);
}
