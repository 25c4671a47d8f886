//! The inputs in `fuzz/corpus`, as ordinary tests.
//!
//! Invariant: every check has a target and inputs, and there are no others; the corpus is small.
//! Failure: the panic of a check, after the name of its input; a disk about which QEMU and the
//! daemon say different things, or a layer in which tar finds another disk.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use daemon::fuzzing::{convertible, disk_in, judge};
use daemon::images::{Convertible, Format};
use serde_json::Value;

/// Most inputs of a target, and most bytes of one.
const MOST: usize = 40;
const LARGEST: usize = 6 << 10;

fn names(folder: &str, suffix: &str) -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz")
        .join(folder);
    let entries = std::fs::read_dir(&folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names
        .map(|name| name.strip_suffix(suffix).unwrap().to_owned())
        .collect()
}

#[test]
fn every_input_of_the_corpus_passes_its_check() {
    let checks: BTreeSet<_> = fuzzchecks::CHECKS
        .iter()
        .map(|(name, _)| (*name).to_owned())
        .collect();
    assert_eq!(names("corpus", ""), checks);
    assert_eq!(names("targets", ".rs"), checks);
    for (name, check) in fuzzchecks::CHECKS {
        let folder = format!("corpus/{name}");
        let inputs = names(&folder, "");
        assert!(
            (3..=MOST).contains(&inputs.len()),
            "{name}: {}",
            inputs.len()
        );
        for input in inputs {
            println!("{name}: {input}");
            let content = std::fs::read(corpus(name).join(&input)).unwrap();
            assert!(content.len() <= LARGEST, "{name}: {input}");
            check(&content);
        }
    }
}

fn corpus(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(name)
}

/// What QEMU says about a file; `None` when it cannot open it.
fn of_qemu(path: &Path, options: &[&str]) -> Option<Value> {
    let mut command = Command::new("qemu-img");
    command.args(["info", "-U", "--output", "json"]);
    let output = command.args(options).arg(path).output();
    let output = output.expect("qemu-img is installed");
    let reply = || serde_json::from_slice(&output.stdout).unwrap();
    output.status.success().then(reply)
}

#[test]
fn qemu_says_the_same_about_disks() {
    let mut agreed = BTreeSet::new();
    let mut refused = BTreeSet::new();
    let mut converted = BTreeSet::new();
    for input in names("corpus/disks", "") {
        let path = corpus("disks").join(&input);
        let content = std::fs::read(&path).unwrap();
        let judged = judge(&content, Some(content.len() as u64), 1 << 40);
        let probed = of_qemu(&path, &[]);
        let is_raw = matches!(judged, Ok((Format::Raw, _)));
        if let Some(probed) = &probed {
            assert!(!is_raw || probed["format"] != "qcow2", "{input}: {probed}");
        }
        if let Some(size) = vmdk_in(&content) {
            let info = of_qemu(&path, &["-f", "vmdk"]).expect("a VMDK");
            assert_eq!(info["virtual-size"], size, "{input}");
            assert!(info["backing-filename"].is_null(), "{input}: {info}");
            let extents = &info["format-specific"]["data"]["extents"];
            assert_eq!(extents.as_array().map(Vec::len), Some(1), "{input}");
            assert_eq!(extents[0]["filename"], path.to_str().unwrap(), "{input}");
            converted.insert(input);
            continue;
        }
        let Some(info) = of_qemu(&path, &["-f", "qcow2"]) else {
            continue;
        };
        let needs_another = info["backing-filename"].is_string()
            || info["format-specific"]["data"]["data-file"].is_string()
            || info["encrypted"] == true;
        match judged {
            Ok((format, size)) => {
                assert_eq!(format, Format::Qcow2, "{input}");
                assert!(!needs_another, "{input}: {info}");
                assert_eq!(info["virtual-size"], size, "{input}");
                agreed.insert(input);
            }
            Err(_) if needs_another => {
                refused.insert(input);
            }
            Err(_) => {}
        }
    }
    assert!(agreed.len() > 4, "{agreed:?}");
    assert!(!refused.is_empty());
    assert!(!converted.is_empty());
}

/// The size of the disk in a VMDK that a node may convert.
fn vmdk_in(content: &[u8]) -> Option<u64> {
    let read = |offset: u64, most: usize| {
        let offset = usize::try_from(offset).unwrap();
        content[offset..offset + most].to_vec()
    };
    match convertible(content.len() as u64, read)? {
        (Convertible::Vmdk, Ok(size)) => Some(size),
        _ => None,
    }
}

/// What tar prints of an archive, which it may unpack; `None` when it finds it broken.
fn of_tar(path: &Path, arguments: &[&str]) -> Option<Vec<u8>> {
    let mut command = Command::new("tar");
    command.args(["--quoting-style=literal", "-f"]).arg(path);
    let output = command.args(arguments).output();
    let output = output.expect("tar is installed");
    output.status.success().then_some(output.stdout)
}

#[test]
fn tar_finds_the_same_disks_in_layers() {
    let scratch = tempfile::tempdir().unwrap();
    let mut with_disk = BTreeSet::new();
    let mut without = BTreeSet::new();
    for input in names("corpus/image_layers", "") {
        let path = corpus("image_layers").join(&input);
        let content = std::fs::read(&path).unwrap();
        let Ok(found) = disk_in(scratch.path(), &content, true, 1 << 20) else {
            continue;
        };
        let list = String::from_utf8(of_tar(&path, &["-t"]).unwrap()).unwrap();
        let disks: Vec<_> = list
            .lines()
            .filter(|name| {
                let inner = name.trim_start_matches("./").strip_prefix("disk/");
                inner.is_some_and(|name| {
                    !name.is_empty() && !name.contains('/') && !name.starts_with(".wh.")
                })
            })
            .collect();
        let Some(disk) = found else {
            assert_eq!(disks, Vec::<&str>::new(), "{input}");
            without.insert(input);
            continue;
        };
        let [name] = disks[..] else {
            panic!("{input}: {disks:?}");
        };
        let member = of_tar(&path, &["-x", "-O", "--", name]).unwrap();
        let is_packed = member.starts_with(&[0x1f, 0x8b]);
        assert!(is_packed || member == disk, "{input}");
        with_disk.insert(input);
    }
    assert!(with_disk.len() > 8, "{with_disk:?}");
    assert!(!without.is_empty());
}
