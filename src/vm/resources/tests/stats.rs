//! What machines have used, with helpers that answer, hang and go away.
//!
//! Invariant: clients never wait longer than a few seconds, whatever the helpers do.
//! Failure: counts of requests show who asked too often.

use std::time::{Duration, Instant};

use libvirt::Hypervisor;
use podspec::ContainerId;

use crate::testkit::Node;
use crate::vm::state::Phase;

/// Lets the last look grow too old to serve again, in no time.
async fn later() {
    tokio::time::pause();
    tokio::time::advance(Duration::from_millis(550)).await;
    tokio::time::resume();
}

#[tokio::test]
async fn many_clients_share_one_request_to_libvirt() {
    let node = Node::new().await;
    let id = node.started().await;
    node.hypervisor.burn(id.domain(), 1_000);
    // However long they take, it is one moment.
    tokio::time::pause();
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let containers = std::sync::Arc::clone(&node.containers);
        clients.spawn(async move { containers.stats().await });
    }
    for snapshot in clients.join_all().await {
        assert_eq!(snapshot.machine(&id).cpu.unwrap().nanoseconds, 1_000);
    }
    assert_eq!(node.hypervisor.stats_calls(), 1);
}

/// Prints what a look at a thousand machines takes, and what the next client pays.
#[tokio::test]
async fn a_thousand_machines_cost_one_request_to_libvirt() {
    let node = Node::new().await;
    let first = node.started().await;
    let row = node.row(&first);
    let sandbox = node.sandbox_rows.get(&row.sandbox).unwrap();
    for number in 1..1000 {
        let mut pod = (*sandbox).clone();
        pod.id = podspec::SandboxId::generate();
        pod.config.metadata.attempt = number;
        let mut container = (*row).clone();
        container.id = ContainerId::generate();
        container.sandbox = pod.id.clone();
        node.sandbox_rows.insert(pod).await.unwrap();
        let name = format!("n{number}");
        let uuid = container.id.domain();
        let xml = format!("<domain><name>{name}</name><uuid>{uuid}</uuid></domain>");
        node.hypervisor.define(xml).await.unwrap();
        node.hypervisor.start(uuid).await.unwrap();
        node.rows.insert(container).await.unwrap();
    }
    tokio::time::pause();
    let begun = Instant::now();
    let look = node.containers.stats().await;
    let took = begun.elapsed();
    let begun = Instant::now();
    let again = node.containers.stats().await;
    println!("a look: {took:?}, its next client: {:?}", begun.elapsed());
    assert_eq!(node.hypervisor.stats_calls(), 1);
    assert!(std::sync::Arc::ptr_eq(&look, &again));
    for row in node.rows.all() {
        assert!(look.machine(&row.id).cpu.is_some());
    }
}

#[tokio::test]
async fn a_rate_comes_with_the_second_look_and_traffic_with_each() {
    let node = Node::new().await;
    let id = node.started().await;
    let sandbox = node.row(&id).sandbox.clone();
    node.hypervisor.burn(id.domain(), 5_000_000);
    node.network.transfer(&sandbox, 10, 20);
    let first = node.containers.stats().await;
    assert_eq!(first.machine(&id).cpu.unwrap().rate, None);
    let traffic = first.pod(&sandbox).network.unwrap();
    assert_eq!(
        (traffic.nics[0].rx_bytes, traffic.nics[0].tx_bytes),
        (10, 20)
    );
    assert!(first.disk(&sandbox).unwrap().bytes > 0);
    later().await;
    node.hypervisor.burn(id.domain(), 105_000_000);
    let second = node.containers.stats().await.machine(&id).cpu.unwrap();
    let passed = second.at - first.machine(&id).cpu.unwrap().at;
    // 100 ms of CPU in the time between the two.
    let rate = 100_000_000 * 1_000_000_000 / u128::try_from(passed).unwrap();
    assert_eq!(u128::from(second.rate.unwrap()), rate);
}

/// The layer that the guest writes to is empty at first.
#[tokio::test]
async fn a_disk_with_snapshots_counts_all_layers_under_the_guest() {
    let vm = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1a";
    let node = Node::new().await;
    node.make_disk(vm.parse().unwrap()).await;
    let sandbox = node.annotated("pod", &[("vm-disk", vm)]).await;
    let id = node.containers.create(&sandbox, node.machine(0)).await;
    node.containers.start(&id.unwrap()).await.unwrap();
    let vm = vm.parse().unwrap();
    let taken = node.containers.take_snapshot(vm, vm, 0).await.unwrap();
    let disk = node.containers.stats().await.disk(&sandbox).unwrap();
    assert!(disk.bytes > taken.used_bytes, "{disk:?}");
    assert_eq!((disk.bytes, disk.inodes), (node.disks.allocated(vm), 2));
}

#[tokio::test]
async fn without_helpers_the_last_figures_stay_with_their_own_time() {
    let node = Node::new().await;
    let id = node.started().await;
    let sandbox = node.row(&id).sandbox.clone();
    node.hypervisor.burn(id.domain(), 7);
    node.network.transfer(&sandbox, 1, 2);
    let before = node.containers.stats().await;
    later().await;
    node.hypervisor.disconnect();
    node.network.set_away(true);
    let after = node.containers.stats().await;
    assert_eq!(after.machine(&id).cpu, before.machine(&id).cpu);
    assert_eq!(after.pod(&sandbox).network, before.pod(&sandbox).network);
}

#[tokio::test]
async fn a_hanging_libvirt_blocks_no_request() {
    let node = Node::new().await;
    let id = node.started().await;
    node.hypervisor.hang_stats(true);
    let begun = Instant::now();
    let snapshot = node.containers.stats().await;
    assert!(begun.elapsed() < Duration::from_secs(30));
    assert_eq!(snapshot.machine(&id).cpu, None);
    node.hypervisor.hang_stats(false);
    later().await;
    assert!(node.containers.stats().await.machine(&id).cpu.is_some());
}

#[tokio::test]
async fn a_stopped_machine_has_no_usage_and_causes_no_call() {
    let node = Node::new().await;
    let id = node.created().await;
    let snapshot = node.containers.stats().await;
    let usage = snapshot.machine(&id);
    assert_eq!((usage.cpu, usage.memory, usage.pid), (None, None, None));
    assert_eq!(node.hypervisor.stats_calls(), 0);
    node.containers.start(&id).await.unwrap();
    node.hypervisor.power_off(id.domain());
    node.until(&id, |row| row.phase == Phase::Exited).await;
    later().await;
    assert_eq!(node.containers.stats().await.machine(&id).cpu, None);
}

#[tokio::test]
async fn a_disk_that_hangs_hides_no_figure_of_others() {
    let node = Node::new().await;
    let mut machines = Vec::new();
    for name in ["hung", "well"] {
        let sandbox = node.annotated(name, &[]).await;
        let created = node.containers.create(&sandbox, node.machine(0)).await;
        let id = created.unwrap();
        node.containers.start(&id).await.unwrap();
        machines.push(id);
    }
    let machines = <[ContainerId; 2]>::try_from(machines).unwrap();
    let [hung, well] = machines.each_ref().map(|id| node.row(id).sandbox.clone());
    let reading = node.containers.meter.hold_disk(hung.clone());
    let look = node.containers.stats().await;
    assert!(look.disk(&well).is_some());
    assert_eq!(look.disk(&hung), None);
    for id in &machines {
        assert!(look.machine(id).cpu.is_some());
    }
    drop(reading);
    later().await;
    assert!(node.containers.stats().await.disk(&hung).is_some());
}
