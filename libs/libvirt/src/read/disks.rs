//! Reads the disks of a domain from its XML.
//!
//! Invariant: as of every reader of libvirt's XML.
//! Failure: `None` for text that is not XML, or lacks what is requested.

use serde::Deserialize;

#[derive(Debug, Deserialize)]
struct Domain {
    devices: Devices,
}

#[derive(Debug, Deserialize)]
struct Devices {
    #[serde(default)]
    disk: Vec<Disk>,
}

#[derive(Debug, Deserialize)]
struct Disk {
    target: Target,
    alias: Option<Alias>,
    #[cfg(any(test, feature = "fake"))]
    source: Option<Source>,
}

#[derive(Debug, Deserialize)]
struct Target {
    #[serde(rename = "@dev")]
    name: String,
}

#[derive(Debug, Deserialize)]
struct Alias {
    #[serde(rename = "@name")]
    name: String,
}

#[cfg(any(test, feature = "fake"))]
#[derive(Debug, Deserialize)]
struct Source {
    #[serde(rename = "@file")]
    file: Option<std::path::PathBuf>,
}

/// The names of the disks, in order.
pub(crate) fn disk_targets(xml: &str) -> Option<Vec<String>> {
    let domain: Domain = quick_xml::de::from_str(xml).ok()?;
    let disks = domain.devices.disk.into_iter();
    Some(disks.map(|disk| disk.target.name).collect())
}

/// The emulator's name of the first disk of a running domain.
pub(crate) fn first_disk_alias(xml: &str) -> Option<String> {
    let domain: Domain = quick_xml::de::from_str(xml).ok()?;
    Some(domain.devices.disk.into_iter().next()?.alias?.name)
}

/// The file that the first disk is described with.
#[cfg(any(test, feature = "fake"))]
pub(crate) fn first_disk_file(xml: &str) -> Option<std::path::PathBuf> {
    let domain: Domain = quick_xml::de::from_str(xml).ok()?;
    domain.devices.disk.into_iter().next()?.source?.file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_disk_is_the_file_above_its_backing_files() {
        let backing = "<backingStore type='file' index='2'><format type='qcow2'/>\
             <source file='/d/root.qcow2'/><backingStore/></backingStore>";
        let first = format!(
            "<disk type='file' device='disk'><driver name='qemu' type='qcow2'/>\
             <source file='/d/layers/1.qcow2' index='3'/>{backing}<target dev='vda' bus='virtio'/>\
             <alias name='virtio-disk0'/></disk>"
        );
        let second =
            "<disk type='block' device='disk'><source dev='/dev/sdb'/><target dev='vdb'/></disk>";
        let drive = "<disk type='file' device='cdrom'><target dev='sda'/></disk>";
        let xml =
            format!("<domain id='3'><devices>{first}{second}{drive}<serial/></devices></domain>");
        assert_eq!(first_disk_file(&xml), Some("/d/layers/1.qcow2".into()));
        assert_eq!(disk_targets(&xml).unwrap(), ["vda", "vdb", "sda"]);
        assert_eq!(first_disk_alias(&xml).unwrap(), "virtio-disk0");
        assert_eq!(first_disk_file("<domain><devices/></domain>"), None);
        assert_eq!(disk_targets("<domain/>"), None);
    }
}
