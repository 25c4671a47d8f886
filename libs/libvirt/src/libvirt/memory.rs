//! Saved memory, and guests that do not run.
//!
//! Invariant: a restored guest has not run one instruction when the call returns.
//! Failure: libvirt's own error; what was half restored is gone then, and the file stays.

use std::path::Path;
use std::time::Duration;

use uuid::Uuid;
use virt::connect::Connect;
use virt::domain::Domain;
use virt::error::{Error as VirtError, ErrorNumber};
use virt::sys;

use super::Libvirt;
use crate::{Error, Result};

/// For writing or reading all of a machine's memory.
pub(super) const DEADLINE: Duration = Duration::from_secs(60 * 60);

/// Starts a defined domain from a file, paused.
pub(super) fn restore(connect: &Connect, xml: &str, file: &Path) -> Result<(), VirtError> {
    let flags = sys::VIR_DOMAIN_SAVE_PAUSED;
    connect.restore_domain_flags(&file.to_string_lossy(), Some(xml), flags)
}

/// Lets the guest run; libvirt refuses that to one that does.
pub(super) fn resume(domain: &Domain) -> Result<(), VirtError> {
    match domain.resume() {
        Err(error) if error.code().is(ErrorNumber::OperationInvalid) => {
            let (state, _) = crate::ffi::state(domain)?;
            if state == sys::VIR_DOMAIN_RUNNING {
                return Ok(());
            }
            Err(error)
        }
        other => other,
    }
}

impl Libvirt {
    /// Has the memory of a machine written by this call, unless it is aborted before it begins.
    pub(super) async fn write_memory(
        &self,
        call: &'static str,
        domain: Uuid,
        write: impl FnOnce(&Domain) -> Result<(), VirtError> + Send + 'static,
    ) -> Result<()> {
        let waiting = self.calls.waiting_saves.clone();
        waiting.add(domain);
        let plan = self.moving_memory(call, Some(domain));
        let written = self.about(domain, plan, move |d| {
            let begins = waiting.remove(domain);
            begins.then(|| write(d)).transpose()
        });
        let written = written.await;
        self.calls.waiting_saves.remove(domain);
        written?.ok_or_else(|| Error::Refused {
            call,
            reason: "it was stopped before it began".to_owned(),
        })
    }
}
