//! Reads the disks of a domain from its XML.
//!
//! Invariant: as of every reader of libvirt's XML.
//! Failure: `None` for text that is not XML, or lacks what the caller reads.

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
    mirror: Option<Mirror>,
    #[cfg(any(test, feature = "fake"))]
    source: Option<Source>,
    #[cfg(any(test, feature = "fake"))]
    #[serde(rename = "backingStore")]
    backing: Option<Backing>,
}

#[cfg(any(test, feature = "fake"))]
#[derive(Debug, Deserialize)]
struct Backing {
    source: Option<Source>,
    #[serde(rename = "backingStore")]
    next: Option<Box<Backing>>,
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

#[derive(Debug, Deserialize)]
struct Mirror {
    #[serde(rename = "@ready")]
    ready: Option<String>,
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

/// Whether libvirt knows that a copy of the file that the first disk writes to is complete.
pub(crate) fn first_disk_can_pivot(xml: &str) -> bool {
    let domain = quick_xml::de::from_str::<Domain>(xml).ok();
    let first = domain.and_then(|domain| domain.devices.disk.into_iter().next());
    let mirror = first.and_then(|disk| disk.mirror);
    mirror.is_some_and(|mirror| mirror.ready.as_deref() == Some("yes"))
}

/// The files that the first disk is described with, the one that the guest writes to first.
#[cfg(any(test, feature = "fake"))]
pub(crate) fn first_disk_files(xml: &str) -> Option<Vec<std::path::PathBuf>> {
    let domain: Domain = quick_xml::de::from_str(xml).ok()?;
    let disk = domain.devices.disk.into_iter().next()?;
    let mut files = vec![disk.source?.file?];
    let mut next = disk.backing;
    while let Some(backing) = next {
        files.extend(backing.source.and_then(|source| source.file));
        next = backing.next.map(|next| *next);
    }
    Some(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_can_pivot_when_libvirt_says_that_its_mirror_is_ready() {
        let xml = |mirror: &str| {
            let target = "<target dev='vda' bus='virtio'/>";
            let other = "<disk><mirror ready='yes'/><target dev='vdb'/></disk>";
            format!("<domain><devices><disk>{mirror}{target}</disk>{other}</devices></domain>")
        };
        let source = "<format type='qcow2'/><source file='/d/root.qcow2'/>";
        let mirror =
            |ready| format!("<mirror type='file' job='active-commit'{ready}>{source}</mirror>");
        assert!(first_disk_can_pivot(&xml(&mirror(" ready='yes'"))));
        assert!(!first_disk_can_pivot(&xml(&mirror(" ready='pivot'"))));
        assert!(!first_disk_can_pivot(&xml(&mirror(""))));
        assert!(!first_disk_can_pivot(&xml("")));
        assert!(!first_disk_can_pivot("<domain"));
    }

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
        let files = ["/d/layers/1.qcow2", "/d/root.qcow2"].map(Into::into);
        assert_eq!(first_disk_files(&xml), Some(files.into()));
        assert_eq!(disk_targets(&xml).unwrap(), ["vda", "vdb", "sda"]);
        assert_eq!(first_disk_alias(&xml).unwrap(), "virtio-disk0");
        assert_eq!(first_disk_files("<domain><devices/></domain>"), None);
        assert_eq!(disk_targets("<domain/>"), None);
    }
}
