//! The virtual machine that a pod requests.
//!
//! Invariant: a [`Machine`] can be built: CPU count and memory are within what QEMU starts.
//! Failure: an [`AnnotationError`] for a value the pod gave; pod resources that are too small for
//! any machine are reported the same way, under their own name.

use std::collections::BTreeMap;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::annotations::{AnnotationError, Annotations, Key, MEMORY_LIMIT};
use crate::machine_type::MachineType;
use crate::quantity::{QuantityError, parse_quantity};

/// Smallest memory that any guest boots in.
const MIN_MEMORY: Mib = Mib(32);

/// Largest memory accepted: 16 TiB.
const MAX_MEMORY: Mib = Mib(16 * 1024 * 1024);

/// Number of virtual CPUs, 1–255.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Vcpus(u8);

/// Memory in MiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Mib(u64);

/// CPU model that the guest sees.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CpuModel {
    /// What suits the accelerator.
    #[default]
    Default,
    /// The host's model and features.
    HostModel,
}

/// Firmware that boots a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Firmware {
    /// A BIOS, which boots from code in the first sector of the root disk.
    Bios,
    /// UEFI, which boots from a file in the system partition of the root disk.
    Uefi,
}

/// How `vmlet-guest` gets into a guest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GuestAgent {
    /// cloud-init installs it where the guest has a seed image.
    #[default]
    Auto,
    /// It is in the image, or is not needed.
    Image,
    /// The guest has no port for it.
    Off,
}

/// How the root disk of a pod is made from its image.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FastDeploy {
    /// It has only differences from the image, and is made at once.
    #[default]
    Linked,
    /// It has all of the image.
    Direct,
}

/// What becomes of a root claim that has the content of another image than the pod's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RootContent {
    /// It boots as it is.
    #[default]
    Keep,
    /// The pod's image is written over it.
    Replace,
}

/// What applies when the pod specifies nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Defaults {
    /// Virtual CPUs.
    pub vcpus: Vcpus,
    /// Memory.
    pub memory: Mib,
    /// CPU model.
    pub cpu_model: CpuModel,
}

/// The part of the pod's resources that sizes a machine; 0 means "not given", as in CRI.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodResources {
    /// CPU time per period, in microseconds.
    pub cpu_quota: i64,
    /// The period, in microseconds.
    pub cpu_period: i64,
    /// Memory limit in bytes.
    pub memory_limit: i64,
}

/// A machine that can be built.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Virtual CPUs.
    pub vcpus: Vcpus,
    /// Memory.
    pub memory: Mib,
    /// Most virtual CPUs that it can get while it runs, not less than `vcpus`; `None`: their number
    /// is fixed.
    #[serde(default)]
    pub max_vcpus: Option<Vcpus>,
    /// Most memory that it can get while it runs, not less than `memory`; `None`: its memory is
    /// fixed.
    #[serde(default)]
    pub max_memory: Option<Mib>,
    /// CPU model.
    pub cpu_model: CpuModel,
    /// The board.
    #[serde(default)]
    pub machine_type: MachineType,
    /// Requested firmware; `None`: what the image needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub firmware: Option<Firmware>,
    /// Requested size of the root disk in bytes; the image's virtual size is used when it is
    /// larger.
    pub root_size: Option<u64>,
    /// Requested SMBIOS system UUID.
    pub system_uuid: Option<Uuid>,
    /// How the guest gets `vmlet-guest`.
    #[serde(default)]
    pub guest_agent: GuestAgent,
}

impl Vcpus {
    /// One virtual CPU.
    pub const ONE: Self = Self(1);

    /// The number.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// From a quota as CRI gives it: whole CPUs, rounded up, at most 255; `None` when not limited.
    fn from_quota(quota: i64, period: i64) -> Option<Self> {
        if quota <= 0 || period <= 0 {
            return None;
        }
        let whole = quota.unsigned_abs().div_ceil(period.unsigned_abs());
        Some(Self(u8::try_from(whole).unwrap_or(u8::MAX)))
    }
}

impl Mib {
    /// A size in MiB.
    pub const fn new(mib: u64) -> Self {
        Self(mib)
    }

    /// The number of MiB.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The size in bytes.
    pub const fn bytes(self) -> u64 {
        self.0 * 1024 * 1024
    }

    /// Whole MiB in a number of bytes; what is over is dropped, so that a limit is never exceeded.
    const fn from_bytes(bytes: u64) -> Self {
        Self(bytes / (1024 * 1024))
    }

    fn checked(self) -> Result<Self, String> {
        if (MIN_MEMORY..=MAX_MEMORY).contains(&self) {
            return Ok(self);
        }
        Err(format!(
            "a virtual machine needs {} MiB to {} MiB of memory",
            MIN_MEMORY.0, MAX_MEMORY.0
        ))
    }
}

impl Machine {
    /// Reads annotations first, then resources, then defaults.
    pub fn from_pod(
        annotations: &BTreeMap<String, String>,
        resources: PodResources,
        defaults: Defaults,
    ) -> Result<Self, AnnotationError> {
        let annotations = Annotations::new(annotations);
        let vcpus = annotations.get(Key::VcpuCount)?;
        let vcpus = vcpus.or_else(|| Vcpus::from_quota(resources.cpu_quota, resources.cpu_period));
        let vcpus = vcpus.unwrap_or(defaults.vcpus);
        let memory = match annotations.get(Key::Memory)? {
            Some(memory) => memory,
            None => resources.memory()?.unwrap_or(defaults.memory),
        };
        Ok(Self {
            vcpus,
            memory,
            max_vcpus: annotations.get(Key::MaxVcpus)?.map_or(Ok(None), |most| {
                let has = format!("{} virtual CPUs", vcpus.get());
                at_least(annotations, Key::MaxVcpus, most, &vcpus, &has).map(Some)
            })?,
            max_memory: annotations.get(Key::MaxMemory)?.map_or(Ok(None), |most| {
                let has = format!("{} MiB of memory", memory.get());
                at_least(annotations, Key::MaxMemory, most, &memory, &has).map(Some)
            })?,
            cpu_model: annotations
                .get(Key::CpuModel)?
                .unwrap_or(defaults.cpu_model),
            machine_type: annotations.get(Key::MachineType)?.unwrap_or_default(),
            firmware: annotations.get(Key::Firmware)?,
            root_size: annotations
                .get::<RootSize>(Key::RootVolumeSize)?
                .map(|size| size.0),
            system_uuid: match annotations.get(Key::BiosUuid)? {
                Some(uuid) => Some(uuid),
                None => annotations.get(Key::SystemUuid)?,
            },
            guest_agent: annotations.get(Key::GuestAgent)?.unwrap_or_default(),
        })
    }
}

/// A maximum, if it is not below what the machine begins with.
fn at_least<T: PartialOrd>(
    annotations: Annotations<'_>,
    key: Key,
    most: T,
    first: &T,
    has: &str,
) -> Result<T, AnnotationError> {
    if most >= *first {
        return Ok(most);
    }
    Err(annotations.refuse(key, format!("the machine begins with {has}")))
}

impl PodResources {
    fn memory(self) -> Result<Option<Mib>, AnnotationError> {
        let Some(limit) = u64::try_from(self.memory_limit)
            .ok()
            .filter(|limit| *limit > 0)
        else {
            return Ok(None);
        };
        let refuse = |reason| AnnotationError {
            name: MEMORY_LIMIT.to_owned(),
            value: written(limit),
            reason,
        };
        Mib::from_bytes(limit).checked().map(Some).map_err(refuse)
    }
}

/// Bytes as people write them in a pod.
fn written(bytes: u64) -> String {
    let units = [(30, "Gi"), (20, "Mi"), (10, "Ki")];
    let whole = units
        .into_iter()
        .find(|(shift, _)| bytes.trailing_zeros() >= *shift);
    whole.map_or_else(
        || bytes.to_string(),
        |(shift, unit)| format!("{}{unit}", bytes >> shift),
    )
}

impl FromStr for Vcpus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let count = text.trim().parse().ok().filter(|count: &u8| *count > 0);
        count
            .map(Self)
            .ok_or_else(|| "a whole number from 1 to 255 is allowed".to_owned())
    }
}

impl FromStr for Mib {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bytes = parse_quantity(text.trim()).map_err(|e: QuantityError| e.to_string())?;
        Self::from_bytes(bytes).checked()
    }
}

impl FromStr for CpuModel {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text {
            "" => Ok(Self::Default),
            "host-model" => Ok(Self::HostModel),
            _ => Err("only \"host-model\" or nothing is allowed"),
        }
    }
}

impl FromStr for Firmware {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text {
            "bios" => Ok(Self::Bios),
            "uefi" => Ok(Self::Uefi),
            _ => Err("\"bios\" or \"uefi\" is allowed"),
        }
    }
}

impl FromStr for GuestAgent {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text {
            "auto" => Ok(Self::Auto),
            "image" => Ok(Self::Image),
            "off" => Ok(Self::Off),
            _ => Err("\"auto\", \"image\" or \"off\" is allowed"),
        }
    }
}

impl FromStr for FastDeploy {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text {
            "linked" => Ok(Self::Linked),
            "direct" => Ok(Self::Direct),
            _ => Err("\"linked\" or \"direct\" is allowed"),
        }
    }
}

impl FromStr for RootContent {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text {
            "keep" => Ok(Self::Keep),
            "replace" => Ok(Self::Replace),
            _ => Err("\"keep\" or \"replace\" is allowed"),
        }
    }
}

/// Size of a root disk in bytes.
struct RootSize(u64);

impl FromStr for RootSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bytes = parse_quantity(text.trim()).map_err(|e| e.to_string())?;
        if bytes == 0 || i64::try_from(bytes).is_err() {
            return Err("a size from 1 byte to 8 EiB is allowed".to_owned());
        }
        Ok(Self(bytes))
    }
}

impl TryFrom<u64> for Vcpus {
    type Error = String;

    fn try_from(count: u64) -> Result<Self, String> {
        count.to_string().parse()
    }
}

#[cfg(test)]
mod tests;
