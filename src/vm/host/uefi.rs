//! The UEFI firmware that the node has for guests, as QEMU's descriptors of firmware say it.
//!
//! Invariant: the code and the template of its variables are files; the code fits every machine of the
//! board q35, without System Management Mode. Of several the first by the name of its descriptor counts, of those
//! whose template is as long as the machine's store, if it has one: code finds the variables at one place only. All of
//! it blocks.
//! Failure: a sentence that says what to install. A descriptor that cannot be read is passed over: the
//! directory is the administrator's.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// The largest descriptor in bytes.
const LONGEST: u64 = 64 << 10;
/// Most descriptors.
const MOST: usize = 256;
/// The largest variable store in bytes.
pub(in crate::vm) const LARGEST_STORE: u64 = 8 << 20;
/// What code needs that machines do not have.
const UNMET: [&str; 2] = ["requires-smm", "secure-boot"];

/// Firmware in two parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::vm) struct Uefi {
    /// The program.
    pub(in crate::vm) code: PathBuf,
    /// What the variable store of a new machine has.
    pub(in crate::vm) template: PathBuf,
    /// Of a store, in bytes.
    pub(in crate::vm) length: u64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Descriptor {
    interface_types: Vec<String>,
    mapping: Mapping,
    targets: Vec<Target>,
    #[serde(default)]
    features: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Mapping {
    device: String,
    #[serde(default)]
    mode: Option<String>,
    executable: Option<Flash>,
    nvram_template: Option<Flash>,
}

#[derive(Debug, Deserialize)]
struct Flash {
    filename: PathBuf,
    format: String,
}

#[derive(Debug, Deserialize)]
struct Target {
    architecture: String,
    machines: Vec<String>,
}

/// The firmware that the descriptors in a directory name, for a store of that length if there is one.
pub(in crate::vm) fn find(directory: &Path, store: Option<u64>) -> Result<Uefi, String> {
    let all = descriptors(directory);
    let mut all = all.iter().filter_map(|path| read(path)).peekable();
    let has_any = all.peek().is_some();
    let mut fitting = all.filter(|found| store.is_none_or(|length| found.length == length));
    if let Some(found) = fitting.next() {
        return Ok(found);
    }
    let directory = directory.display();
    Err(match store {
        Some(length) if has_any => format!(
            "no UEFI firmware by the descriptors in {directory} fits the variable store of the machine, which has \
             {length} bytes: install the version of the package ovmf that the machine booted by, or remove the \
             store, uefi.fd beside its disk, for an empty one"
        ),
        _ => format!(
            "failed to find UEFI firmware for x86_64 and q35 by the descriptors in {directory}: install the package \
             ovmf"
        ),
    })
}

/// The descriptors, by name.
fn descriptors(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    let paths = entries.take(MOST).flatten().map(|entry| entry.path());
    let is_descriptor = |path: &PathBuf| path.extension().is_some_and(|end| end == "json");
    let mut all: Vec<_> = paths.filter(is_descriptor).collect();
    all.sort_unstable();
    all
}

fn read(path: &Path) -> Option<Uefi> {
    let mut text = Vec::new();
    let file = File::open(path).ok()?;
    file.take(LONGEST).read_to_end(&mut text).ok()?;
    let descriptor: Descriptor = serde_json::from_slice(&text).ok()?;
    let mut uefi = descriptor.uefi()?;
    let is_file = |path: &Path| path.is_absolute() && path.is_file();
    uefi.length = std::fs::metadata(&uefi.template).ok()?.len();
    let is_there = is_file(&uefi.code) && is_file(&uefi.template);
    (is_there && (1..=LARGEST_STORE).contains(&uefi.length)).then_some(uefi)
}

impl Descriptor {
    /// The firmware, if machines boot by it.
    fn uefi(self) -> Option<Uefi> {
        let mapping = self.mapping;
        let is_split = mapping.mode.is_none_or(|mode| mode == "split");
        let is_flash = mapping.device == "flash" && is_split;
        let is_uefi = self.interface_types.iter().any(|kind| kind == "uefi");
        let is_unmet = |feature: &String| UNMET.contains(&feature.as_str());
        let fits = self.targets.iter().any(Target::is_ours);
        if !is_flash || !is_uefi || !fits || self.features.iter().any(is_unmet) {
            return None;
        }
        Some(Uefi {
            code: mapping.executable?.raw()?,
            template: mapping.nvram_template?.raw()?,
            length: 0,
        })
    }
}

impl Flash {
    fn raw(self) -> Option<PathBuf> {
        (self.format == "raw").then_some(self.filename)
    }
}

impl Target {
    /// Whether all versions of the board are meant.
    fn is_ours(&self) -> bool {
        let is_q35 = |machine: &String| machine == "pc-q35-*";
        self.architecture == "x86_64" && self.machines.iter().any(is_q35)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    /// A directory with the two files of firmware.
    fn node() -> tempfile::TempDir {
        let node = tempfile::tempdir().unwrap();
        std::fs::write(node.path().join("code.fd"), "code").unwrap();
        std::fs::write(node.path().join("vars.fd"), "vars").unwrap();
        node
    }

    fn descriptor(node: &Path) -> Value {
        json!({
            "description": "UEFI", "interface-types": ["uefi"],
            "mapping": {
                "device": "flash",
                "executable": { "filename": node.join("code.fd"), "format": "raw" },
                "nvram-template": { "filename": node.join("vars.fd"), "format": "raw" },
            },
            "targets": [{ "architecture": "x86_64", "machines": ["pc-i440fx-*", "pc-q35-*"] }],
            "features": ["acpi-s3"], "tags": [],
        })
    }

    fn put(node: &Path, name: &str, value: &Value) {
        std::fs::write(node.join(name), value.to_string()).unwrap();
    }

    #[test]
    fn the_first_descriptor_that_fits_is_chosen() {
        let node = node();
        let node = node.path();
        let words = find(node, None).unwrap_err();
        assert!(words.ends_with("install the package ovmf"), "{words}");
        assert!(find(&node.join("absent"), None).is_err());
        std::fs::write(node.join("10-broken.json"), "{").unwrap();
        let mut secure = descriptor(node);
        secure["features"] = json!(["requires-smm"]);
        put(node, "20-secure.json", &secure);
        put(node, "30-other.txt", &descriptor(node));
        assert!(find(node, None).is_err());
        put(node, "60-uefi.json", &descriptor(node));
        let mut later = descriptor(node);
        later["mapping"]["executable"]["filename"] = json!(node.join("vars.fd"));
        put(node, "70-later.json", &later);
        let found = find(node, None).unwrap();
        assert_eq!(found.code, node.join("code.fd"));
        assert_eq!(found.template, node.join("vars.fd"));
        std::fs::remove_file(node.join("code.fd")).unwrap();
        assert_eq!(find(node, None).unwrap().code, node.join("vars.fd"));
    }

    #[test]
    fn a_store_gets_code_that_finds_its_variables() {
        let node = node();
        let node = node.path();
        let words = find(node, Some(6)).unwrap_err();
        assert!(words.ends_with("install the package ovmf"), "{words}");
        put(node, "a.json", &descriptor(node));
        std::fs::write(node.join("large.fd"), "larger").unwrap();
        let mut large = descriptor(node);
        large["mapping"]["nvram-template"]["filename"] = json!(node.join("large.fd"));
        put(node, "b.json", &large);
        for (length, template) in [
            (None, "vars.fd"),
            (Some(4), "vars.fd"),
            (Some(6), "large.fd"),
        ] {
            assert_eq!(find(node, length).unwrap().template, node.join(template));
        }
        let words = find(node, Some(5)).unwrap_err();
        assert!(words.contains("which has 5 bytes"), "{words}");
    }

    #[rstest]
    #[case::bios("/interface-types", json!(["bios"]))]
    #[case::memory("/mapping/device", json!("memory"))]
    #[case::stateless("/mapping/mode", json!("stateless"))]
    #[case::qcow2("/mapping/executable/format", json!("qcow2"))]
    #[case::relative("/mapping/nvram-template/filename", json!("vars.fd"))]
    #[case::other_processor("/targets/0/architecture", json!("aarch64"))]
    #[case::one_board("/targets/0/machines", json!(["pc-q35-7.2"]))]
    #[case::secure("/features", json!(["secure-boot"]))]
    fn firmware_of_another_kind_is_passed_over(#[case] pointer: &str, #[case] value: Value) {
        let node = node();
        let mut other = descriptor(node.path());
        // A part that is optional.
        other["mapping"]["mode"] = json!("split");
        put(node.path(), "a.json", &other);
        assert!(find(node.path(), None).is_ok());
        *other.pointer_mut(pointer).unwrap() = value;
        put(node.path(), "a.json", &other);
        assert!(find(node.path(), None).is_err(), "{other}");
    }

    #[test]
    fn a_template_that_is_no_store_is_passed_over() {
        let node = node();
        put(node.path(), "a.json", &descriptor(node.path()));
        let vars = File::create(node.path().join("vars.fd")).unwrap();
        assert!(find(node.path(), None).is_err(), "it is empty");
        vars.set_len(LARGEST_STORE).unwrap();
        assert!(find(node.path(), None).is_ok());
        vars.set_len(LARGEST_STORE + 1).unwrap();
        assert!(find(node.path(), None).is_err());
    }
}
