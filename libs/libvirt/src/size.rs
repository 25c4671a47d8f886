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
    number << if unit == Some("MiB") { 20 } else { 10 }
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
mod tests {
    use serde_json::json;

    use super::*;

    const MIB: u64 = 1 << 20;

    const LIVE: &str = "<domain type='qemu' id='1'><maxMemory slots='1' unit='KiB'>393216\
        </maxMemory><memory unit='KiB'>393216</memory><currentMemory unit='KiB'>196608</currentMemory>\
        <vcpu placement='static' current='2'>4</vcpu>\
        <vcpus><vcpu id='0'/><vcpu id='1'/></vcpus><cpu mode='maximum'><numa>\
        <cell id='0' cpus='0-3' memory='131072' unit='KiB'/></numa></cpu><devices>\
        <memory model='virtio-mem'><target><size unit='KiB'>262144</size><node>0</node>\
        <block unit='KiB'>2048</block><requested unit='KiB'>65536</requested>\
        <current unit='KiB'>0</current></target><alias name='virtiomem0'/></memory></devices>\
        </domain>";

    #[test]
    fn a_layout_is_read_with_and_without_room() {
        let layout = Layout::read(LIVE).unwrap();
        let expected = Layout {
            vcpus: 2,
            max_vcpus: Some(4),
            base: 128 * MIB,
            spare: Some((256 * MIB, 64 * MIB)),
            current: Some(192 * MIB),
        };
        assert_eq!(layout, expected);
        assert_eq!(Layout::read(&format!("{LIVE}\0")), Some(expected));
        let fixed = "<domain><memory unit='MiB'>64</memory><vcpu>3</vcpu><cpu mode='maximum'/>\
            <devices/></domain>";
        let expected = Layout {
            vcpus: 3,
            max_vcpus: None,
            base: 64 * MIB,
            spare: None,
            current: None,
        };
        assert_eq!(Layout::read(fixed), Some(expected));
        assert_eq!(Layout::read("<domain/>"), None);
    }

    #[test]
    fn another_request_changes_nothing_else() {
        let device = requesting(LIVE, 96 * MIB).unwrap();
        let expected = "<memory model='virtio-mem'><target><size unit='KiB'>262144</size>\
            <node>0</node><block unit='KiB'>2048</block><requested unit='KiB'>98304</requested>\
            <current unit='KiB'>0</current></target><alias name='virtiomem0'/></memory>";
        assert_eq!(device, expected);
        assert_eq!(requesting("<domain><devices/></domain>", 0), None);
    }

    #[test]
    fn the_emulator_counts_what_is_plugged() {
        let cpus =
            json!([{"type": "x"}, {"qom-path": "/machine/peripheral/vcpu1"}, {"qom-path": ""}]);
        let memory = json!({"base-memory": 7, "plugged-memory": 3});
        let data = json!({"max-size": 9, "requested-size": 5, "size": 3, "id": "virtiomem0"});
        let devices = json!([{"type": "dimm"}, {"type": "virtio-mem", "data": data}]);
        let spare = Spare {
            most: 9,
            requested: 5,
            plugged: 3,
        };
        let size = from_emulator(&cpus, &memory, &devices).unwrap();
        assert_eq!((size.vcpus, size.base, size.spare), (2, 7, Some(spare)));
        let fixed = from_emulator(&cpus, &memory, &json!([])).unwrap();
        assert_eq!(fixed.spare, None);
        let odd = json!([{"type": "virtio-mem"}]);
        assert_eq!(from_emulator(&cpus, &memory, &odd), None);
    }
}
