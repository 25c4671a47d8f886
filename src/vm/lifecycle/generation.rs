//! The VM generation ID of a machine that starts.
//!
//! Invariant: saved memory fits only the devices that it was saved with, and earlier versions had none for this ID.
//! Failure: that of the disk's record.

use uuid::Uuid;

use crate::platform::Platform;
use crate::vm::domain::VM_GENERATION_ID;
use crate::vm::error::Result;
use crate::vm::model::Container;
use crate::vm::service::Containers;

impl<P: Platform> Containers<P> {
    /// The ID for a machine, if its guest has one. `saved`: the description that goes with the memory which it resumes.
    pub(super) async fn generation(
        &self,
        row: &Container,
        saved: Option<&str>,
    ) -> Result<Option<Uuid>> {
        let Some(vm) = row.vm() else {
            return Ok(None);
        };
        if saved.is_some_and(|xml| !xml.contains(VM_GENERATION_ID)) {
            return Ok(None);
        }
        Ok(Some(self.parts.disks.generation(vm).await?))
    }
}
