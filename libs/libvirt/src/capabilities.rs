//! What libvirt offers to machines: boards from its capabilities, CPU models from those of an
//! emulator.
//!
//! Invariant: what no caller reads is skipped, so that a newer libvirt never breaks a reader; no
//! name is there twice.
//! Failure: an empty list for text that is not XML or lacks what the caller reads.

use std::collections::BTreeSet;

use serde::Deserialize;

/// How an emulator executes a guest, as libvirt names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DomainType {
    /// By the processor.
    Kvm,
    /// By translation.
    Qemu,
}

impl DomainType {
    /// The value of the attribute `type` of a domain.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Qemu => "qemu",
        }
    }
}

/// The part of the host's capabilities that lists the machine types.
#[derive(Debug, Deserialize)]
struct Capabilities {
    #[serde(default)]
    guest: Vec<Offer>,
}

#[derive(Debug, Deserialize)]
struct Offer {
    arch: OfferArch,
}

#[derive(Debug, Deserialize)]
struct OfferArch {
    #[serde(rename = "@name")]
    name: String,
    #[serde(default)]
    machine: Vec<String>,
}

/// The part of an emulator's capabilities that lists the CPU models.
#[derive(Debug, Deserialize)]
struct EmulatorCapabilities {
    cpu: Cpu,
}

#[derive(Debug, Deserialize)]
struct Cpu {
    #[serde(default)]
    mode: Vec<Mode>,
}

#[derive(Debug, Deserialize)]
struct Mode {
    #[serde(rename = "@name")]
    name: String,
    #[serde(rename = "$value", default)]
    items: Vec<Item>,
}

/// Models are mixed with lists of what blocks them.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Item {
    Model(Model),
    #[serde(other)]
    Other,
}

#[derive(Debug, Deserialize)]
struct Model {
    #[serde(rename = "@usable")]
    usable: Option<String>,
    #[serde(rename = "$text")]
    name: Option<String>,
}

/// The versions of the board q35, oldest first. Versions that are no numbers come first.
pub(crate) fn machine_types(xml: &str) -> Vec<String> {
    let Ok(all) = quick_xml::de::from_str::<Capabilities>(xml) else {
        return Vec::new();
    };
    let ours = all.guest.into_iter().filter(|g| g.arch.name == "x86_64");
    let mut found: Vec<String> = ours
        .flat_map(|guest| guest.arch.machine)
        .filter(|name| name.starts_with("pc-q35-"))
        .collect();
    let version = |name: &str| -> Option<Vec<u32>> {
        let number = |part: &str| part.parse().ok();
        name.trim_start_matches("pc-q35-")
            .split('.')
            .map(number)
            .collect()
    };
    found.sort_by_cached_key(|name| (version(name), name.clone()));
    found.dedup();
    found
}

/// The named CPU models that a guest can have on this node, in libvirt's order.
pub(crate) fn cpu_models(xml: &str) -> Vec<String> {
    let Ok(all) = quick_xml::de::from_str::<EmulatorCapabilities>(xml) else {
        return Vec::new();
    };
    let custom = all
        .cpu
        .mode
        .into_iter()
        .filter(|mode| mode.name == "custom");
    let models = custom.flat_map(|mode| mode.items).filter_map(usable);
    let mut seen = BTreeSet::new();
    models.filter(|name| seen.insert(name.clone())).collect()
}

fn usable(item: Item) -> Option<String> {
    match item {
        Item::Model(model) if model.usable.as_deref() == Some("yes") => model.name,
        Item::Model(_) | Item::Other => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boards_come_in_the_order_of_their_versions() {
        let xml = "<capabilities><host><cpu/></host>\
            <guest><os_type>hvm</os_type><arch name='i686'><machine maxCpus='1'>pc-q35-9.9</machine></arch></guest>\
            <guest><os_type>hvm</os_type><arch name='x86_64'><wordsize>64</wordsize>\
            <machine maxCpus='288'>pc-q35-10.0</machine><machine>pc-i440fx-7.2</machine>\
            <machine canonical='pc-q35-10.0'>q35</machine><machine>pc-q35-7.2</machine>\
            <machine>pc-q35-jammy</machine><domain type='qemu'><machine>pc-q35-7.2</machine></domain></arch></guest>\
            </capabilities>";
        let found = machine_types(xml);
        assert_eq!(found, ["pc-q35-jammy", "pc-q35-7.2", "pc-q35-10.0"]);
        assert!(machine_types("<capabilities/>").is_empty());
        assert!(machine_types("nonsense").is_empty());
    }

    #[test]
    fn models_that_a_guest_can_have_are_those_of_the_mode_custom_that_are_usable() {
        let xml = "<domainCapabilities><path>/x</path><domain>kvm</domain><cpu>\
            <mode name='host-passthrough' supported='yes'><enum name='hostPassthroughMigratable'/></mode>\
            <mode name='maximum' supported='yes'><enum name='x'>\n<value>on</value>\n</enum></mode>\n\
            <mode name='none' supported='no'/>\
            <mode name='host-model' supported='yes'><model fallback='forbid' usable='yes'>Host</model>\
            <vendor>AMD</vendor><feature policy='require' name='x2apic'/></mode>\
            <mode name='custom' supported='yes'>\
            \n  <model usable='yes' vendor='unknown'>qemu64</model>\n  \
            <model usable='no' vendor='Intel'>Haswell</model>\
            <blockers model='Haswell'><feature name='rtm'/></blockers>\
            <model usable='unknown' vendor='Intel'>Broadwell</model>\
            <model usable='yes' vendor='AMD' canonical='EPYC-v1'>EPYC</model>\
            <model usable='yes' vendor='AMD'>EPYC</model>\
            </mode></cpu><devices/></domainCapabilities>";
        assert_eq!(cpu_models(xml), ["qemu64", "EPYC"]);
        assert!(cpu_models("<domainCapabilities/>").is_empty());
        assert!(cpu_models("nonsense").is_empty());
    }
}
