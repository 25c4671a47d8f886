//! Virtual CPUs and memory of machines: what a description says, and what an emulator has.
//!
//! Invariant: memory beyond that of the start is one virtio-mem device, on the NUMA node of the
//! rest; amounts are bytes.
//! Failure: `None` for text that is not a description, or has no such device.

use serde::Deserialize;
use serde_json::Value;

/// Virtual CPUs and memory of a running machine, as its emulator has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Virtual CPUs that are plugged.
    pub vcpus: u16,
    /// Bytes of memory that the machine was started with.
    pub base: u64,
    /// Memory on top of that; `None`: the memory is fixed.
    pub spare: Option<Spare>,
}

/// Memory that a guest gets and gives back while it runs, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spare {
    /// The most that can be requested.
    pub most: u64,
    /// What the guest is requested to use.
    pub requested: u64,
    /// What it uses.
    pub plugged: u64,
}

/// Virtual CPUs and memory in a description.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Virtual CPUs that are plugged.
    pub vcpus: u16,
    /// The most that can be plugged; `None`: their number is fixed.
    pub max_vcpus: Option<u16>,
    /// Bytes of memory that the machine starts with.
    pub base: u64,
    /// The most memory on top of that, and what is requested of it, in bytes.
    pub spare: Option<(u64, u64)>,
    /// Bytes that the guest used when libvirt wrote the description, which it compares when it
    /// restores the machine.
    pub current: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct Domain {
    memory: Amount,
    #[serde(rename = "currentMemory")]
    current: Option<Amount>,
    vcpu: Vcpu,
    vcpus: Option<Listed>,
    cpu: Option<Cpu>,
    devices: Devices,
}

#[derive(Debug, Deserialize)]
struct Amount {
    #[serde(rename = "@unit")]
    unit: Option<String>,
    #[serde(rename = "$text")]
    number: u64,
}

#[derive(Debug, Deserialize)]
struct Vcpu {
    #[serde(rename = "@current")]
    current: Option<u16>,
    #[serde(rename = "$text")]
    most: u16,
}

#[derive(Debug, Deserialize)]
struct Listed {}

#[derive(Debug, Deserialize)]
struct Cpu {
    numa: Option<Numa>,
}

#[derive(Debug, Deserialize)]
struct Numa {
    cell: Cell,
}

#[derive(Debug, Deserialize)]
struct Cell {
    #[serde(rename = "@unit")]
    unit: Option<String>,
    #[serde(rename = "@memory")]
    memory: u64,
}

#[derive(Debug, Deserialize)]
struct Devices {
    memory: Option<Memory>,
}

#[derive(Debug, Deserialize)]
struct Memory {
    target: Target,
}

#[derive(Debug, Deserialize)]
struct Target {
    size: Amount,
    requested: Amount,
}

impl Layout {
    /// Reads a description, as written for libvirt or by it.
    pub fn read(xml: &str) -> Option<Self> {
        let domain: Domain = quick_xml::de::from_str(xml.trim_end_matches('\0')).ok()?;
        let numa = domain.cpu.and_then(|cpu| cpu.numa);
        let base = numa.map(|numa| bytes(numa.cell.unit.as_deref(), numa.cell.memory));
        let spare = domain.devices.memory.map(|memory| memory.target);
        Some(Self {
            vcpus: domain.vcpu.current.unwrap_or(domain.vcpu.most),
            max_vcpus: domain.vcpus.map(|_| domain.vcpu.most),
            base: base.unwrap_or_else(|| domain.memory.bytes()),
            spare: spare.map(|target| (target.size.bytes(), target.requested.bytes())),
            current: domain.current.map(|current| current.bytes()),
        })
    }
}

impl Amount {
    fn bytes(&self) -> u64 {
        bytes(self.unit.as_deref(), self.number)
    }
}

/// libvirt writes KiB, and we MiB.
fn bytes(unit: Option<&str>, number: u64) -> u64 {
    number.saturating_mul(if unit == Some("MiB") {
        1 << 20
    } else {
        1 << 10
    })
}

/// The description of a running machine's memory device, with another request.
pub(crate) fn requesting(xml: &str, bytes: u64) -> Option<String> {
    let (_, from) = xml.split_once("<memory model='virtio-mem'")?;
    let (device, _) = from.split_once("</memory>")?;
    let (before, rest) = device.split_once("<requested")?;
    let (_, after) = rest.split_once("</requested>")?;
    let kib = bytes >> 10;
    Some(format!(
        "<memory model='virtio-mem'{before}<requested unit='KiB'>{kib}</requested>{after}</memory>"
    ))
}

/// The size of a machine, from the emulator's answers about CPUs, memory and memory devices.
pub(crate) fn from_emulator(cpus: &Value, memory: &Value, devices: &Value) -> Option<Size> {
    let plugged = cpus.as_array()?.iter();
    let plugged = plugged.filter(|slot| slot.get("qom-path").is_some());
    let mut devices = devices.as_array()?.iter();
    let device = devices.find(|device| device["type"] == "virtio-mem");
    let spare = device.map(|device| {
        let number = |key: &str| device["data"][key].as_u64();
        Some(Spare {
            most: number("max-size")?,
            requested: number("requested-size")?,
            plugged: number("size")?,
        })
    });
    Some(Size {
        vcpus: u16::try_from(plugged.count()).ok()?,
        base: memory["base-memory"].as_u64()?,
        spare: match spare {
            Some(read) => Some(read?),
            None => None,
        },
    })
}

#[cfg(test)]
mod tests;
