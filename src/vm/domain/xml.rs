//! The domain definition as libvirt reads it.
//!
//! Invariant: everything is written by a serialiser that escapes; no text of ours is pasted into
//! XML. No device claims a slot of `pcie.0`: 0x10 to 0x19 are for what `vmwrapper` adds, NICs and
//! directories by 9p.
//! Failure: [`Error`] for what XML cannot carry.

use std::path::Path;

use serde::Serialize;

mod chardev;
mod cpu;
mod device;
mod disk;
mod machine;
mod metadata;
mod qemu;
mod room;
mod seclabel;
mod share;

use super::DomainSpec;
use crate::vm::host::accelerator::Accelerator;
use chardev::{Channel, Serial};
use cpu::{Clock, Cpu};
use device::{Balloon, Controller, Rng};
use disk::Disk;
use machine::{Features, Memory, Os, Pm, Switch, Vcpus};
use metadata::Metadata;
use qemu::{Capabilities, CommandLine};
use room::{MaxMemory, MemoryDevice, VcpuList};
use seclabel::SecLabel;
use share::{Filesystem, MemoryBacking};

/// A domain that cannot be written as XML.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A path is not UTF-8; libvirt's XML has no way to say it.
    #[error("path {0} is not UTF-8")]
    Path(String),
    /// A text holds a character that XML 1.0 does not allow, not even escaped.
    #[error("character {0:?} cannot be written in XML")]
    Character(char),
    /// The serialiser gave up.
    #[error("write the domain's XML")]
    Write(#[from] quick_xml::SeError),
}

/// Outcome of rendering.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The root element.
#[derive(Debug, Serialize)]
#[serde(rename = "domain")]
struct Domain {
    #[serde(rename = "@type")]
    kind: &'static str,
    #[serde(rename = "@xmlns:qemu")]
    qemu_namespace: &'static str,
    name: String,
    uuid: String,
    title: String,
    metadata: Metadata,
    #[serde(rename = "maxMemory", skip_serializing_if = "Option::is_none")]
    max_memory: Option<MaxMemory>,
    memory: Memory,
    #[serde(rename = "currentMemory", skip_serializing_if = "Option::is_none")]
    current_memory: Option<Memory>,
    #[serde(rename = "memoryBacking", skip_serializing_if = "Option::is_none")]
    memory_backing: Option<MemoryBacking>,
    vcpu: Vcpus,
    #[serde(skip_serializing_if = "Option::is_none")]
    vcpus: Option<VcpuList>,
    os: Os,
    features: Features,
    cpu: Cpu,
    clock: Clock,
    on_poweroff: &'static str,
    on_reboot: &'static str,
    on_crash: &'static str,
    pm: Pm,
    devices: Devices,
    #[serde(skip_serializing_if = "Option::is_none")]
    seclabel: Option<SecLabel>,
    #[serde(rename = "qemu:commandline")]
    command_line: CommandLine,
    #[serde(rename = "qemu:capabilities", skip_serializing_if = "Option::is_none")]
    capabilities: Option<Capabilities>,
}

#[derive(Debug, Serialize)]
struct Devices {
    emulator: String,
    #[serde(rename = "disk")]
    disks: Vec<Disk>,
    #[serde(rename = "filesystem")]
    shares: Vec<Filesystem>,
    #[serde(rename = "controller")]
    controllers: [Controller; 1],
    serial: Serial,
    #[serde(rename = "channel")]
    agents: Vec<Channel>,
    rng: Rng,
    memballoon: Balloon,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<MemoryDevice>,
}

impl Domain {
    pub(in crate::vm) fn new(spec: &DomainSpec) -> Result<Self> {
        let cpu = Cpu::new(spec);
        Ok(Self {
            kind: match spec.accelerator {
                Accelerator::Kvm => "kvm",
                Accelerator::Tcg => "qemu",
            },
            qemu_namespace: qemu::NAMESPACE,
            name: spec.name.clone(),
            uuid: spec.uuid.to_string(),
            title: spec.title(),
            metadata: Metadata::new(spec),
            max_memory: MaxMemory::new(&spec.room),
            memory: room::total(&spec.room),
            current_memory: room::used(&spec.room),
            memory_backing: MemoryBacking::new(spec),
            vcpu: Vcpus::new(spec),
            vcpus: VcpuList::new(&spec.room),
            os: Os::new(&spec.machine_type, spec.uefi.as_ref())?,
            features: Features::new(spec.accelerator, spec.translations_mib),
            capabilities: (!cpu.is_verified()).then(Capabilities::without_cpu_questions),
            cpu,
            clock: Clock::new(spec.accelerator),
            on_poweroff: "destroy",
            on_reboot: "restart",
            on_crash: "destroy",
            pm: Pm::none(),
            devices: Devices {
                emulator: text(&spec.emulator)?,
                disks: disk::all(&spec.root, &spec.disks)?,
                shares: share::all(&spec.shares)?,
                controllers: [Controller::no_usb()],
                serial: Serial::new(&spec.console)?,
                agents: agents(spec)?,
                rng: Rng::default(),
                memballoon: Balloon::default(),
                memory: spec.room.spare.map(MemoryDevice::new),
            },
            seclabel: spec.owner.map(SecLabel::new),
            command_line: CommandLine::new(spec),
        })
    }
}

/// The QEMU guest agent's channel comes first: its name in the guest stays the same.
fn agents(spec: &DomainSpec) -> Result<Vec<Channel>> {
    let of_qemu = spec.guest_agent.as_deref().map(Channel::guest_agent);
    let ours = spec.guest_socket.as_deref().map(Channel::vmlet_guest);
    of_qemu.into_iter().chain(ours).collect()
}

/// The definition for libvirt, indented for the people who will read it in `virsh dumpxml`.
pub fn to_xml(spec: &DomainSpec) -> Result<String> {
    let domain = Domain::new(spec)?;
    let mut out = String::new();
    let mut serializer = quick_xml::se::Serializer::new(&mut out);
    serializer.indent(' ', 2);
    domain.serialize(serializer)?;
    match out.chars().find(|c| !is_xml(*c)) {
        Some(odd) => Err(Error::Character(odd)),
        None => Ok(out),
    }
}

/// Whether XML 1.0 has the character at all.
const fn is_xml(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\r' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..)
}

fn text(path: &Path) -> Result<String> {
    match path.to_str() {
        Some(text) => Ok(text.to_owned()),
        None => Err(Error::Path(path.display().to_string())),
    }
}

#[cfg(test)]
mod tests;
