//! Saved memory, and guests that do not run.
//!
//! Invariant: a restored guest has not run one instruction when the call returns.
//! Failure: libvirt's own error; what was half restored is gone then, and the file stays.

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use virt::connect::Connect;
use virt::domain::Domain;
use virt::error::{Error as VirtError, ErrorNumber};
use virt::sys;

use super::Libvirt;
use crate::{Error, Result};

/// For writing or reading all of a machine's memory.
pub(super) const DEADLINE: Duration = Duration::from_secs(60 * 60);

impl Libvirt {
    /// Starts a defined domain from a file, paused, unless that is given up before it begins.
    pub(super) async fn restore_unless(
        &self,
        xml: String,
        file: PathBuf,
        given_up: impl Future<Output = ()> + Send,
    ) -> Result<()> {
        let waits = Arc::new(AtomicBool::new(true));
        let begins = Arc::clone(&waits);
        let plan = self.moving_memory("restore", None);
        let mut restored = pin!(self.calls.run(plan, move |connect| {
            if begins.swap(false, Ordering::AcqRel) {
                restore(connect, &xml, &file).map(|()| true)
            } else {
                Ok(false)
            }
        }));
        let is_restored = tokio::select! {
            restored = &mut restored => restored?,
            () = given_up => {
                if waits.swap(false, Ordering::AcqRel) {
                    false
                } else {
                    restored.await?
                }
            }
        };
        if is_restored {
            return Ok(());
        }
        Err(Error::Refused {
            call: "restore",
            reason: "it was given up before it began".to_owned(),
        })
    }
}

fn restore(connect: &Connect, xml: &str, file: &Path) -> Result<(), VirtError> {
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
