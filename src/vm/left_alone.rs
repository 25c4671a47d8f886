//! Machines of which a record cannot be read.
//!
//! ```text
//! unreadable        what stays as it is
//! sandbox           its network, root disk and containers
//! container         its domain, files, disks and devices, and its sandbox
//! disk, device      itself, and the container whose row names it
//! ```
//!
//! Invariant: such a machine runs on, its ends are recorded, and its console is followed; neither a
//! request nor reconciliation starts, ends or removes anything of it, and nothing else takes its
//! place.
//! Failure: [`Error::Unreadable`] names the record, and what to do.

use podspec::{ContainerId, SandboxId};

use super::error::{Error, Result};
use super::model::Container;
use super::service::Containers;
use crate::metadata::Unreadable;
use crate::platform::Platform;

impl<P: Platform> Containers<P> {
    /// Refuses what would change a container that is left alone.
    pub(super) fn check_readable(&self, row: &Container) -> Result<()> {
        let readable = || -> Result<(), Unreadable> {
            let sandboxes = &self.parts.sandboxes;
            if sandboxes.get(&row.sandbox).is_none() {
                sandboxes.aside().refuse_missing(row.sandbox.as_str())?;
            }
            let disks = &self.parts.disks;
            if let Some(vm) = row.vm().filter(|vm| disks.get(*vm).is_none()) {
                disks.aside().refuse_missing(&vm.to_string())?;
            }
            let blocks = self.parts.blocks.aside();
            let mut devices = row.spec.blocks.iter();
            devices.try_for_each(|disk| blocks.refuse(&disk.device.to_string()))
        };
        readable().map_err(Error::Unreadable)
    }

    /// Whether a record of its machine cannot be read.
    pub(super) fn is_left_alone(&self, row: &Container) -> bool {
        self.check_readable(row).is_err()
    }

    /// Refuses what would change a sandbox that is left alone, or a container in it.
    pub(crate) fn check_sandbox(&self, sandbox: &SandboxId) -> Result<()> {
        if self.has_no_unreadable() {
            return Ok(());
        }
        let of_sandbox = self.of_sandbox(sandbox);
        of_sandbox
            .iter()
            .try_for_each(|row| self.check_readable(row))?;
        let containers = self.parts.table.aside();
        let mut rows = containers.rows().iter();
        match rows.find(|row| row.trace.sandbox == sandbox.as_str()) {
            Some(row) => Err(Error::Unreadable(containers.error(row))),
            None => Ok(self.parts.sandboxes.aside().refuse(sandbox.as_str())?),
        }
    }

    fn has_no_unreadable(&self) -> bool {
        let parts = &self.parts;
        parts.table.aside().rows().is_empty()
            && parts.sandboxes.aside().rows().is_empty()
            && parts.disks.aside().rows().is_empty()
            && parts.blocks.aside().rows().is_empty()
    }

    /// Whether no row, readable or not, may be that of this container.
    pub(super) fn is_gone(&self, id: &ContainerId) -> bool {
        self.parts.table.get(id).is_none() && !self.parts.table.aside().may_have(id.as_str())
    }
}
