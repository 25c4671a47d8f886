//! Snapshots as tasks: of machines that run and of those that are off, and across the ends of this process.
//!
//! Invariant: real disks and `qemu-img`; the emulator and the guest's agent only keep state.
//! Failure: a test prints the task that did not end as it should.

use libvirt::FakeHypervisor;
use nodeapi::v1;
use nodeapi::v1::node_server::Node as _;
use podspec::ContainerId;
use serde_json::json;
use uuid::Uuid;

use super::*;
use crate::disk::SnapshotUid;
use crate::node::task::Failure;

mod late;
mod memory;
mod merges;
mod own_agent;
mod thaws;

fn snapshot(n: u32) -> SnapshotUid {
    uid(100 + n)
}

fn take(n: u32, quiesce: u32) -> Work {
    Work::Snapshot {
        snapshot: snapshot(n),
        quiesce,
        memory: false,
    }
}

/// A machine that runs on a disk of the node.
async fn running(hypervisor: FakeHypervisor) -> (Node, ContainerId, Uuid) {
    let node = Node::with(hypervisor).await;
    node.make_disk(uid(9)).await;
    let vm = uid(9).to_string();
    let sandbox = node.annotated("pod", &[("vm-disk", &vm)]).await;
    let id = node.containers.create(&sandbox, node.machine(0)).await;
    let id = id.unwrap();
    node.containers.start(&id).await.unwrap();
    let domain = node.containers.running_vm(uid(9)).unwrap().domain();
    (node, id, domain)
}

async fn run(agenda: &Arc<Tasks>, task: u32, work: Work) -> Arc<Task> {
    agenda.submit(uid(task), uid(9), work).await.unwrap();
    ended(agenda, uid(task)).await
}

async fn failure(agenda: &Arc<Tasks>, task: u32, work: Work) -> Failure {
    run(agenda, task, work).await.failure.clone().unwrap()
}

/// The task as a daemon that was killed leaves it.
async fn interrupted(agenda: &Tasks, task: u32, is_cancelled: bool) {
    let run = |task: &mut Task| {
        task.state = State::Running;
        task.started_at = 1;
        task.cancelled = is_cancelled;
        true
    };
    agenda.records.change(&uid(task), run).await.unwrap();
}

fn commands(node: &Node) -> Vec<String> {
    let all = node.hypervisor.agent_commands().into_iter();
    let names = all.filter_map(|command| command["execute"].as_str().map(str::to_owned));
    names.filter(|name| name.contains("fsfreeze")).collect()
}

async fn root(node: &Node, domain: Uuid) -> std::path::PathBuf {
    use libvirt::Hypervisor as _;
    node.hypervisor.root_file(domain).await.unwrap().unwrap()
}

#[tokio::test]
async fn a_snapshot_of_a_running_machine_gives_it_a_new_layer() {
    let (node, id, domain) = running(FakeHypervisor::default()).await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    let first = node.disks.file(uid(9));
    assert_eq!(root(&node, domain).await, first);
    let done = run(&agenda, 1, take(1, 0)).await;
    let taken = done.snapshot.unwrap();
    assert!(taken.running && !taken.quiesced && taken.uid == snapshot(1));
    assert_eq!(root(&node, domain).await, node.disks.file(uid(9)));
    assert_eq!(node.disks.files(uid(9)).below, [first]);
    // Again is the same, also while it is off.
    assert_eq!(run(&agenda, 2, take(1, 30)).await.snapshot, Some(taken));
    let refused = failure(
        &agenda,
        3,
        Work::Revert {
            snapshot: snapshot(1),
            memory: false,
        },
    )
    .await;
    assert!(refused.transient, "{refused:?}");
    let delete = || Work::DeleteSnapshot {
        snapshot: snapshot(1),
    };
    let stopped = node.containers.stop(&id, std::time::Duration::ZERO);
    stopped.await.unwrap();
    let reverted = run(
        &agenda,
        5,
        Work::Revert {
            snapshot: snapshot(1),
            memory: false,
        },
    )
    .await;
    assert_eq!(reverted.state, State::Success, "{reverted:?}");
    let deleted = run(&agenda, 6, delete()).await;
    assert_eq!(deleted.state, State::Success, "{deleted:?}");
    assert!(node.disks.get(uid(9)).unwrap().layers.is_none());
    assert_eq!(run(&agenda, 7, delete()).await.state, State::Success);
}

#[tokio::test]
async fn the_next_start_has_all_layers() {
    let (node, id, _) = running(FakeHypervisor::default()).await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    run(&agenda, 1, take(1, 0)).await;
    node.containers
        .stop(&id, std::time::Duration::ZERO)
        .await
        .unwrap();
    let off = run(&agenda, 2, take(2, 30)).await.snapshot.unwrap();
    assert!(!off.running && !off.quiesced);
    let vm = uid(9).to_string();
    let sandbox = node.annotated("next", &[("vm-disk", &vm)]).await;
    let id = node.containers.create(&sandbox, node.machine(0)).await;
    node.containers.start(&id.unwrap()).await.unwrap();
    let domain = node.containers.running_vm(uid(9)).unwrap().domain();
    let xml = node.hypervisor.xml(domain).unwrap();
    let files = node.disks.files(uid(9));
    assert_eq!(files.below.len(), 2);
    let place = |path: &std::path::Path| xml.find(path.to_str().unwrap()).unwrap();
    assert!(place(&files.active) < place(&files.below[0]));
    assert!(place(&files.below[0]) < place(&files.below[1]));
    assert!(xml.contains("VMLET_LAYERS"));
}

#[tokio::test]
async fn a_guest_is_frozen_for_the_switch_and_thawed_again() {
    let replies = [json!({}), json!(2), json!(2)];
    let guest = FakeHypervisor::default().agent_answering(replies);
    let (node, ..) = running(guest).await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    let taken = run(&agenda, 1, take(1, 30)).await.snapshot.unwrap();
    assert!(taken.quiesced && taken.running);
    assert_eq!(
        commands(&node),
        ["guest-fsfreeze-freeze", "guest-fsfreeze-thaw"]
    );
}

/// One without an agent, or with a silent one, is not even requested to.
#[rstest::rstest]
#[case::no_agent(None, 0)]
#[case::silent(Some(vec![]), 0)]
#[case::no_file_system(Some(vec![json!({}), json!(0), json!(0)]), 2)]
#[case::refused(Some(vec![json!({}), json!({"error": "x"}), json!(0)]), 2)]
#[tokio::test]
async fn a_guest_that_does_not_freeze_leaves_no_snapshot(
    #[case] replies: Option<Vec<serde_json::Value>>,
    #[case] requests: usize,
) {
    let guest = FakeHypervisor::default();
    let guest = match replies {
        Some(replies) => guest.agent_answering(replies),
        None => guest,
    };
    let (node, _, domain) = running(guest).await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    let before = node.disks.file(uid(9));
    let refused = failure(&agenda, 1, take(1, 30)).await;
    assert!(!refused.transient && refused.message.contains("without quiesce"));
    assert_eq!(commands(&node).len(), requests);
    assert_eq!(root(&node, domain).await, before);
    assert!(node.disks.get(uid(9)).unwrap().layers.is_none());
    let layers = std::fs::read_dir(node.disks.layers_directory(uid(9)));
    assert_eq!(layers.into_iter().flatten().count(), 0);
}

/// Only the emulator knows whether a call that failed took effect.
#[rstest::rstest]
#[case::not_switched(false)]
#[case::switched(true)]
#[tokio::test]
async fn what_the_emulator_has_decides(#[case] takes_place: bool) {
    let (node, _, domain) = running(FakeHypervisor::default()).await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    let before = node.disks.file(uid(9));
    node.hypervisor.fail_switches("no permission", takes_place);
    let done = run(&agenda, 1, take(1, 0)).await;
    assert_eq!(done.snapshot.is_some(), takes_place);
    assert_eq!(root(&node, domain).await, node.disks.file(uid(9)));
    assert_eq!(node.disks.file(uid(9)) != before, takes_place);
    assert_eq!(node.disks.change(uid(9)), None);
    if !takes_place {
        let refused = done.failure.clone().unwrap();
        assert!(!refused.transient && refused.message.contains("restart it"));
    }
    node.hypervisor.accept_switches();
    assert_eq!(run(&agenda, 2, take(1, 0)).await.state, State::Success);
}

/// The daemon was killed while the guest was frozen, before or after the switch.
#[rstest::rstest]
#[case::before(false, false)]
#[case::after(true, false)]
#[case::cancelled(true, true)]
#[tokio::test]
async fn a_guest_that_an_earlier_process_froze_is_thawed(
    #[case] is_switched: bool,
    #[case] is_cancelled: bool,
) {
    use libvirt::Hypervisor as _;
    let replies = [json!(1), json!({}), json!(1), json!(1)];
    let guest = FakeHypervisor::default().agent_answering(replies);
    let (node, _, domain) = running(guest).await;
    let before = agenda(&node).await;
    before.submit(uid(1), uid(9), take(1, 30)).await.unwrap();
    interrupted(&before, 1, is_cancelled).await;
    let change = node.disks.begin_snapshot(uid(9), snapshot(1), true).await;
    let change = change.unwrap();
    node.disks.make_layer(uid(9), change).await.unwrap();
    node.disks
        .set_freezes(uid(9), change.layer, true)
        .await
        .unwrap();
    let layer = node.disks.new_layer(uid(9), change);
    if is_switched {
        node.hypervisor
            .switch_root(domain, layer.clone())
            .await
            .unwrap();
    }
    let node = node.restarted().await;
    let after = agenda(&node).await;
    let _work = work(&after);
    let done = ended(&after, uid(1)).await;
    assert_eq!(done.state, State::Success, "{done:?}");
    let requested = commands(&node);
    assert_eq!(requested.first().unwrap(), "guest-fsfreeze-thaw");
    assert_eq!(requested.last().unwrap(), "guest-fsfreeze-thaw");
    assert_eq!(root(&node, domain).await, node.disks.file(uid(9)));
    assert!(!is_switched || node.disks.file(uid(9)) == layer);
    assert_eq!(done.snapshot.unwrap().quiesced, !is_switched);
}

/// The machine ended while no daemon ran: its emulator may have written to the layer.
#[tokio::test]
async fn a_snapshot_is_completed_by_the_next_start_when_its_machine_has_ended() {
    let (node, id, domain) = running(FakeHypervisor::default()).await;
    let change = node.disks.begin_snapshot(uid(9), snapshot(1), true).await;
    let change = change.unwrap();
    node.disks.make_layer(uid(9), change).await.unwrap();
    node.hypervisor.power_off(domain);
    node.containers
        .stop(&id, std::time::Duration::ZERO)
        .await
        .unwrap();
    let vm = uid(9).to_string();
    let sandbox = node.annotated("next", &[("vm-disk", &vm)]).await;
    let id = node.containers.create(&sandbox, node.machine(0)).await;
    node.containers.start(&id.unwrap()).await.unwrap();
    assert_eq!(
        node.disks.file(uid(9)),
        node.disks.new_layer(uid(9), change)
    );
    assert_eq!(root(&node, domain).await, node.disks.file(uid(9)));
}

#[tokio::test]
async fn a_promotion_makes_way_for_a_snapshot() {
    let node = Node::new().await;
    node.make_disk(uid(9)).await;
    let agenda = agenda(&node).await;
    agenda
        .submit(uid(1), uid(9), Work::Promote { online: false })
        .await
        .unwrap();
    agenda.submit(uid(2), uid(9), take(1, 0)).await.unwrap();
    assert_eq!(agenda.next().len(), 1);
    assert!(agenda.makes_way(uid(1)).is_cancelled());
}

#[tokio::test]
async fn a_disk_is_listed_with_its_snapshots() {
    let node = Node::new().await;
    node.make_disk(uid(9)).await;
    for n in [1, 2] {
        node.disks.take_snapshot(uid(9), snapshot(n)).await.unwrap();
    }
    node.disks.revert(uid(9), snapshot(1)).await.unwrap();
    let service = service(&node).await;
    let listed = service.list_disks(tonic::Request::new(v1::ListDisksRequest {}));
    let disk = listed.await.unwrap().into_inner().disks.remove(0);
    assert!(disk.complete);
    assert_eq!(disk.current_snapshot, snapshot(1).to_string());
    let uids: Vec<_> = disk
        .snapshots
        .iter()
        .map(|one| (one.uid.clone(), one.parent_uid.clone()))
        .collect();
    let name = |n| snapshot(n).to_string();
    assert_eq!(uids, [(name(1), String::new()), (name(2), name(1))]);
    assert!(disk.snapshots[0].created_ms > 0 && disk.snapshots[0].used_bytes > 0);
}

/// No task is left that would end it.
#[tokio::test]
async fn reconciliation_thaws_a_guest_and_ends_the_snapshot_of_an_earlier_process() {
    use libvirt::Hypervisor as _;
    let guest = FakeHypervisor::default().agent_answering([json!(1)]);
    let (node, _, domain) = running(guest).await;
    let change = node.disks.begin_snapshot(uid(9), snapshot(1), true).await;
    let change = change.unwrap();
    node.disks.make_layer(uid(9), change).await.unwrap();
    let set = node.disks.set_freezes(uid(9), change.layer, true);
    set.await.unwrap();
    let layer = node.disks.new_layer(uid(9), change);
    node.hypervisor.switch_root(domain, layer).await.unwrap();
    let node = node.restarted().await;
    let mut changes = node.disks.changes();
    node.containers.reconcile().await.unwrap();
    let settled = async {
        while node.disks.change(uid(9)).is_some() {
            changes.changed().await.unwrap();
        }
    };
    tokio::time::timeout(TIMEOUT, settled).await.unwrap();
    assert_eq!(commands(&node), ["guest-fsfreeze-thaw"]);
    let taken = node.disks.snapshot(uid(9), snapshot(1)).await.unwrap();
    assert!(taken.is_some_and(|taken| taken.running && !taken.quiesced));
}
