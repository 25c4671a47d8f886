//! Virtual CPUs and memory of running machines.
//!
//! Invariant: what a machine has is read from its emulator; what it is to have is requested from
//! libvirt, whose description saved memory is compared with.
//! Failure: libvirt's error, or [`Error::Refused`] for a machine without room.

use serde_json::{Value, json};
use uuid::Uuid;
use virt::domain::Domain;
use virt::error::{Error as VirtError, ErrorNumber};
use virt::sys;

use super::{Libvirt, monitor};
use crate::size::{from_emulator, requesting};
use crate::{Error, Result, Size};

const READ: &str = "read the size";

impl Libvirt {
    pub(super) async fn read_size(&self, domain: Uuid) -> Result<Size> {
        let cpus = self.query(domain, "query-hotpluggable-cpus").await?;
        let memory = self.query(domain, "query-memory-size-summary").await?;
        let devices = self.query(domain, "query-memory-devices").await?;
        from_emulator(&cpus, &memory, &devices).ok_or_else(|| Error::Refused {
            call: READ,
            reason: "the emulator's answer lacks a figure".to_owned(),
        })
    }

    async fn query(&self, domain: Uuid, command: &'static str) -> Result<Value> {
        let command = json!({ "execute": command }).to_string();
        let reply = self.ask_emulator(READ, domain, move |d| d.qemu_monitor_command(&command, 0));
        monitor::content(READ, &reply.await?)
    }

    pub(super) async fn request_vcpus(&self, domain: Uuid, vcpus: u16) -> Result<()> {
        let set = move |d: &Domain| {
            let set = d.set_vcpus_flags(vcpus.into(), sys::VIR_DOMAIN_VCPU_LIVE);
            unless_late(set)
        };
        self.ask_emulator("set vcpus", domain, set).await
    }

    pub(super) async fn request_memory(&self, domain: Uuid, bytes: u64) -> Result<()> {
        let set = move |d: &Domain| {
            let Some(device) = requesting(&d.xml_desc(0)?, bytes) else {
                return Ok(false);
            };
            d.update_device_flags(&device, sys::VIR_DOMAIN_AFFECT_LIVE)?;
            Ok(true)
        };
        match self.ask_emulator("set memory", domain, set).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::Refused {
                call: "set memory",
                reason: "the machine has no memory device".to_owned(),
            }),
            Err(error) => Err(error),
        }
    }
}

/// A guest that has not given a CPU up yet may still do so.
fn unless_late(result: Result<(), VirtError>) -> Result<(), VirtError> {
    match result {
        Err(error) if error.code().is(ErrorNumber::OperationTimeout) => Ok(()),
        other => other,
    }
}
