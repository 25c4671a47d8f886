//! Memories as other versions wrote them: `tests/fixtures/state` has one of each.
//!
//! Invariant: [`remember`] is what the writer has remembered, and what is to be known.
//! Failure: an object of an earlier version's memory that vanishes.

use std::fs;
use std::path::{Path, PathBuf};

use super::*;

/// The directory for a fixture; without it, what is written goes with the test.
const TARGET: &str = "VMLET_STATE";

const BOOT: &str = "0a1b2c3d-0000-4000-8000-000000000001";

fn id(digits: &str) -> String {
    digits.repeat(28) + TAG
}

/// Two sandboxes with a container each, their statuses, and an image.
fn remember(memory: &Memory) {
    let pods = [id("a1"), id("a2")];
    memory.store_list(
        VM,
        Kind::Sandbox,
        &sandboxes(&pods.each_ref().map(String::as_str)),
    );
    let running = v1::ContainerState::ContainerRunning;
    let exited = v1::ContainerState::ContainerExited;
    let all = [(id("b1"), running), (id("b2"), exited)];
    memory.store_list(
        VM,
        Kind::Container,
        &containers(&all.each_ref().map(|(id, state)| (id.as_str(), *state))),
    );
    memory.store_list(
        VM,
        Kind::Image,
        &images(&[("sha256:00", "images.example/disk:latest")]),
    );
    for (id, state) in all {
        memory.store_status(VM, Kind::Container, &id, &container_status(&id, state));
    }
}

#[test]
fn a_memory_that_is_written_is_known() {
    let scratch = tempfile::tempdir().unwrap();
    let target = std::env::var_os(TARGET).map_or_else(|| scratch.path().to_owned(), PathBuf::from);
    let target = target.join("criproxy");
    let memory = Memory::open(&target, &specs(), BOOT).unwrap();
    remember(&memory);
    flush(&memory);
    drop(memory);
    let memory = Memory::open(&target, &specs(), BOOT).unwrap();
    assert_eq!(known(&memory), [true; 5]);
}

/// A copy of each version's directory.
fn directories() -> Vec<TempDir> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/state");
    let versions = fs::read_dir(root).unwrap();
    let versions = versions.map(|entry| entry.unwrap().path().join("criproxy"));
    let copied = versions.filter(|path| path.is_dir()).map(|state| {
        let dir = TempDir::new().unwrap();
        copy(&state, dir.path());
        dir
    });
    let copied: Vec<_> = copied.collect();
    assert!(!copied.is_empty());
    copied
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let place = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &place);
        } else {
            fs::copy(&path, &place).unwrap();
        }
    }
}

/// What is known of each kind: the list, the owner of an object of it, and a status.
fn known(memory: &Memory) -> [bool; 5] {
    let has_list =
        |kind| matches!(memory.last_list(VM, kind), LastKnown::Known(list) if !list.is_empty());
    [
        has_list(Kind::Sandbox),
        has_list(Kind::Container),
        has_list(Kind::Image),
        matches!(memory.owner(Kind::Container, &id("b1")), Owner::One(VM)),
        memory.last_status(VM, Kind::Container, &id("b2")).is_some(),
    ]
}

#[test]
fn memories_of_earlier_versions_are_known_as_they_were_written() {
    let fresh = TempDir::new().unwrap();
    let expected = Memory::open(fresh.path(), &specs(), BOOT).unwrap();
    remember(&expected);
    for dir in directories() {
        for start in ["first", "second"] {
            let memory = Memory::open(dir.path(), &specs(), BOOT).unwrap();
            for kind in Kind::ALL {
                assert_eq!(
                    format!("{:?}", memory.last_list(VM, kind)),
                    format!("{:?}", expected.last_list(VM, kind)),
                    "{start} start"
                );
            }
            assert_eq!(known(&memory), [true; 5], "{start} start");
        }
    }
}

#[test]
fn a_garbled_file_stops_nothing_and_hides_no_other_list() {
    for dir in directories() {
        let files = fs::read_dir(dir.path().join("vmlet")).unwrap();
        let files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
        assert!(files.len() >= 3, "{files:?}");
        for file in files {
            let whole = fs::read(&file).unwrap();
            fs::write(&file, &whole[..whole.len() / 2]).unwrap();
            let memory = Memory::open(dir.path(), &specs(), BOOT).unwrap();
            let lists = known(&memory)[..3]
                .iter()
                .filter(|is_known| **is_known)
                .count();
            assert!(lists >= 2, "{}: {:?}", file.display(), known(&memory));
            drop(memory);
            fs::write(&file, &whole).unwrap();
        }
    }
}
