//! Fields that programs derive from others have room for them.
//!
//! Invariant: bounds are those of the generated schemas.
//! Failure: the assertion shows the path of the field.

use super::*;

/// The bound of the field with this path.
fn bound(path: &str, kind: &str) -> u64 {
    let mut found = None;
    all(|at, schema| {
        if at == path {
            found = schema[kind].as_u64();
        }
    });
    found.unwrap_or_else(|| panic!("{path} has no {kind}"))
}

/// What programs derive from other fields, and how much longer that may be. A status that does not
/// fit is written by no pass, and no condition can say so.
const DERIVED: [(&str, &str, &str, u64); 17] = [
    // The root disk of a storage class is a volume, too.
    (
        "VirtualMachine.status.volumes",
        "maxItems",
        "VirtualMachine.spec.volumes",
        1,
    ),
    (
        "VirtualMachine.status.volumes[].name",
        "maxLength",
        "VirtualMachine.spec.volumes[].name",
        0,
    ),
    (
        "VirtualMachine.status.class",
        "maxLength",
        "VirtualMachine.spec.className",
        0,
    ),
    (
        "VirtualMachine.status.network.interfaces",
        "maxItems",
        "VirtualMachine.spec.network.interfaces",
        0,
    ),
    // `vmlet.dev/REFERENCE`, and as a URL `oci://REFERENCE`.
    (
        "VirtualMachine.status.image",
        "maxLength",
        "VirtualMachineImage.spec.source.oci.reference",
        10,
    ),
    (
        "VirtualMachine.status.imageURL",
        "maxLength",
        "VirtualMachineImage.spec.source.oci.reference",
        6,
    ),
    (
        "VirtualMachine.status.imageURL",
        "maxLength",
        "VirtualMachineImage.spec.source.http.url",
        0,
    ),
    (
        "VirtualMachineTask.spec.image",
        "maxLength",
        "VirtualMachine.status.image",
        0,
    ),
    (
        "VirtualMachineTask.spec.imageURL",
        "maxLength",
        "VirtualMachine.status.imageURL",
        0,
    ),
    (
        "VirtualMachineTask.spec.imageTLSSecret",
        "maxLength",
        "VirtualMachineImage.spec.source.http.tlsSecret",
        0,
    ),
    (
        "VirtualMachineTask.spec.imageChecksumURL",
        "maxLength",
        "VirtualMachineImage.spec.update.checksumURL",
        0,
    ),
    (
        "VirtualMachineImage.status.update.reference",
        "maxLength",
        "VirtualMachineImage.spec.source.http.url",
        0,
    ),
    (
        "VirtualMachineImage.status.versions[].digest",
        "maxLength",
        "VirtualMachineTask.status.image.digest",
        0,
    ),
    (
        "VirtualMachineImageCache.spec.providerVersion",
        "maxLength",
        "VirtualMachineImage.status.versions[].digest",
        0,
    ),
    (
        "VirtualMachineImage.status.providerItemID",
        "maxLength",
        "VirtualMachine.status.image",
        0,
    ),
    (
        "ClusterVirtualMachineImage.status.providerItemID",
        "maxLength",
        "VirtualMachine.status.image",
        0,
    ),
    (
        "Vmlet.status.relatedObjects[].apiVersion",
        "maxLength",
        "Vmlet.spec.components[].apiVersion",
        0,
    ),
];

/// The text of a selector: each label has a key, `=`, a value and a comma.
#[test]
fn the_text_of_the_largest_selector_fits_into_the_status_of_a_set() {
    let kind = "VirtualMachineReplicaSet";
    let labels = bound(
        &format!("{kind}.spec.selector.matchLabels"),
        "maxProperties",
    );
    let text = bound(&format!("{kind}.status.selector"), "maxLength");
    assert!(labels * (317 + 1 + 63 + 1) <= text);
}

#[test]
fn what_is_derived_fits_whatever_it_is_derived_from() {
    let short: Vec<_> = DERIVED
        .into_iter()
        .filter(|(path, kind, source, more)| bound(path, kind) < bound(source, kind) + more)
        .collect();
    assert_eq!(short, []);
}
