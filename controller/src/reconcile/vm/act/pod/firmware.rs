//! The firmware that boots a machine, as far as the cluster knows it.
//!
//! Invariant: what the specification says counts. A machine whose root disk is in a claim has no variable store
//! that outlives its pod, and from its second start on no image: that it booted by UEFI is in its status alone.
//! Failure: none; what is not known here, the node decides by the image.

use crds::VirtualMachine;
use crds::names;
use crds::vm::Firmware;

use crate::reconcile::vm::prerequisites::Prerequisites;

/// What the status of a machine calls UEFI, and that of an image.
const OF_MACHINE: &str = "uefi";
const OF_IMAGE: &str = "efi";

/// What the pod requests of its node; `None`: the node decides.
pub(super) fn requested(vm: &VirtualMachine, prerequisites: &Prerequisites) -> Option<Firmware> {
    let booted = vm.status.as_ref().and_then(|s| s.firmware.as_deref());
    let is_in_claim = prerequisites.disks.iter().any(|disk| disk.is_root);
    let is_kept = is_in_claim && booted == Some(OF_MACHINE) && !is_annotated(vm);
    let kept = is_kept.then_some(Firmware::Uefi);
    vm.spec.firmware.or(kept)
}

/// Whether the machine boots by UEFI, as far as its specification, its last start and its image say it.
pub(super) fn needs_uefi(vm: &VirtualMachine, prerequisites: &Prerequisites) -> bool {
    let image = prerequisites.image.object.as_ref();
    let of_image = image.and_then(|image| image.status()?.firmware.as_deref());
    match requested(vm, prerequisites) {
        Some(firmware) => firmware == Firmware::Uefi,
        None => of_image == Some(OF_IMAGE),
    }
}

/// Whether the owner annotates the pods with a firmware.
fn is_annotated(vm: &VirtualMachine) -> bool {
    let template = vm.spec.template.as_ref();
    template.is_some_and(|t| t.metadata.annotations.contains_key(names::FIRMWARE))
}
