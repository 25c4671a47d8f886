//! A real QEMU copies the files below its first disk into it.
//!
//! Invariant: the guest sits in the firmware; what it would write is written by QEMU's own monitor. What the disk
//! has afterwards is read without the files that were below it.
//! Failure: the test names the file, or what it lacks.

use std::path::Path;
use std::time::{Duration, Instant};

use libvirt::harness::Libvirtd;
use libvirt::{BlockJobEnd, Error, Hypervisor, Libvirt, Settings};
use serde_json::{Value, json};
use uuid::Uuid;

use super::merge::{guest_writes, machine, open, run};
use super::switch::root;

const TIMEOUT: Duration = Duration::from_secs(120);

/// As much as it can.
const FAST: u64 = 0;

/// So little that a copy does not end by itself: a cluster takes 16 s.
const SLOW: u64 = 4096;

async fn copied(hv: &Libvirt, id: Uuid) {
    let end = Instant::now() + TIMEOUT;
    while let Some(job) = hv.root_job(id).await.unwrap() {
        assert!(!job.is_ready() && Instant::now() < end, "{job:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Whether the header of a file names another one.
fn is_overlay(file: &Path) -> bool {
    let file = file.to_str().unwrap();
    let info = run("qemu-img", &["info", "-U", "--output=json", file]);
    let info: Value = serde_json::from_str(&info).unwrap();
    info.get("backing-filename").is_some()
}

/// A file with another one below it, whatever its header names.
fn over(file: &Path, below: &Value) -> Value {
    let file = json!({"driver": "file", "filename": file});
    json!({"driver": "qcow2", "file": file, "backing": below})
}

/// A disk has a pattern, as [`over`] describes it.
fn has(disk: &Value, pattern: u8) {
    let command = format!("read -P {pattern} {}k 64k", u32::from(pattern) * 64);
    let disk = format!("json:{disk}");
    let said = run("qemu-io", &["-U", "-r", "-c", &command, &disk]);
    assert!(!said.contains("failed"), "{pattern}: {said}");
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_disk_gets_all_that_is_below_it_while_its_guest_writes() {
    let mut libvirtd = Libvirtd::start().unwrap();
    let hv = libvirtd.connect(Settings::default()).await.unwrap();
    let (id, files) = machine(&libvirtd, &hv).await;
    let below = [(0, true), (1, true), (2, false)];

    hv.pull_root(id, SLOW).await.unwrap();
    assert!(hv.root_job(id).await.unwrap().is_some());
    let second = hv.pull_root(id, SLOW).await;
    assert!(matches!(second, Err(Error::Refused { .. })), "{second:?}");
    guest_writes(&libvirtd, 8);
    hv.end_root_job(id, BlockJobEnd::Cancel).await.unwrap();
    assert_eq!(hv.root_job(id).await.unwrap(), None);
    assert_eq!(open(&hv, id, &files).await, below);
    assert!(
        is_overlay(&files[2]),
        "one that was stopped stays as it was"
    );

    hv.pull_root(id, SLOW).await.unwrap();
    // A libvirtd that was killed finds the job again.
    libvirtd.kill();
    libvirtd.launch().unwrap();
    hv.connected().await;
    while root(&hv, id).await.is_none() {}
    guest_writes(&libvirtd, 9);
    if hv.root_job(id).await.unwrap().is_some() {
        hv.end_root_job(id, BlockJobEnd::Cancel).await.unwrap();
    }
    hv.pull_root(id, FAST).await.unwrap();
    copied(&hv, id).await;
    assert_eq!(open(&hv, id, &files).await, [(2, false)]);
    assert_eq!(root(&hv, id).await, Some(files[2].clone()));
    guest_writes(&libvirtd, 10);
    hv.flush_root(id).await.unwrap();
    assert!(!is_overlay(&files[2]));
    // The file has all of it while the emulator runs.
    let alone = over(&files[2], &Value::Null);
    for pattern in [1, 2, 3, 8, 9, 10] {
        has(&alone, pattern);
    }
    hv.destroy(id).await.unwrap();
    let off = hv.pull_root(id, FAST).await;
    assert!(matches!(off, Err(Error::Refused { .. })), "{off:?}");
    let off = hv.flush_root(id).await;
    assert!(matches!(off, Err(Error::Refused { .. })), "{off:?}");
    for pattern in [1, 2, 3, 8, 9, 10] {
        has(&alone, pattern);
    }
    hv.undefine(id).await.unwrap();
}

/// QEMU is killed at any time of a copy, or after it: the files that it began with show the same as before.
#[tokio::test]
#[ignore = "needs root"]
async fn a_disk_with_what_was_below_it_is_complete_whenever_its_emulator_is_killed() {
    let libvirtd = Libvirtd::start().unwrap();
    let hv = libvirtd.connect(Settings::default()).await.unwrap();
    let (id, files) = machine(&libvirtd, &hv).await;
    let below = over(&files[1], &over(&files[0], &Value::Null));
    let chain = over(&files[2], &below);
    for is_over in [false, true] {
        if is_over {
            hv.start(id).await.unwrap();
            let all = [(0, true), (1, true), (2, false)];
            assert_eq!(open(&hv, id, &files).await, all);
        }
        let speed = if is_over { FAST } else { SLOW };
        hv.pull_root(id, speed).await.unwrap();
        if is_over {
            copied(&hv, id).await;
        }
        hv.destroy(id).await.unwrap();
        assert_eq!(is_overlay(&files[2]), !is_over);
        for pattern in [1, 2, 3] {
            has(&chain, pattern);
        }
    }
    hv.undefine(id).await.unwrap();
}
