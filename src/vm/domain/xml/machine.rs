//! The machine itself: board, memory, CPUs in number, power management.
//!
//! Invariant: a q35 board with ACPI and APIC for every guest; what an emulator needs beside its
//! guest's memory has an end.
//! Failure: [`super::Error`] for a path that XML cannot carry.

use std::path::Path;

use podspec::MachineType;
use serde::Serialize;

use super::{Result, text};
use crate::vm::domain::{DomainSpec, Uefi};
use crate::vm::host::accelerator::Accelerator;

/// An element without content.
#[derive(Debug, Default, Serialize)]
pub(super) struct Switch {}

#[derive(Debug, Serialize)]
pub(super) struct Memory {
    #[serde(rename = "@unit")]
    unit: &'static str,
    #[serde(rename = "$text")]
    amount: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct Vcpus {
    #[serde(rename = "@placement")]
    placement: &'static str,
    #[serde(rename = "@cpuset", skip_serializing_if = "Option::is_none")]
    cpus: Option<String>,
    #[serde(rename = "@current", skip_serializing_if = "Option::is_none")]
    current: Option<u16>,
    #[serde(rename = "$text")]
    number: u16,
}

#[derive(Debug, Serialize)]
pub(super) struct Os {
    #[serde(rename = "type")]
    kind: OsType,
    #[serde(skip_serializing_if = "Option::is_none")]
    loader: Option<Loader>,
    #[serde(rename = "nvram", skip_serializing_if = "Option::is_none")]
    store: Option<String>,
}

#[derive(Debug, Serialize)]
struct Loader {
    #[serde(rename = "@readonly")]
    read_only: &'static str,
    #[serde(rename = "@type")]
    kind: &'static str,
    #[serde(rename = "$text")]
    path: String,
}

#[derive(Debug, Serialize)]
struct OsType {
    #[serde(rename = "@arch")]
    arch: &'static str,
    #[serde(rename = "@machine")]
    machine: String,
    #[serde(rename = "$text")]
    kind: &'static str,
}

#[derive(Debug, Serialize)]
pub(super) struct Features {
    acpi: Switch,
    apic: Switch,
    #[serde(skip_serializing_if = "Option::is_none")]
    tcg: Option<Tcg>,
}

#[derive(Debug, Serialize)]
struct Tcg {
    #[serde(rename = "tb-cache")]
    translations: Memory,
}

/// A guest that sleeps would look like one that hangs: it is not offered to sleep.
#[derive(Debug, Serialize)]
pub(super) struct Pm {
    #[serde(rename = "suspend-to-mem")]
    to_memory: Enabled,
    #[serde(rename = "suspend-to-disk")]
    to_disk: Enabled,
}

#[derive(Debug, Serialize)]
struct Enabled {
    #[serde(rename = "@enabled")]
    enabled: &'static str,
}

impl Memory {
    pub(super) const fn mib(amount: u64) -> Self {
        Self {
            unit: "MiB",
            amount,
        }
    }
}

impl Features {
    pub(super) fn new(accelerator: Accelerator, translations_mib: u64) -> Self {
        let tcg = Tcg {
            translations: Memory::mib(translations_mib),
        };
        Self {
            acpi: Switch {},
            apic: Switch {},
            tcg: (accelerator == Accelerator::Tcg).then_some(tcg),
        }
    }
}

impl Vcpus {
    /// On these CPUs of the node or on any. Their number is fixed unless the machine has room.
    pub(super) fn new(spec: &DomainSpec) -> Self {
        Self {
            placement: "static",
            cpus: crate::vm::host::cpus::text(&spec.cpus),
            current: spec.room.max_vcpus.map(|_| spec.room.vcpus),
            number: spec.room.max_vcpus.unwrap_or(spec.room.vcpus),
        }
    }
}

impl Os {
    /// libvirt makes no store where there is one already.
    pub(super) fn new(machine: &MachineType, uefi: Option<&Uefi>) -> Result<Self> {
        let path = |path: fn(&Uefi) -> &Path| uefi.map(|uefi| text(path(uefi))).transpose();
        let loader = path(|uefi| &uefi.code)?.map(|path| Loader {
            read_only: "yes",
            kind: "pflash",
            path,
        });
        Ok(Self {
            kind: OsType {
                arch: "x86_64",
                machine: machine.to_string(),
                kind: "hvm",
            },
            loader,
            store: path(|uefi| &uefi.store)?,
        })
    }
}

impl Pm {
    pub(super) const fn none() -> Self {
        Self {
            to_memory: Enabled { enabled: "no" },
            to_disk: Enabled { enabled: "no" },
        }
    }
}
