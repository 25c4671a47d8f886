//! Files cut short, changed or left half replaced by a crash.
//!
//! Invariant: whatever a crash does to a list, it is known as it was or lost; never shorter, never
//! nothing.
//! Failure: panics name the byte.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::tests::{container_status, flush, open, sandbox, sandboxes};
use super::*;

const VM: BackendIndex = BackendIndex(1);
const BOOT: &str = "boot-1";

struct Stored {
    dir: TempDir,
    list: PathBuf,
    bytes: Vec<u8>,
}

fn stored() -> Stored {
    let dir = TempDir::new().unwrap();
    let memory = open(&dir, BOOT);
    memory.store_list(VM, Kind::Sandbox, &sandboxes(&["s1", "s2"]));
    let status = container_status("c1", Default::default());
    memory.store_status(VM, Kind::Container, "c1", &status);
    drop(memory);
    let list = dir.path().join("vmlet/sandboxes.list");
    let bytes = fs::read(&list).unwrap();
    Stored { dir, list, bytes }
}

fn last(dir: &TempDir) -> LastKnown {
    open(dir, BOOT).last_list(VM, Kind::Sandbox)
}

#[test]
fn a_list_cut_at_any_byte_is_lost() {
    let stored = stored();
    for length in 0..stored.bytes.len() {
        fs::write(&stored.list, &stored.bytes[..length]).unwrap();
        assert_eq!(last(&stored.dir), LastKnown::Lost, "cut at {length}");
    }
    fs::write(&stored.list, &stored.bytes).unwrap();
    assert_eq!(
        last(&stored.dir),
        LastKnown::Known(sandboxes(&["s1", "s2"]))
    );
}

#[test]
fn a_list_with_any_byte_changed_or_added_is_lost() {
    let stored = stored();
    for place in 0..=stored.bytes.len() {
        let mut bytes = stored.bytes.clone();
        match bytes.get_mut(place) {
            Some(byte) => *byte ^= 0x20,
            None => bytes.push(0),
        }
        fs::write(&stored.list, bytes).unwrap();
        assert_eq!(last(&stored.dir), LastKnown::Lost, "changed at {place}");
    }
}

#[test]
fn a_list_of_a_backend_without_marker_still_counts() {
    let stored = stored();
    fs::remove_file(stored.dir.path().join("vmlet/connected")).unwrap();
    assert_eq!(
        last(&stored.dir),
        LastKnown::Known(sandboxes(&["s1", "s2"]))
    );
}

#[test]
fn a_missing_list_is_lost_and_a_list_that_is_no_file_too() {
    let stored = stored();
    fs::remove_file(&stored.list).unwrap();
    assert_eq!(last(&stored.dir), LastKnown::Lost);
    fs::create_dir(&stored.list).unwrap();
    assert_eq!(last(&stored.dir), LastKnown::Lost);
}

#[test]
fn a_replacement_that_never_ended_leaves_the_old_list() {
    let stored = stored();
    let temporary = stored.list.with_added_extension("tmp");
    for length in [0, 1, stored.bytes.len() - 1, stored.bytes.len()] {
        fs::write(&temporary, &stored.bytes[..length]).unwrap();
        assert_eq!(
            last(&stored.dir),
            LastKnown::Known(sandboxes(&["s1", "s2"]))
        );
    }
    let memory = open(&stored.dir, BOOT);
    memory.store_created(
        VM,
        Kind::Sandbox,
        &prost::Message::encode_to_vec(&sandbox("s3")),
    );
    flush(&memory);
    assert!(!temporary.exists());
    drop(memory);
    assert_eq!(
        last(&stored.dir),
        LastKnown::Known(sandboxes(&["s1", "s2", "s3"]))
    );
}

#[test]
fn other_files_cut_at_any_byte_cost_only_themselves() {
    let stored = stored();
    for name in ["vmlet/ids", "vmlet/containers.status", "boot"] {
        let path = stored.dir.path().join(name);
        let bytes = fs::read(&path).unwrap();
        for length in 0..bytes.len() {
            fs::write(&path, &bytes[..length]).unwrap();
            let memory = open(&stored.dir, BOOT);
            let expected = LastKnown::Known(sandboxes(&["s1", "s2"]));
            assert_eq!(
                memory.last_list(VM, Kind::Sandbox),
                expected,
                "{name} cut at {length}"
            );
            assert_eq!(memory.owner(Kind::Sandbox, "s2"), Owner::One(VM));
        }
        fs::write(&path, &bytes).unwrap();
    }
    assert!(
        open(&stored.dir, BOOT)
            .last_status(VM, Kind::Container, "c1")
            .is_some()
    );
}

#[test]
fn a_crash_between_the_files_of_a_reboot_is_repaired_by_the_next_run() {
    let stored = stored();
    let boot = stored.dir.path().join("boot");
    let old = fs::read(&boot).unwrap();
    let rewritten = {
        let memory = open(&stored.dir, "boot-2");
        flush(&memory);
        memory.last_list(VM, Kind::Sandbox)
    };
    assert_ne!(rewritten, LastKnown::Known(sandboxes(&["s1", "s2"])));
    // As if the lists had been rewritten and the boot not, and the other way round.
    fs::write(&boot, &old).unwrap();
    assert_eq!(
        open(&stored.dir, "boot-2").last_list(VM, Kind::Sandbox),
        rewritten
    );
    fs::write(&stored.list, &stored.bytes).unwrap();
    assert_eq!(
        open(&stored.dir, "boot-2").last_list(VM, Kind::Sandbox),
        rewritten
    );
}

#[test]
fn files_are_for_our_user_only() {
    use std::os::unix::fs::PermissionsExt as _;
    let stored = stored();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&stored.list), 0o600);
    assert_eq!(mode(stored.list.parent().unwrap()), 0o700);
}
