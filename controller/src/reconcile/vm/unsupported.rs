//! Wishes that are passed on although nodes cannot fulfil them yet.
//!
//! Invariant: the condition is there exactly as long as the machine has such a wish.
//! Failure: none; the machine starts without them, or its node refuses it in its own words.

use crds::VirtualMachineSpec;
use crds::conditions::{self, Status};

use super::need::{Disk, Image, Size};
use super::pass::Pass;

/// The wishes, in a fixed order.
pub(super) fn list(
    spec: &VirtualMachineSpec,
    size: &Size,
    image: &Image,
    disks: &[Disk],
) -> Vec<String> {
    let network = spec.network.clone().unwrap_or_default();
    let interfaces = network.interfaces.as_slice();
    let is_fixed = |i: &crds::vm::InterfaceSpec| i.dhcp4 == Some(false) || i.dhcp6 == Some(false);
    let first_has_wishes = interfaces.first().is_some_and(|i| !i.addresses.is_empty());
    let cpu_model = size.cpu_model.as_deref().unwrap_or_default();
    let checks = [
        (
            "volumes: claims with a file system",
            disks.iter().any(|disk| disk.is_filesystem),
        ),
        ("cpuModel", !matches!(cpu_model, "" | "host-model")),
        (
            "network.interfaces: address on the pod network",
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
