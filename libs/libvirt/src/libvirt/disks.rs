//! The files of a running machine's first disk.
//!
//! Invariant: only the first disk is switched; the others stay as they are. The emulator says which file its
//! disk writes to, never libvirt: one that is killed after a switch does not know of it. libvirt passes the
//! request on only when no other change of the domain is in progress.
//! Failure: libvirt's error; after one of a switch, only a look shows which file the disk has.

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Value, json};
use uuid::Uuid;
use virt::domain::Domain;
use virt::error::Error as VirtError;

use super::monitor::content;
use super::{Libvirt, absent_is_none};
use crate::error::readable;
use crate::{Error, MemorySwitch, Result, ffi, read};

/// Requests the emulator to list its disks with the files that they write to.
const LIST: &str = r#"{"execute":"query-block"}"#;

/// Requests the emulator to list what its disks are made of, each part by itself.
pub(super) const NODES: &str = r#"{"execute":"query-named-block-nodes","arguments":{"flat":true}}"#;

/// What the name of a file begins with that stands for more than its path.
pub(super) const OPTIONS: &str = "json:";

/// What is to be switched, as libvirt reads it.
#[derive(Debug, Serialize)]
#[serde(rename = "domainsnapshot")]
struct Switch<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<MemoryFile<'a>>,
    disks: Disks<'a>,
}

#[derive(Debug, Serialize)]
struct MemoryFile<'a> {
    #[serde(rename = "@snapshot")]
    mode: &'static str,
    #[serde(rename = "@file")]
    file: &'a str,
}

#[derive(Debug, Serialize)]
struct Disks<'a> {
    disk: Vec<Disk<'a>>,
}

#[derive(Debug, Serialize)]
struct Disk<'a> {
    #[serde(rename = "@name")]
    name: &'a str,
    #[serde(rename = "@snapshot")]
    mode: &'static str,
    #[serde(rename = "@type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    driver: Option<Driver>,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<Source<'a>>,
}

#[derive(Debug, Serialize)]
struct Driver {
    #[serde(rename = "@type")]
    kind: &'static str,
}

#[derive(Debug, Serialize)]
struct Source<'a> {
    #[serde(rename = "@file")]
    file: &'a str,
}

impl Libvirt {
    pub(super) async fn switch_first_disk(&self, domain: Uuid, file: PathBuf) -> Result<()> {
        const CALL: &str = "switch disk";
        let switch = self.describe_switch(CALL, domain, &file, None).await?;
        let switched = self.ask_emulator(CALL, domain, move |d| ffi::switch_disks(d, &switch));
        switched.await
    }

    pub(super) async fn switch_with_memory(&self, domain: Uuid, to: MemorySwitch) -> Result<()> {
        const CALL: &str = "save memory and switch disk";
        let memory = Some(to.memory.as_path());
        let switch = self.describe_switch(CALL, domain, &to.disk, memory).await?;
        let write = move |d: &Domain| ffi::switch_with_memory(d, &switch, to.runs);
        self.write_memory(CALL, domain, write).await
    }

    async fn describe_switch(
        &self,
        call: &'static str,
        domain: Uuid,
        file: &Path,
        memory: Option<&Path>,
    ) -> Result<String> {
        let refused = |reason: &str| Error::Refused {
            call,
            reason: reason.to_owned(),
        };
        let xml = self.description(domain).await?;
        let xml = xml.ok_or(Error::NoDomain(domain))?;
        let targets = read::disk_targets(&xml).ok_or_else(|| refused("its XML is not read"))?;
        let switch = switch(&targets, file, memory);
        switch.ok_or_else(|| refused("it has no first disk"))
    }

    pub(super) async fn first_disk(&self, domain: Uuid) -> Result<Option<PathBuf>> {
        const CALL: &str = "look at disk files";
        let look = |d: &Domain| -> Result<Option<(String, String, String)>, VirtError> {
            if !d.is_active()? {
                return Ok(None);
            }
            let disks = d.qemu_monitor_command(LIST, 0)?;
            let nodes = d.qemu_monitor_command(NODES, 0)?;
            Ok(Some((d.xml_desc(0)?, disks, nodes)))
        };
        let looked = self.ask_emulator(CALL, domain, look).await;
        let Some((xml, disks, nodes)) = absent_is_none(looked)?.flatten() else {
            return Ok(None);
        };
        let disks = content(CALL, &disks)?;
        // An emulator that refuses this request names most files in the list of its disks.
        let nodes = content(CALL, &nodes).unwrap_or_default();
        let alias = read::first_disk_alias(&xml);
        let file = alias.and_then(|alias| file_of(&disks, &nodes, &alias));
        file.map(Some).ok_or_else(|| Error::Refused {
            call: CALL,
            reason: "the emulator does not say which file its first disk has".to_owned(),
        })
    }

    pub(super) async fn flush_first_disk(&self, domain: Uuid) -> Result<()> {
        const CALL: &str = "flush disk";
        let refused = |reason: &str| Error::Refused {
            call: CALL,
            reason: readable(reason),
        };
        let look = |d: &Domain| Ok((d.xml_desc(0)?, d.qemu_monitor_command(LIST, 0)?));
        let looked = self.ask_emulator(CALL, domain, look).await?;
        let disks = content(CALL, &looked.1)?;
        let alias = read::first_disk_alias(&looked.0);
        let device = alias.and_then(|alias| device_of(&disks, &alias));
        let device = device.ok_or_else(|| refused("the emulator does not name its first disk"))?;
        let request = flush(&device);
        let flush = move |d: &Domain| d.qemu_monitor_command(&request, 0);
        let reply = content(CALL, &self.ask_emulator(CALL, domain, flush).await?)?;
        // It prints errors only.
        match reply.as_str().map(str::trim) {
            Some("") => Ok(()),
            words => Err(refused(words.unwrap_or("the emulator gave no reason"))),
        }
    }
}

/// A disk of the emulator, by the name that libvirt has for its device.
fn disk_of<'a>(disks: &'a Value, alias: &str) -> Option<&'a Value> {
    let is_meant = |disk: &&Value| {
        let device = disk.get("qdev").and_then(Value::as_str).unwrap_or_default();
        device.split('/').any(|part| part == alias)
    };
    disks.as_array()?.iter().find(is_meant)
}

/// The name that the emulator has for the device of a disk.
fn device_of(disks: &Value, alias: &str) -> Option<String> {
    // A guest that has taken the emulator over may have chosen it, and it becomes a part of a command line.
    let is_plain = |sign: char| sign.is_ascii_alphanumeric() || "/-_.[]".contains(sign);
    let device = disk_of(disks, alias)?.get("qdev")?.as_str()?;
    device.chars().all(is_plain).then(|| device.to_owned())
}

/// The request that has the emulator write all that it has for the disk of a device to that disk.
fn flush(device: &str) -> String {
    let line = format!("qemu-io -d {device} flush");
    let arguments = json!({"command-line": line});
    json!({"execute": "human-monitor-command", "arguments": arguments}).to_string()
}

/// The file that a disk of the emulator writes to.
fn file_of(disks: &Value, nodes: &Value, alias: &str) -> Option<PathBuf> {
    let disk = disk_of(disks, alias)?;
    let inserted = disk.get("inserted")?;
    let name = inserted.get("file")?.as_str()?;
    // Where a header names another backing file than the emulator uses.
    let Some(options) = name.strip_prefix(OPTIONS) else {
        return Some(name.into());
    };
    if let Some(file) = stored_in(inserted, nodes) {
        return Some(file);
    }
    let options: Value = serde_json::from_str(options).ok()?;
    let file = options.get("file")?.get("filename")?;
    file.as_str().map(PathBuf::from)
}

/// The file of the node that libvirt puts below that of a format. The name of the latter has the options of all
/// that is below it, too, and the emulator cuts it off after 4095 bytes.
fn stored_in(inserted: &Value, nodes: &Value) -> Option<PathBuf> {
    let format = inserted.get("node-name")?.as_str()?;
    let name = format!("{}-storage", format.strip_suffix("-format")?);
    let is_meant = |node: &&Value| node.get("node-name").and_then(Value::as_str) == Some(&*name);
    let node = nodes.as_array()?.iter().find(is_meant)?;
    let file = node.get("file")?.as_str()?;
    (!file.starts_with(OPTIONS)).then(|| file.into())
}

/// The description of a switch of the first disk. `memory`: the file that the memory is written to.
fn switch(targets: &[String], file: &Path, memory: Option<&Path>) -> Option<String> {
    let file = file.to_str()?;
    let memory = match memory {
        Some(memory) => Some(MemoryFile {
            mode: "external",
            file: memory.to_str()?,
        }),
        None => None,
    };
    let disk = targets.iter().enumerate().map(|(index, name)| {
        let first = index == 0;
        Disk {
            name,
            mode: if first { "external" } else { "no" },
            kind: first.then_some("file"),
            driver: first.then_some(Driver { kind: "qcow2" }),
            source: first.then_some(Source { file }),
        }
    });
    let disk: Vec<_> = disk.collect();
    if disk.is_empty() {
        return None;
    }
    let disks = Disks { disk };
    quick_xml::se::to_string(&Switch { memory, disks }).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_emulator_names_the_file_of_its_first_disk() {
        let disk = |place: &str, file: &str| {
            let qdev = format!("/machine/peripheral/{place}/virtio-backend");
            json!({"device": "", "qdev": qdev, "inserted": {"file": file, "image": {}}})
        };
        let other = disk("virtio-disk01", "/d/other.qcow2");
        let found = |file: &str| {
            let disks = json!([other, disk("virtio-disk0", file)]);
            file_of(&disks, &Value::Null, "virtio-disk0")
        };
        assert_eq!(found("/d/1.qcow2"), Some("/d/1.qcow2".into()));
        let overridden = r#"json:{"backing": {"driver": "qcow2", "file": {"driver": "file", "filename": "/d/1.qcow2"}}, "driver": "qcow2", "file": {"driver": "file", "filename": "/d/2.qcow2"}}"#;
        assert_eq!(found(overridden), Some("/d/2.qcow2".into()));
        assert_eq!(found("json:{"), None);
        assert_eq!(found(r#"json:{"file": "x"}"#), None);
        let empty = json!([{"device": "", "qdev": "/machine/peripheral/virtio-disk0"}, {}, 1]);
        for odd in [empty, json!([other]), json!({})] {
            assert_eq!(file_of(&odd, &Value::Null, "virtio-disk0"), None, "{odd}");
        }
    }

    #[test]
    fn the_disk_that_is_flushed_is_named_as_the_emulator_names_it() {
        let device = "/machine/peripheral/virtio-disk0/virtio-backend";
        let disks =
            |device: &str| json!([{"qdev": "/machine/peripheral/sata0-0-0"}, {"qdev": device}]);
        assert_eq!(
            device_of(&disks(device), "virtio-disk0").as_deref(),
            Some(device)
        );
        assert_eq!(device_of(&disks(device), "virtio-disk1"), None);
        for odd in ["x y", "x\"", "x;", "x\n"] {
            let odd = format!("/machine/peripheral/virtio-disk0/{odd}");
            assert_eq!(device_of(&disks(&odd), "virtio-disk0"), None, "{odd}");
        }
        assert_eq!(
            flush("a/b"),
            r#"{"arguments":{"command-line":"qemu-io -d a/b flush"},"execute":"human-monitor-command"}"#
        );
    }

    /// A long chain has a name that is cut off.
    #[test]
    fn the_node_below_the_format_names_the_file() {
        let cut = "json:{\"backing\": {\"backing\": {\"driver\": \"qcow2\"...";
        let disk = |file: &str, node: &str| {
            let inserted = json!({"file": file, "node-name": node});
            json!([{"qdev": "/machine/peripheral/virtio-disk0", "inserted": inserted}])
        };
        let node = |name: &str, file: &str| json!({"node-name": name, "drv": "x", "file": file});
        let nodes = json!([
            1,
            {"file": "/d/0.qcow2"},
            node("libvirt-4-format", cut),
            node("libvirt-4-storage", "/d/4.qcow2"),
            node("libvirt-40-storage", "/d/40.qcow2"),
            node("libvirt-5-storage", "json:{\"driver\": \"file\"}"),
        ]);
        let found = |file: &str, node: &str| {
            let disks = disk(file, node);
            file_of(&disks, &nodes, "virtio-disk0")
        };
        let whole = r#"json:{"driver": "qcow2", "file": {"filename": "/d/6.qcow2"}}"#;
        for (file, name, expected) in [
            (cut, "libvirt-4-format", Some("/d/4.qcow2")),
            (whole, "libvirt-4-format", Some("/d/4.qcow2")),
            ("/d/7.qcow2", "libvirt-4-format", Some("/d/7.qcow2")),
            (cut, "libvirt-5-format", None),
            (cut, "libvirt-6-format", None),
            (cut, "libvirt-4-storage", None),
            (cut, "", None),
            (whole, "libvirt-5-format", Some("/d/6.qcow2")),
            (whole, "libvirt-6-format", Some("/d/6.qcow2")),
        ] {
            assert_eq!(found(file, name), expected.map(PathBuf::from), "{name}");
        }
    }

    #[test]
    fn only_the_first_disk_is_switched() {
        let names = ["vda", "vdb", "sda"].map(str::to_owned);
        let file = Path::new("/d/a&b/1.qcow2");
        let xml = switch(&names, file, None).unwrap();
        assert_eq!(
            xml,
            r#"<domainsnapshot><disks><disk name="vda" snapshot="external" type="file"><driver type="qcow2"/><source file="/d/a&amp;b/1.qcow2"/></disk><disk name="vdb" snapshot="no"/><disk name="sda" snapshot="no"/></disks></domainsnapshot>"#
        );
        assert_eq!(switch(&[], Path::new("/d"), None), None);
        let memory = Some(Path::new("/d/m\"1"));
        let with_memory = switch(&names[..1], file, memory).unwrap();
        assert_eq!(
            with_memory,
            r#"<domainsnapshot><memory snapshot="external" file="/d/m&quot;1"/><disks><disk name="vda" snapshot="external" type="file"><driver type="qcow2"/><source file="/d/a&amp;b/1.qcow2"/></disk></disks></domainsnapshot>"#
        );
    }
}
