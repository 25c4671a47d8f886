//! When guests are queried, and what stays of their answers.
//!
//! Invariant: the clock is paused; an agent answers as its test says, and then falls silent.
//! Failure: an answer of a guest that booted since.

use serde_json::{Value, json};

use super::*;
use crate::node::facts::Interface;
use crate::testkit::{Fake, Node};

fn known(agent: Agent, addresses: &[&str]) -> Known {
    let addresses = addresses.iter().map(ToString::to_string);
    let reply = Reply {
        interfaces: vec![Interface {
            name: "eth0".to_owned(),
            mac: "02:00:00:00:00:01".to_owned(),
            addresses: addresses.collect(),
        }],
        ..Reply::default()
    };
    Known {
        agent,
        reply,
        ..Known::default()
    }
}

#[test]
fn a_guest_is_queried_often_only_until_its_first_address_is_known() {
    let link_local = ["fe80::1/64", "169.254.1.1/16"];
    let waiting = [
        known(Agent::NoInfo, &[]),
        known(Agent::NotRunning, &[]),
        known(Agent::Connected, &[]),
        known(Agent::Connected, &link_local),
    ];
    for known in waiting {
        assert_eq!(known.period(true, true), FIRST, "{known:?}");
        assert_eq!(known.period(false, true), LOOK, "{known:?}");
        assert_eq!(known.period(false, false), PERIOD, "{known:?}");
    }
    let reached = known(Agent::Connected, &["fe80::1/64", "10.0.0.7/24"]);
    assert_eq!(reached.period(true, true), PERIOD);
}

/// `ready=yes`
const READY: &str = "cmVhZHk9eWVz";

/// What the agent of a boot answers to the first questions.
fn boot(name: &str, address: &str) -> Vec<Value> {
    let address = json!({"ip-address": address, "prefix": 24});
    let nic = json!({"name": "eth0", "hardware-address": "0a:58:0a:01:00:05",
        "ip-addresses": [address]});
    vec![
        json!({}),
        json!([nic]),
        json!({"host-name": name}),
        json!({"id": "debian"}),
    ]
}

/// What the agent of the first boot answers to all of them.
fn first_boot() -> Vec<Value> {
    let mut answers = boot("first", "10.0.0.1");
    answers.extend([json!(1), json!({"buf-b64": READY}), json!({})]);
    answers
}

/// Agents answer so from now on, and have not appeared.
fn answer(node: &Node, answers: impl IntoIterator<Item = Value>) {
    drop(node.hypervisor.clone().agent_answering(answers));
}

struct Guest {
    node: Node,
    machines: Arc<Machines<Fake>>,
    id: ContainerId,
}

impl Guest {
    async fn started() -> Self {
        let node = Node::new().await;
        let id = node.started().await;
        let hypervisor = Arc::new(node.hypervisor.clone());
        let machines = Machines::new(Arc::clone(&node.containers), hypervisor);
        tokio::time::pause();
        Self {
            node,
            machines: Arc::new(machines),
            id,
        }
    }

    async fn query(&self) -> Reply {
        self.machines.query_guest(&self.node.row(&self.id)).await;
        self.machines.known(&self.id).reply
    }

    async fn until(&self, reached: impl Fn(&Known) -> bool) -> Known {
        let mut changes = self.machines.changes();
        loop {
            let known = self.machines.known(&self.id);
            if reached(&known) {
                return known;
            }
            changes.changed().await.unwrap();
        }
    }
}

#[tokio::test]
async fn facts_of_the_boot_before_end_with_the_first_answer_of_the_next() {
    for is_seen in [true, false] {
        let guest = Guest::started().await;
        let domain = guest.id.domain();
        answer(&guest.node, first_boot());
        let events = guest.node.hypervisor.events();
        let follows = tokio::spawn(Arc::clone(&guest.machines).follow(events));
        let first = guest.until(|known| known.reply.host_name == "first").await;
        assert_eq!(first.reply.published["ready"], "yes");
        if is_seen {
            answer(&guest.node, boot("second", "10.0.0.2"));
            guest.node.hypervisor.reset(domain).await.unwrap();
        } else {
            // No event of the reset is received, but the agent is silent for a moment.
            guest.until(|known| known.agent == Agent::NotRunning).await;
            answer(&guest.node, boot("second", "10.0.0.2"));
        }
        let second = guest.until(|known| known.reply.host_name == "second").await;
        assert_eq!(second.agent, Agent::Connected);
        assert_eq!(second.reply.interfaces[0].addresses, ["10.0.0.2/24"]);
        assert!(second.reply.published.is_empty(), "{is_seen}: {second:?}");
        follows.abort();
        tokio::time::resume();
    }
}

#[tokio::test]
async fn after_a_reconnection_to_libvirt_a_guest_counts_as_booted() {
    let guest = Guest::started().await;
    answer(&guest.node, first_boot());
    assert_eq!(guest.query().await.published["ready"], "yes");
    guest.machines.connected().await;
    assert_eq!(guest.machines.known(&guest.id).reply.host_name, "first");
    answer(&guest.node, boot("second", "10.0.0.2"));
    let second = guest.query().await;
    assert_eq!(second.host_name, "second");
    assert!(second.published.is_empty());
}

#[tokio::test]
async fn a_turn_that_began_before_an_agent_appeared_swallows_neither_its_turn_nor_its_question() {
    let guest = Guest::started().await;
    let row = guest.node.row(&guest.id);
    answer(&guest.node, first_boot());
    let first = guest.query().await;
    assert!(!guest.machines.is_due(&row));

    answer(&guest.node, boot("between", "10.0.0.9"));
    guest
        .node
        .hypervisor
        .slow_agents(Duration::from_millis(1500));
    let appears = async {
        // The ping was answered, the first question was not.
        tokio::time::sleep(Duration::from_secs(2)).await;
        guest.machines.query_soon(guest.id.domain());
    };
    let overtaken = tokio::join!(guest.query(), appears).0;
    assert_eq!(
        overtaken, first,
        "of which boot the answers are is not known"
    );
    assert!(guest.machines.is_due(&row));

    guest.node.hypervisor.slow_agents(Duration::ZERO);
    answer(&guest.node, boot("second", "10.0.0.2"));
    let second = guest.query().await;
    assert_eq!(second.host_name, "second");
    assert_eq!(second.interfaces[0].addresses, ["10.0.0.2/24"]);
    assert!(!guest.machines.is_due(&row));
}

#[tokio::test]
async fn an_agent_that_appears_again_and_again_does_not_keep_its_old_facts() {
    let guest = Guest::started().await;
    answer(&guest.node, first_boot());
    guest.query().await;
    let mut said = Vec::new();
    for _ in 0..2 {
        answer(&guest.node, boot("second", "10.0.0.2"));
        guest
            .node
            .hypervisor
            .slow_agents(Duration::from_millis(100));
        let appears = async {
            tokio::time::sleep(Duration::from_millis(150)).await;
            guest.machines.query_soon(guest.id.domain());
        };
        said.push(tokio::join!(guest.query(), appears).0.host_name);
    }
    assert_eq!(said, ["first", "second"]);
}
