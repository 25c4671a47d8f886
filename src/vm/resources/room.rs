//! The CPUs and the memory of a machine that is about to start, and the room for more.
//!
//! Invariant: saved memory fits only the devices that it was saved with: a machine that is resumed
//! begins as it was, whatever its pod requests now.
//! Failure: none; a description that cannot be read leaves the pod's own.

use libvirt::Layout;
use podspec::Instance;

use super::size::size;
use crate::platform::Platform;
use crate::vm::domain::{Room, Spare};
use crate::vm::error::Result;
use crate::vm::host::accelerator::Accelerator;
use crate::vm::model::Container;
use crate::vm::service::Containers;

/// A guest uses added memory by blocks of this size, in MiB: the device is made of whole ones, and
/// no more is requested of it than the pod allows.
const BLOCK: u64 = 128;
/// The steps in which memory is requested, in MiB.
pub(super) const STEP: u64 = 2;

impl<P: Platform> Containers<P> {
    /// The description that goes with the saved memory which a machine is about to resume; `None`
    /// for another start.
    pub(in crate::vm) async fn saved_description(
        &self,
        instance: &Instance,
    ) -> Result<Option<String>> {
        let Some(vm) = instance.vm.filter(|_| instance.restore) else {
            return Ok(None);
        };
        let file = self.parts.disks.memory_file(vm);
        let description = tokio::task::spawn_blocking(move || libvirt::saved_description(&file));
        Ok(description.await.map_err(crate::tasks::Aborted::from)?)
    }
}

/// What a machine begins with.
pub(in crate::vm) fn room(row: &Container, saved: Option<&str>, accelerator: Accelerator) -> Room {
    saved
        .and_then(Layout::read)
        .map_or_else(|| of_pod(row, accelerator), of_saved)
}

fn of_saved(layout: Layout) -> Room {
    let mib = |bytes: u64| bytes >> 20;
    Room {
        vcpus: layout.vcpus,
        max_vcpus: layout.max_vcpus,
        memory_mib: mib(layout.base),
        spare: layout.spare.map(|(most, requested)| Spare {
            most_mib: mib(most),
            requested_mib: mib(requested),
            used_mib: layout.current.map(mib),
        }),
    }
}

/// Under software emulation all virtual CPUs are there from the start: QEMU's translator may end
/// when one is plugged in later.
fn of_pod(row: &Container, accelerator: Accelerator) -> Room {
    let machine = &row.spec.machine;
    let size = size(&row.spec, row.resources());
    let base = machine.memory.get();
    let more = machine.max_memory.map(|most| most.get() - base);
    let max_vcpus = machine.max_vcpus.map(|most| most.get().into());
    Room {
        vcpus: match accelerator {
            Accelerator::Kvm => size.vcpus,
            Accelerator::Tcg => max_vcpus.unwrap_or(size.vcpus),
        },
        max_vcpus,
        memory_mib: base,
        spare: more.filter(|more| *more >= STEP).map(|more| Spare {
            most_mib: more.next_multiple_of(BLOCK),
            requested_mib: (size.memory.get() - base) / STEP * STEP,
            used_mib: None,
        }),
    }
}
