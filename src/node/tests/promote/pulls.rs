//! Promotions of machines that run: their emulators copy the image.
//!
//! Invariant: disks are real files, the hypervisor is a fake.
//! Failure: a test prints what did not end as it should.

use super::*;

/// What an emulator does when it has copied all: it copies what it reads, and its header names no image then.
fn copy_image(node: &Node) {
    let file = node.disks.file(uid(9));
    let mut copy = Command::new("qemu-io");
    let copy = copy
        .args(["-C", "-f", "qcow2", "-c", "read 0 4k"])
        .arg(file);
    assert!(copy.output().unwrap().status.success());
    forget_image(node);
}

fn forget_image(node: &Node) {
    let file = node.disks.file(uid(9));
    let mut rebase = Command::new("qemu-img");
    let rebased = rebase
        .args(["rebase", "-u", "-f", "qcow2", "-b", ""])
        .arg(file);
    assert!(rebased.status().unwrap().success());
}

/// The machine of a promotion that has begun, and makes no progress.
async fn pulling() -> (Node, ContainerId, Arc<Tasks>, AbortOnDropHandle<()>) {
    let (node, id) = running().await;
    node.hypervisor.hold_jobs(true);
    let agenda = agenda(&node).await;
    let working = work(&agenda);
    agenda.submit(uid(1), uid(9), ONLINE).await.unwrap();
    let domain = node.containers.running_vm(uid(9)).unwrap().domain();
    let mut changes = node.disks.changes();
    while !(node.disks.is_pulled(uid(9)) && node.hypervisor.has_job(domain)) {
        // The job begins after the record.
        let _ = tokio::time::timeout(LOOK, changes.changed()).await;
    }
    (node, id, agenda, working)
}

/// Time between two looks at the fake.
const LOOK: std::time::Duration = std::time::Duration::from_millis(20);

#[tokio::test]
async fn a_machine_that_runs_is_promoted_by_its_emulator() {
    let (node, id, agenda, _work) = pulling().await;
    assert!(node.disks.get(uid(9)).unwrap().linked);
    copy_image(&node);
    node.hypervisor.hold_jobs(false);
    let done = ended(&agenda, uid(1)).await;
    assert_eq!((done.state, done.percent), (State::Success, 100));
    let disk = node.disks.get(uid(9)).unwrap();
    assert!(!disk.linked && disk.phase == Phase::Ready, "{disk:?}");
    assert!(node.disks.base(uid(9)).is_none() && node.disks.is_held_by(uid(9), &id));
    // There is nothing left to do.
    agenda.submit(uid(2), uid(9), ONLINE).await.unwrap();
    assert_eq!(ended(&agenda, uid(2)).await.state, State::Success);
}

#[tokio::test]
async fn a_machine_that_is_off_is_not_promoted_online() {
    let node = Node::new().await;
    make_linked(&node).await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    agenda.submit(uid(1), uid(9), ONLINE).await.unwrap();
    let failed = ended(&agenda, uid(1)).await.failure.clone().unwrap();
    assert!(failed.transient, "{failed:?}");
    let disk = node.disks.get(uid(9)).unwrap();
    assert!(disk.linked && disk.phase == Phase::Ready);
}

/// The emulator says that it has copied all, and its tables are not on the device.
#[tokio::test]
async fn what_is_not_proved_keeps_its_image_and_the_next_start_has_it() {
    let (node, id, agenda, _work) = pulling().await;
    forget_image(&node);
    node.hypervisor.hold_jobs(false);
    let failed = ended(&agenda, uid(1)).await.failure.clone().unwrap();
    assert!(
        failed.transient && failed.message.contains("on the device"),
        "{failed:?}"
    );
    assert!(node.disks.is_pulled(uid(9)) && node.disks.base(uid(9)).is_some());
    let stopped = node.containers.stop(&id, std::time::Duration::ZERO);
    stopped.await.unwrap();
    agenda.submit(uid(2), uid(9), OFFLINE).await.unwrap();
    assert_eq!(ended(&agenda, uid(2)).await.state, State::Success);
    assert!(!node.disks.get(uid(9)).unwrap().linked);
}

#[tokio::test]
async fn a_start_on_a_disk_that_was_pulled_has_the_image_under_it() {
    let (node, id) = running().await;
    node.disks.begin_pull(uid(9), &id).await.unwrap();
    forget_image(&node);
    let stopped = node.containers.stop(&id, std::time::Duration::ZERO);
    stopped.await.unwrap();
    assert!(node.disks.is_pulled(uid(9)));
    let vm = uid(9).to_string();
    let sandbox = node.annotated("next", &[("vm-disk", &vm)]).await;
    let id = node.containers.create(&sandbox, node.machine(0)).await;
    node.containers.start(&id.unwrap()).await.unwrap();
    let disk = node.disks.get(uid(9)).unwrap();
    assert!(disk.linked && disk.phase == Phase::Ready, "{disk:?}");
    let domain = node.containers.running_vm(uid(9)).unwrap().domain();
    let image = node.disks.base(uid(9)).unwrap().path;
    let files = node.hypervisor.disk_files(domain).await.unwrap().unwrap();
    assert!(files.iter().any(|file| file.path == image), "{files:?}");
}

/// An emulator that its guest has taken over has written the header.
#[tokio::test]
async fn a_start_on_a_disk_that_cannot_be_settled_has_the_image_under_it() {
    use std::os::unix::fs::FileExt as _;
    let (node, id) = running().await;
    node.disks.begin_pull(uid(9), &id).await.unwrap();
    forget_image(&node);
    let stopped = node.containers.stop(&id, std::time::Duration::ZERO);
    stopped.await.unwrap();
    let file = std::fs::File::options()
        .write(true)
        .open(node.disks.file(uid(9)));
    // The feature of an external data file.
    file.unwrap().write_all_at(&[4], 79).unwrap();
    assert!(node.disks.settle_pull(uid(9)).await.is_err());
    let vm = uid(9).to_string();
    let sandbox = node.annotated("next", &[("vm-disk", &vm)]).await;
    let id = node.containers.create(&sandbox, node.machine(0)).await;
    node.containers.start(&id.unwrap()).await.unwrap();
    assert!(node.disks.is_pulled(uid(9)) && node.disks.get(uid(9)).unwrap().linked);
    let domain = node.containers.running_vm(uid(9)).unwrap().domain();
    let image = node.disks.base(uid(9)).unwrap().path;
    let files = node.hypervisor.disk_files(domain).await.unwrap().unwrap();
    assert!(files.iter().any(|file| file.path == image), "{files:?}");
}

/// Nothing can read the image of the machine from now on.
fn hide_image(node: &Node) {
    let image = node.disks.base(uid(9)).unwrap().path;
    std::fs::rename(&image, image.with_extension("aside")).unwrap();
}

#[tokio::test]
async fn a_machine_whose_proof_cannot_be_read_is_suspended_and_not_snapshotted() {
    let (node, _, agenda, _work) = pulling().await;
    let domain = node.containers.running_vm(uid(9)).unwrap().domain();
    forget_image(&node);
    hide_image(&node);
    let snapshot = Work::Snapshot {
        snapshot: uid(77),
        quiesce: 0,
        memory: false,
    };
    agenda.submit(uid(2), uid(9), snapshot).await.unwrap();
    let failed = ended(&agenda, uid(2)).await.failure.clone().unwrap();
    assert!(
        failed.transient && failed.message.contains("on the device"),
        "{failed:?}"
    );
    assert!(!node.hypervisor.has_job(domain));
    agenda.submit(uid(3), uid(9), Work::Save).await.unwrap();
    let done = ended(&agenda, uid(3)).await;
    assert_eq!(done.state, State::Success, "{done:?}");
    assert!(node.disks.is_pulled(uid(9)) && node.disks.base(uid(9)).is_some());
}

#[tokio::test]
async fn a_disk_whose_proof_could_not_be_read_is_not_pulled() {
    let (node, _) = running().await;
    hide_image(&node);
    assert_not_begun(&node, false, "promoteDisksMode Offline").await;
}

#[tokio::test]
async fn a_copy_by_the_emulator_does_not_begin_without_space() {
    let (node, _) = running().await;
    let node = node.restarted_with(Space::new(u64::MAX)).await;
    assert_not_begun(&node, true, "images.reserve").await;
}

async fn assert_not_begun(node: &Node, is_transient: bool, words: &str) {
    let agenda = agenda(node).await;
    let _work = work(&agenda);
    agenda.submit(uid(1), uid(9), ONLINE).await.unwrap();
    let failed = ended(&agenda, uid(1)).await.failure.clone().unwrap();
    assert!(
        failed.transient == is_transient && failed.message.contains(words),
        "{failed:?}"
    );
    let domain = node.containers.running_vm(uid(9)).unwrap().domain();
    assert!(!node.hypervisor.has_job(domain));
    let disk = node.disks.get(uid(9)).unwrap();
    assert!(disk.linked && disk.phase == Phase::Ready, "{disk:?}");
}

#[tokio::test]
async fn a_backup_ends_a_copy_by_the_emulator_and_waits_for_another_one() {
    for (promotion, ends) in [(ONLINE, true), (OFFLINE, false)] {
        let node = Node::new().await;
        let agenda = agenda(&node).await;
        agenda.submit(uid(1), uid(9), promotion).await.unwrap();
        assert_eq!(agenda.next()[0].uid, uid(1));
        let backup = Work::Backup(Backup {
            uid: uid(77),
            target: "nfs".to_owned(),
            name: "default/vm".to_owned(),
            full: false,
            quiesce: 0,
            most_increments: 62,
        });
        agenda.submit(uid(2), uid(9), backup).await.unwrap();
        assert!(agenda.next().is_empty());
        assert_eq!(agenda.makes_way(uid(1)).is_cancelled(), ends);
    }
}

#[tokio::test]
async fn a_copy_by_the_emulator_makes_way_for_a_snapshot_and_a_save() {
    let snapshot = Work::Snapshot {
        snapshot: uid(77),
        quiesce: 0,
        memory: false,
    };
    for next in [snapshot, Work::Save] {
        let (node, _, agenda, _work) = pulling().await;
        let domain = node.containers.running_vm(uid(9)).unwrap().domain();
        agenda.submit(uid(2), uid(9), next.clone()).await.unwrap();
        let failed = ended(&agenda, uid(1)).await.failure.clone().unwrap();
        assert!(failed.transient && failed.message.contains("another task"));
        let done = ended(&agenda, uid(2)).await;
        assert_eq!(done.state, State::Success, "{done:?}");
        assert!(!node.hypervisor.has_job(domain));
        assert!(!node.disks.is_pulled(uid(9)));
        assert!(node.disks.get(uid(9)).unwrap().linked);
    }
}

#[tokio::test]
async fn a_cancelled_copy_by_the_emulator_leaves_an_overlay() {
    let (node, _, agenda, _work) = pulling().await;
    let domain = node.containers.running_vm(uid(9)).unwrap().domain();
    agenda.cancel(uid(1)).await.unwrap();
    assert_eq!(ended(&agenda, uid(1)).await.state, State::Cancelled);
    assert!(!node.hypervisor.has_job(domain));
    let disk = node.disks.get(uid(9)).unwrap();
    assert!(disk.linked && disk.phase == Phase::Ready, "{disk:?}");
}

#[tokio::test]
async fn a_job_of_an_earlier_process_is_gone_on_with() {
    let (node, _, before, working) = pulling().await;
    drop(working);
    interrupted(&before, uid(1), false).await;
    copy_image(&node);
    let after = agenda(&node).await;
    let _work = work(&after);
    node.hypervisor.hold_jobs(false);
    assert_eq!(ended(&after, uid(1)).await.state, State::Success);
    assert!(!node.disks.get(uid(9)).unwrap().linked);
}
