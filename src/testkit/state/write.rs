//! Writes the state, for the fixtures of later versions: docs/testing.md has the command.
//!
//! Invariant: the database is one file that has all of it; nothing is written by hand that a store
//! could write.
//! Failure: panics with the store that refused.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use service::boot_clock::Deadline;

use super::read::{is_as_written, opened};
use super::*;
use crate::block::Held;
use crate::disk::Disk;
use crate::metadata::{RecordStore, node};
use crate::node::Task;
use crate::testkit::Node;
use crate::vm::Container;
use crate::vm::state::Phase;

/// The directory for a fixture; without it, what is written goes with the test.
const TARGET: &str = "VMLET_STATE";

#[tokio::test]
async fn a_state_that_is_written_is_read() {
    let scratch = tempfile::tempdir().unwrap();
    let target = std::env::var_os(TARGET).map_or_else(|| scratch.path().to_owned(), PathBuf::from);
    let target = target.join("node");
    let node = Node::new().await;
    let db = node.db.clone();
    node::set_boot(&db, "0a1b2c3d-0000-4000-8000-000000000001".to_owned())
        .await
        .unwrap();
    node::installation(&db).await.unwrap();
    crate::images::record_from_registry(&db, &node.scratch.path().join("images/data")).await;
    for row in sandboxes() {
        node.sandbox_rows.insert(row).await.unwrap();
    }
    for row in containers() {
        node.rows.insert(row.clone()).await.unwrap();
        let is_stopping = row.phase == Phase::Stopping;
        let id = row.id.clone();
        let phase = row.phase;
        let all = |there: &mut Container| {
            *there = row;
            if is_stopping {
                stop(there);
            }
        };
        node.rows.change(&id, phase, all).await.unwrap();
    }
    let records = RecordStore::<Disk>::load(db.clone()).await.unwrap();
    let mut images = node.images.list().into_iter();
    assert!(images.any(|image| image.digest.to_string() == DISK));
    for disk in disks() {
        records.insert(disk.clone()).await.unwrap();
        let folder = node.scratch.path().join("disks").join(disk.vm.to_string());
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("root.qcow2"), disk_file(disk.virtual_bytes)).unwrap();
        fs::write(folder.join("seed.iso"), "a seed image").unwrap();
        if disk.memory.is_some() {
            fs::write(folder.join("memory.save"), "saved memory").unwrap();
        }
        let owner = crate::disk::owner(disk.vm);
        node.images.pin(&owner, DISK).await.unwrap();
    }
    let records = RecordStore::<Held>::load(db.clone()).await.unwrap();
    for device in devices() {
        records.insert(device).await.unwrap();
    }
    let records = RecordStore::<Task>::load(db.clone()).await.unwrap();
    for task in tasks() {
        records.insert(task).await.unwrap();
    }
    for sandbox in sandboxes() {
        let paths = node.containers.paths();
        fs::create_dir_all(paths.pod(&sandbox.id)).unwrap();
        let disk = paths.root_disk(&sandbox.id);
        fs::write(&disk, disk_file(2 << 20)).unwrap();
        node.images.pin(sandbox.id.as_str(), DISK).await.unwrap();
    }
    let logs = tempfile::tempdir().unwrap();
    for row in containers() {
        let paths = node.containers.paths();
        fs::write(paths.console_file(&row.id), "what the guest said\n").unwrap();
        fs::write(paths.seed(&row.id), "a seed image").unwrap();
        if row.is_process() {
            fs::write(paths.process(&row.id), "{}").unwrap();
            let position = paths.process_position(&row.id);
            crate::vm::process::write_position(&logs.path().join("0.log"), &position);
        } else {
            crate::vm::console::write_position(&paths.console_file(&row.id));
        }
    }
    // Its start measures the disks.
    let node = node.restarted().await;
    node.images.settle().await;
    let file = target.join("vmlet.db");
    copy(node.scratch.path(), &target);
    for more in ["vmlet.db", "vmlet.db-wal", "vmlet.db-shm"] {
        let _ = fs::remove_file(target.join(more));
    }
    let from = node.scratch.path().join("vmlet.db");
    // One file that has all of it.
    let whole = rusqlite::Connection::open(from).unwrap();
    whole
        .execute("VACUUM INTO ?1", [file.to_str().unwrap()])
        .unwrap();
    let written = rusqlite::Connection::open(&file).unwrap();
    written.pragma_update(None, "journal_mode", "WAL").unwrap();
    drop(written);
    is_as_written(&opened(&target).await).await;
}

/// The stop in progress.
fn stop(row: &mut Container) {
    row.kill_at = Some(Deadline::at(Duration::from_secs(4_000_000)));
}

/// As much of a disk as the daemon reads.
fn disk_file(virtual_bytes: u64) -> Vec<u8> {
    let mut header = b"QFI\xfb\0\0\0\x03".to_vec();
    header.resize(24, 0);
    header.extend(virtual_bytes.to_be_bytes());
    header
}
