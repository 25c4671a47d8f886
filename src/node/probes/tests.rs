//! Probes of machines over a fake hypervisor, with real connections.
//!
//! Invariant: time passes only where attempts are awaited.
//! Failure: waits have a deadline and panic after it.

use std::net::Ipv4Addr;
use std::num::NonZeroU16;

use podspec::VmUid;
use tokio::net::TcpListener;

use super::*;
use crate::testkit::{Fake, Node, TIMEOUT};

const VM: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1a";
const POD: &str = "uid of pod";

fn vm() -> VmUid {
    VM.parse().unwrap()
}

async fn running(node: &Node) -> ContainerId {
    node.make_disk(vm()).await;
    let sandbox = node.annotated("pod", &[("vm-disk", VM)]).await;
    let id = node.containers.create(&sandbox, node.machine(0)).await;
    let id = id.unwrap();
    node.containers.start(&id).await.unwrap();
    id
}

fn probe(port: u16) -> TcpProbe {
    TcpProbe {
        host: Some(Ipv4Addr::LOCALHOST.into()),
        port: NonZeroU16::new(port).unwrap(),
        period_seconds: 10,
        timeout_seconds: 1,
    }
}

/// Addresses of the machine that runs the tests are refused otherwise.
fn every(addresses: Vec<IpAddr>) -> Vec<IpAddr> {
    addresses
}

async fn until(probes: &Probes<Fake>, node: &Node, id: &ContainerId, wanted: Option<Outcome>) {
    let mut changes = probes.changes();
    let waiting = async {
        while probes.outcome(&node.row(id)) != wanted {
            changes.changed().await.unwrap();
        }
    };
    let waited = time::timeout(TIMEOUT, waiting).await;
    waited.unwrap_or_else(|_| panic!("{:?}", probes.outcome(&node.row(id))));
}

#[tokio::test]
async fn a_machine_is_probed_from_its_record_until_that_has_no_probe() {
    let node = Node::new().await;
    let id = running(&node).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let probe = probe(listener.local_addr().unwrap().port());
    let set = node.containers.set_probe(vm(), POD, Some(&probe));
    set.await.unwrap();
    let containers = Arc::clone(&node.containers);
    let probes = Arc::new(Probes::admitting(containers, every));
    let _followed = AbortOnDropHandle::new(tokio::spawn(Arc::clone(&probes).follow()));
    until(&probes, &node, &id, Some(Outcome::Connected)).await;
    drop(listener);
    time::pause();
    until(&probes, &node, &id, Some(Outcome::Refused)).await;
    time::resume();
    let ended = node.containers.set_probe(vm(), POD, None).await;
    ended.unwrap();
    assert_eq!(probes.outcome(&node.row(&id)), None);
    while !probes.lock().entries.is_empty() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_result_of_another_probe_does_not_count() {
    let node = Node::new().await;
    let id = running(&node).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let first = probe(listener.local_addr().unwrap().port());
    let set = node.containers.set_probe(vm(), POD, Some(&first)).await;
    set.unwrap();
    let containers = Arc::clone(&node.containers);
    let probes = Arc::new(Probes::admitting(containers, every));
    probes.sync();
    until(&probes, &node, &id, Some(Outcome::Connected)).await;
    let slower = TcpProbe {
        period_seconds: 20,
        ..first
    };
    let set = node.containers.set_probe(vm(), POD, Some(&slower)).await;
    set.unwrap();
    assert_eq!(probes.outcome(&node.row(&id)), None);
    probes.sync();
    until(&probes, &node, &id, Some(Outcome::Connected)).await;
    assert_eq!(probes.lock().entries.len(), 1);
}

#[tokio::test]
async fn the_node_itself_is_not_probed_and_a_machine_without_an_address_is_not_ready() {
    let node = Node::new().await;
    let id = running(&node).await;
    let probes = Probes::new(Arc::clone(&node.containers));
    let places = Semaphore::new(1);
    let outcome = probes.attempt(&id, &probe(22), &places).await;
    assert_eq!(outcome, Outcome::NotAllowed);
    let own = TcpProbe {
        host: None,
        ..probe(22)
    };
    let outcome = probes.attempt(&id, &own, &places).await;
    assert_eq!(outcome, Outcome::NoAddress);
    assert_eq!(places.available_permits(), 1, "they are given back");
}

#[test]
fn the_probes_of_one_namespace_do_not_delay_those_of_another() {
    let mut state = State::default();
    let greedy = state.places_of("greedy");
    let all = u32::try_from(PER_NAMESPACE).unwrap();
    let _held = greedy.try_acquire_many(all).unwrap();
    assert_eq!(state.places_of("greedy").available_permits(), 0);
    let other = state.places_of("other");
    assert_eq!(other.available_permits(), PER_NAMESPACE);
    drop(other);
    state.places_of("third");
    assert_eq!(
        state.places.len(),
        2,
        "one that probes nothing is forgotten"
    );
}
