//! Sizes of the fake's domains.
//!
//! Invariant: a guest gives nothing back where the test says so.
//! Failure: the errors that the real hypervisor gives in the same place.

use uuid::Uuid;

use super::Inner;
use crate::{Error, Layout, Result, Size, Spare};

impl Inner {
    pub(super) fn size(&mut self, domain: Uuid) -> Result<Size> {
        self.domain(domain)?.size.ok_or_else(unsized_domain)
    }

    pub(super) fn set_vcpus(&mut self, domain: Uuid, vcpus: u16) -> Result<()> {
        let keeps = self.guest_keeps;
        let size = self.domain(domain)?.size.as_mut();
        let size = size.ok_or_else(unsized_domain)?;
        // What is plugged in is there; what the guest is to let go is its own decision.
        if vcpus > size.vcpus || !keeps {
            size.vcpus = vcpus;
        }
        Ok(())
    }

    pub(super) fn set_memory(&mut self, domain: Uuid, bytes: u64) -> Result<()> {
        let keeps = self.guest_keeps;
        let size = self.domain(domain)?.size.as_mut();
        let spare = size.and_then(|size| size.spare.as_mut());
        let spare = spare.ok_or_else(unsized_domain)?;
        spare.requested = bytes;
        if !keeps {
            spare.plugged = bytes;
        }
        Ok(())
    }
}

/// What a machine of this description has once its guest has booted.
pub(super) fn begun(layout: Layout) -> Size {
    let spare = |(most, requested)| Spare {
        most,
        requested,
        plugged: requested,
    };
    Size {
        vcpus: layout.vcpus,
        base: layout.base,
        spare: layout.spare.map(spare),
    }
}

fn unsized_domain() -> Error {
    Error::Refused {
        call: "size",
        reason: "the domain is not running, or has no such room".to_owned(),
    }
}
