//! Files of volumes that are disks of the guest.
//!
//! Invariant: names of files lead to no other directory, and no two disks have the same file or
//! the same path in the pod.
//! Failure: [`AnnotationError`] names the entry and what is allowed.

use serde::{Deserialize, Serialize};

use crate::annotations::{AnnotationError, Annotations, Key};
use crate::guest_data::{GuestFile, yaml};
use crate::paths::clean_path;
use crate::quantity::parse_quantity;

/// Most disks of one machine in files.
const MOST: usize = 16;
/// Longest name of a file: the name of an unfinished one is somewhat longer.
const LONGEST: usize = 200;
/// Sizes of disks are multiples of this.
const SECTOR: u64 = 512;
/// Smallest disk, in bytes.
const SMALLEST: u64 = 1 << 20;

/// A file of a volume that is a disk of the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileDisk {
    /// Path in the pod of the volume's directory.
    pub mount_path: String,
    /// Name of the file in that directory.
    pub file: String,
    /// How the file is arranged.
    pub format: FileFormat,
    /// Least size in bytes that the guest sees; a multiple of 512.
    pub size: Option<u64>,
    /// Path of the device in the pod; `/` is the root disk.
    pub device_path: String,
}

/// How the file of a disk is arranged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FileFormat {
    /// The plain bytes of the disk.
    #[default]
    Raw,
    /// QEMU's own.
    Qcow2,
}

/// An entry as it is written.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Entry {
    mount_path: String,
    #[serde(default = "usual_name")]
    file: String,
    #[serde(default)]
    format: FileFormat,
    size: Option<String>,
    device_path: Option<String>,
}

/// The name that KubeVirt and CDI use.
fn usual_name() -> String {
    "disk.img".to_owned()
}

impl Annotations<'_> {
    /// The files of volumes that are disks of the guest, in order.
    ///
    /// # Errors
    ///
    /// A text that is not such a list, or an entry that is not possible.
    pub fn file_disks(self) -> Result<Vec<FileDisk>, AnnotationError> {
        let Some(text) = self.text(Key::FileDisks)? else {
            return Ok(Vec::new());
        };
        parse(text).map_err(|reason| self.refuse(Key::FileDisks, reason))
    }
}

fn parse(text: &str) -> Result<Vec<FileDisk>, String> {
    let value = yaml::strict(text)?;
    if value.is_null() {
        return Ok(Vec::new());
    }
    let serde_json::Value::Array(values) = value else {
        return Err("a YAML list is needed".to_owned());
    };
    if values.len() > MOST {
        let found = values.len();
        return Err(format!(
            "{found} disks are more than the {MOST} that are possible"
        ));
    }
    let mut disks: Vec<FileDisk> = Vec::new();
    for (index, value) in values.into_iter().enumerate() {
        let number = index + 1;
        let named = |reason: String| format!("entry {number}: {reason}");
        let entry: Entry = serde_json::from_value(value).map_err(|e| named(e.to_string()))?;
        let disk = entry.disk().map_err(named)?;
        for other in &disks {
            if other.device_path == disk.device_path {
                let path = &disk.device_path;
                return Err(named(format!(
                    "an earlier entry has the devicePath {path}, too"
                )));
            }
            if (&other.mount_path, &other.file) == (&disk.mount_path, &disk.file) {
                return Err(named("an earlier entry has the same file".to_owned()));
            }
        }
        disks.push(disk);
    }
    Ok(disks)
}

impl Entry {
    fn disk(self) -> Result<FileDisk, String> {
        let mount_path = Some(clean_path(&self.mount_path))
            .filter(|path| GuestFile::is_path(path))
            .ok_or("mountPath is to be the absolute path of a volumeMount")?;
        let device_path = match self.device_path.as_deref().map(clean_path) {
            None => mount_path.clone(),
            Some(path) if path == "/" || GuestFile::is_path(&path) => path,
            Some(_) => return Err("devicePath is to be an absolute path".to_owned()),
        };
        let is_name = !self.file.is_empty()
            && self.file.len() <= LONGEST
            && !matches!(self.file.as_str(), "." | "..")
            && !self.file.contains(|c: char| c == '/' || c.is_control());
        if !is_name {
            return Err(format!(
                "file is to be a name of at most {LONGEST} bytes without a slash"
            ));
        }
        let size = self.size.as_deref().map(size).transpose()?;
        Ok(FileDisk {
            mount_path,
            file: self.file,
            format: self.format,
            size,
            device_path,
        })
    }
}

fn size(text: &str) -> Result<u64, String> {
    let bytes = parse_quantity(text).map_err(|e| format!("size: {e}"))?;
    let bytes = bytes
        .checked_next_multiple_of(SECTOR)
        .filter(|bytes| *bytes <= i64::MAX.unsigned_abs())
        .ok_or("size is out of range")?;
    if bytes < SMALLEST {
        return Err(format!("size is to be at least {SMALLEST} bytes"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rstest::rstest;

    use super::*;

    fn read(text: &str) -> Result<Vec<FileDisk>, String> {
        let map = BTreeMap::from([("vmlet.dev/file-disks".to_owned(), text.to_owned())]);
        Annotations::new(&map)
            .file_disks()
            .map_err(|e| e.to_string())
    }

    #[test]
    fn an_entry_has_defaults() {
        let disks = read("- mountPath: /claims/data/\n").unwrap();
        let expected = FileDisk {
            mount_path: "/claims/data".to_owned(),
            file: "disk.img".to_owned(),
            format: FileFormat::Raw,
            size: None,
            device_path: "/claims/data".to_owned(),
        };
        assert_eq!(disks, [expected]);
        assert_eq!(read("").unwrap(), []);
        assert_eq!(Annotations::new(&BTreeMap::new()).file_disks(), Ok(vec![]));
    }

    #[test]
    fn paths_are_cleaned_as_those_of_mounts_and_devices() {
        let of = |text: &str| {
            let disk = read(text).unwrap().remove(0);
            (disk.mount_path, disk.device_path)
        };
        let both = |mount: &str, device: &str| (mount.to_owned(), device.to_owned());
        assert_eq!(
            of("- mountPath: /claims//a"),
            both("/claims/a", "/claims/a")
        );
        let text = "- {mountPath: //claims/./a/, devicePath: /dev//b/}";
        assert_eq!(of(text), both("/claims/a", "/dev/b"));
        assert_eq!(of("- {mountPath: /a, devicePath: //}"), both("/a", "/"));
        let twice = "[{mountPath: /a}, {mountPath: //a, devicePath: /b}]";
        assert!(read(twice).unwrap_err().contains("the same file"));
    }

    #[test]
    fn an_entry_may_say_everything() {
        let text = r#"[{"mountPath": "/a", "devicePath": "/", "file": "os.qcow2",
            "format": "qcow2", "size": "1000001"}]"#;
        let disk = read(text).unwrap_err();
        assert!(disk.contains("at least 1048576"), "{disk}");
        let disks = read(&text.replace("1000001", "1048577")).unwrap();
        assert_eq!(disks[0].size, Some(1_049_088));
        assert_eq!(disks[0].format, FileFormat::Qcow2);
        assert_eq!(
            (disks[0].device_path.as_str(), disks[0].file.as_str()),
            ("/", "os.qcow2")
        );
    }

    #[rstest]
    #[case("a: b", "a YAML list is needed")]
    #[case("- {", "line 1")]
    #[case("- {}", "entry 1: missing field `mountPath`")]
    #[case("- {mountPath: /a, disk: x}", "unknown field `disk`")]
    #[case("- {mountPath: a}", "absolute path of a volumeMount")]
    #[case("- {mountPath: /}", "absolute path of a volumeMount")]
    #[case("- {mountPath: /a/../b}", "absolute path of a volumeMount")]
    #[case("- {mountPath: /a, devicePath: b}", "devicePath")]
    #[case("- {mountPath: /a, file: b/c}", "without a slash")]
    #[case("- {mountPath: /a, file: ..}", "without a slash")]
    #[case("- {mountPath: /a, file: ''}", "without a slash")]
    #[case("- {mountPath: /a, format: vmdk}", "unknown variant `vmdk`")]
    #[case("- {mountPath: /a, size: big}", "size: ")]
    #[case("- {mountPath: /a, size: 99999999999G}", "size")]
    #[case("[{mountPath: /a}, {mountPath: /a, devicePath: /b}]", "the same file")]
    #[case(
        "[{mountPath: /a}, {mountPath: /a, file: b}]",
        "entry 2: an earlier entry has the devicePath /a"
    )]
    fn what_is_not_possible_is_refused_by_entry_and_reason(#[case] text: &str, #[case] why: &str) {
        let error = read(text).unwrap_err();
        assert!(error.contains(why), "{error}");
        assert!(
            error.starts_with("annotation vmlet.dev/file-disks"),
            "{error}"
        );
    }

    #[test]
    fn a_machine_has_sixteen_at_most() {
        let list = |count: usize| {
            let entry = |n| format!("- mountPath: /claims/{n}\n");
            (0..count).map(entry).collect::<String>()
        };
        assert_eq!(read(&list(16)).unwrap().len(), 16);
        assert!(read(&list(17)).unwrap_err().contains("17 disks"));
    }
}
