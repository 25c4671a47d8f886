//! Room for more virtual CPUs and more memory while the machine runs.
//!
//! Invariant: a machine without room has none of these elements, so that memory that was saved
//! without them fits it. The first virtual CPU stays; the guest can let every other one go.
//! Failure: none.

use serde::Serialize;

use super::machine::Memory;
use crate::vm::domain::{Room, Spare};

/// The pieces in which a guest gets memory, in MiB: QEMU's smallest.
const BLOCK: u64 = 2;

/// The most memory, and the number of slots: one, which holds the device.
#[derive(Debug, Serialize)]
pub(super) struct MaxMemory {
    #[serde(rename = "@slots")]
    slots: u8,
    #[serde(rename = "@unit")]
    unit: &'static str,
    #[serde(rename = "$text")]
    amount: u64,
}

/// Each virtual CPU, plugged in or not.
#[derive(Debug, Serialize)]
pub(super) struct VcpuList {
    #[serde(rename = "vcpu")]
    all: Vec<Vcpu>,
}

#[derive(Debug, Serialize)]
struct Vcpu {
    #[serde(rename = "@id")]
    id: u16,
    #[serde(rename = "@enabled")]
    enabled: &'static str,
    #[serde(rename = "@hotpluggable")]
    hotpluggable: &'static str,
    #[serde(rename = "@order", skip_serializing_if = "Option::is_none")]
    order: Option<u16>,
}

/// One NUMA node with everything on it: libvirt adds memory only to such a node.
#[derive(Debug, Serialize)]
pub(super) struct Numa {
    cell: Cell,
}

#[derive(Debug, Serialize)]
struct Cell {
    #[serde(rename = "@id")]
    id: u8,
    #[serde(rename = "@cpus")]
    cpus: String,
    #[serde(rename = "@memory")]
    memory: u64,
    #[serde(rename = "@unit")]
    unit: &'static str,
}

/// The device through which a guest gets memory and gives it back.
#[derive(Debug, Serialize)]
pub(super) struct MemoryDevice {
    #[serde(rename = "@model")]
    model: &'static str,
    target: Target,
}

#[derive(Debug, Serialize)]
struct Target {
    size: Memory,
    node: u8,
    block: Memory,
    requested: Memory,
}

impl MaxMemory {
    pub(super) fn new(room: &Room) -> Option<Self> {
        room.spare.map(|spare| Self {
            slots: 1,
            unit: "MiB",
            amount: room.memory_mib + spare.most_mib,
        })
    }
}

/// The memory of the machine with that of its device, as libvirt counts it: it takes the sum by
/// itself when a domain is defined, and compares it when one is restored.
pub(super) const fn total(room: &Room) -> Memory {
    let spare = match room.spare {
        Some(spare) => spare.most_mib,
        None => 0,
    };
    Memory::mib(room.memory_mib + spare)
}

/// What a resumed guest used.
pub(super) fn used(room: &Room) -> Option<Memory> {
    room.spare?.used_mib.map(Memory::mib)
}

impl VcpuList {
    pub(super) fn new(room: &Room) -> Option<Self> {
        let word = |yes| if yes { "yes" } else { "no" };
        let one = |id| Vcpu {
            id,
            enabled: word(id < room.vcpus),
            hotpluggable: word(id > 0),
            // libvirt numbers them by itself when they are there, and compares the numbers when
            // the machine is restored: the last are unplugged first.
            order: (id < room.vcpus).then_some(id + 1),
        };
        let most = room.max_vcpus?;
        Some(Self {
            all: (0..most).map(one).collect(),
        })
    }
}

impl Numa {
    pub(super) fn new(room: &Room) -> Option<Self> {
        let last = room.max_vcpus.unwrap_or(room.vcpus).saturating_sub(1);
        room.spare.map(|_| Self {
            cell: Cell {
                id: 0,
                cpus: format!("0-{last}"),
                memory: room.memory_mib,
                unit: "MiB",
            },
        })
    }
}

impl MemoryDevice {
    pub(super) const fn new(spare: Spare) -> Self {
        Self {
            model: "virtio-mem",
            target: Target {
                size: Memory::mib(spare.most_mib),
                node: 0,
                block: Memory::mib(BLOCK),
                requested: Memory::mib(spare.requested_mib),
            },
        }
    }
}
