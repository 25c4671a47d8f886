//! The files of the first disk of a machine that runs.
//!
//! Invariant: a file is named as the emulator opened it.
//! Failure: the step.

use std::time::Duration;

use libvirt::{BlockJobEnd, Error, Hypervisor};
use uuid::Uuid;

use super::Rig;

/// As much as it can.
const FAST: u64 = 0;

/// Names of the files of the first disk, the one that is written to first, and whether each is only read.
async fn open<H: Hypervisor>(rig: &Rig<H>, id: Uuid) -> Vec<(String, bool)> {
    let files = rig.hypervisor.disk_files(id).await.unwrap().unwrap();
    let files = files.into_iter().map(|file| {
        let name = file.path.file_name().unwrap().to_string_lossy();
        (name.into_owned(), file.is_read_only)
    });
    let others = ["second.qcow2", "drive.iso"];
    files
        .filter(|(name, _)| !others.contains(&name.as_str()))
        .collect()
}

fn named(all: &[(&str, bool)]) -> Vec<(String, bool)> {
    let all = all.iter();
    all.map(|(name, reads)| ((*name).to_owned(), *reads))
        .collect()
}

pub(super) async fn are_switched(rig: &Rig<impl Hypervisor>) {
    let hv = &rig.hypervisor;
    let id = rig.running().await;
    let root = rig.file("root.qcow2");
    let layer = rig.file("layer.qcow2");
    assert_eq!(hv.root_file(id).await.unwrap(), Some(root.clone()));
    let absent = hv.switch_root(id, layer.clone()).await;
    assert!(matches!(absent, Err(Error::Refused { .. })), "{absent:?}");
    assert_eq!(hv.root_file(id).await.unwrap(), Some(root.clone()));
    (rig.create)(&layer, Some(&root));
    hv.switch_root(id, layer.clone()).await.unwrap();
    assert_eq!(hv.root_file(id).await.unwrap(), Some(layer.clone()));
    let mut files = open(rig, id).await;
    files.sort();
    let all = [
        ("base.qcow2", true),
        ("layer.qcow2", false),
        ("root.qcow2", true),
    ];
    assert_eq!(files, named(&all));
    hv.destroy(id).await.unwrap();
    assert_eq!(hv.root_file(id).await.unwrap(), None);
    // Without a new definition it starts with the file that it was switched to.
    hv.start(id).await.unwrap();
    assert_eq!(hv.root_file(id).await.unwrap(), Some(layer.clone()));
    rig.remove(id).await;
    std::fs::remove_file(layer).unwrap();
}

pub(super) async fn are_pulled(rig: &Rig<impl Hypervisor>) {
    let hv = &rig.hypervisor;
    let id = rig.running().await;
    assert_eq!(hv.root_job(id).await.unwrap(), None);
    for end in [BlockJobEnd::Cancel, BlockJobEnd::Pivot] {
        let none = hv.end_root_job(id, end).await;
        assert!(matches!(none, Err(Error::Refused { .. })), "{none:?}");
    }
    hv.pull_root(id, FAST).await.unwrap();
    while hv.root_job(id).await.unwrap().is_some() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(open(rig, id).await, named(&[("root.qcow2", false)]));
    rig.remove(id).await;
}
