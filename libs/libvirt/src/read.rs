//! Lenient readers for the little that is read back from libvirt's XML.
//!
//! Invariant: what no caller reads is skipped, so that a newer libvirt never breaks a reader.
//! Failure: `None` for text that is not XML or lacks what the caller reads.

use std::path::PathBuf;

use serde::Deserialize;

use crate::MachineElement;

mod disks;

#[cfg(feature = "fake")]
pub(crate) use disks::first_disk_files;
pub(crate) use disks::{disk_targets, first_disk_alias, first_disk_can_pivot};

/// The port of the QEMU guest agent.
const AGENT_PORT: &str = "org.qemu.guest_agent.0";

/// The content of our metadata element.
pub(crate) fn mark(xml: &str) -> Option<MachineElement> {
    quick_xml::de::from_str(xml).ok()
}

/// The part of a domain definition that describes the console.
#[derive(Debug, Deserialize)]
struct Domain {
    devices: Devices,
}

#[derive(Debug, Deserialize)]
struct Devices {
    #[serde(default)]
    serial: Vec<Serial>,
}

#[derive(Debug, Deserialize)]
struct Serial {
    log: Option<Log>,
}

#[derive(Debug, Deserialize)]
struct Log {
    #[serde(rename = "@file")]
    file: PathBuf,
}

/// The file that a domain's first serial port is logged to.
pub(crate) fn console_file(xml: &str) -> Option<PathBuf> {
    let domain: Domain = quick_xml::de::from_str(xml).ok()?;
    Some(domain.devices.serial.into_iter().next()?.log?.file)
}

/// The part of a running domain that describes the ports of agents.
#[derive(Debug, Deserialize)]
struct Reachable {
    devices: Ports,
}

#[derive(Debug, Deserialize)]
struct Ports {
    #[serde(default)]
    channel: Vec<Channel>,
}

#[derive(Debug, Deserialize)]
struct Channel {
    target: Option<Port>,
}

#[derive(Debug, Deserialize)]
struct Port {
    #[serde(rename = "@name")]
    name: Option<String>,
    #[serde(rename = "@state")]
    state: Option<String>,
}

/// Whether a program in the guest has opened the port of the QEMU guest agent; `None` when there is no
/// such port, or libvirt does not know.
pub(crate) fn is_agent_port_open(xml: &str) -> Option<bool> {
    let domain: Reachable = quick_xml::de::from_str(xml).ok()?;
    let targets = domain.devices.channel.into_iter().filter_map(|c| c.target);
    let mut states = targets.filter(|port| port.name.as_deref() == Some(AGENT_PORT));
    match states.next()?.state?.as_str() {
        "connected" => Some(true),
        "disconnected" => Some(false),
        _ => None,
    }
}

/// The part of a domain definition that names the machine type.
#[derive(Debug, Deserialize)]
struct Typed {
    os: Os,
}

#[derive(Debug, Deserialize)]
struct Os {
    #[serde(rename = "type")]
    kind: OsType,
}

#[derive(Debug, Deserialize)]
struct OsType {
    #[serde(rename = "@machine")]
    machine: String,
}

/// The machine type of a domain.
pub(crate) fn machine_type(xml: &str) -> Option<String> {
    let domain: Typed = quick_xml::de::from_str(xml).ok()?;
    Some(domain.os.kind.machine)
}

/// The part of a domain definition that names the accelerator.
#[derive(Debug, Deserialize)]
struct Accelerated {
    #[serde(rename = "@type")]
    kind: String,
}

/// Whether the guest's instructions are translated by software.
#[must_use]
pub fn is_emulated(xml: &str) -> Option<bool> {
    let domain: Accelerated = quick_xml::de::from_str(xml).ok()?;
    Some(domain.kind == "qemu")
}

/// What the fake keeps of a definition.
#[cfg(feature = "fake")]
#[derive(Debug, Deserialize)]
pub(crate) struct Definition {
    uuid: String,
    pub(crate) name: String,
    #[serde(default)]
    metadata: Option<Extensions>,
}

#[cfg(feature = "fake")]
#[derive(Debug, Deserialize)]
struct Extensions {
    #[serde(rename = "vm")]
    vm: Option<MachineElement>,
}

#[cfg(feature = "fake")]
impl Definition {
    /// Reads a domain definition.
    pub(crate) fn parse(xml: &str) -> Option<Self> {
        quick_xml::de::from_str(xml).ok()
    }

    /// Its UUID, if it is one.
    pub(crate) fn uuid(&self) -> Option<uuid::Uuid> {
        self.uuid.parse().ok()
    }

    /// The content of our metadata element; `None` when the domain is not ours.
    pub(crate) fn mark(self) -> Option<MachineElement> {
        self.metadata?.vm
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_container_is_found_with_and_without_a_prefix() {
        let plain = r#"<vm container="c1" sandbox="s1"/>"#;
        let prefixed = r#"<vmlet:vm xmlns:vmlet="https://vmlet.dev/domain/1" container="c1"/>"#;
        assert_eq!(mark(plain).unwrap().container, "c1");
        assert_eq!(mark(prefixed).unwrap().container, "c1");
    }

    #[test]
    fn an_element_of_another_version_is_still_ours() {
        assert_eq!(
            mark("<vm new='x'><more/></vm>"),
            Some(MachineElement::default())
        );
        assert_eq!(mark("not xml at all <"), None);
    }

    #[test]
    fn the_port_of_the_agent_is_open_closed_or_unknown() {
        let port = |name: &str, state: &str| {
            format!(
                "<channel type='unix'><source/><target type='virtio' name='{name}'{state}/></channel>"
            )
        };
        let domain = |ports: &str| {
            let devices = format!("<devices><disk/>{ports}<memballoon/></devices>");
            is_agent_port_open(&format!("<domain id='3'>{devices}</domain>"))
        };
        let other = port("dev.vmlet.guest.0", " state='connected'");
        for (state, is_open) in [
            (" state='connected'", Some(true)),
            (" state='disconnected'", Some(false)),
            (" state='new'", None),
            ("", None),
        ] {
            let ours = port(AGENT_PORT, state);
            assert_eq!(domain(&format!("{other}{ours}")), is_open, "{state}");
        }
        assert_eq!(domain(&other), None);
        assert_eq!(domain("<channel type='spicevmc'/>"), None);
        assert_eq!(is_agent_port_open("<domain/>"), None);
    }

    #[test]
    fn the_installation_and_the_console_of_a_domain_are_found() {
        let named = mark(r#"<vm container="c1" installation="i1"/>"#).unwrap();
        assert_eq!(named.installation.as_deref(), Some("i1"));
        let serial =
            r#"<serial type="unix"><log file="/s/console/a.raw" append="on"/><target/></serial>"#;
        let domain = format!(
            "<domain id='3'><name>x</name><devices><disk/>{serial}<console/></devices></domain>"
        );
        assert_eq!(console_file(&domain), Some("/s/console/a.raw".into()));
        assert_eq!(console_file("<domain><devices/></domain>"), None);
        let domain =
            "<domain><os><type arch='x86_64' machine='pc-q35-7.2'>hvm</type></os></domain>";
        assert_eq!(machine_type(domain).as_deref(), Some("pc-q35-7.2"));
        assert_eq!(machine_type("<domain/>"), None);
        assert_eq!(
            is_emulated("<domain type='qemu' id='3'><os/></domain>"),
            Some(true)
        );
        assert_eq!(is_emulated("<domain type='kvm'/>"), Some(false));
        assert_eq!(is_emulated("<domain/>"), None);
    }
}
