//! Agents that renew, fall silent and come back, by a clock that the tests move.
//!
//! Invariant: leases are those that agents write.
//! Failure: the agent that counts as running, or as lost, and is not.

use std::future::Future;

use crds::names::NODE_FACTS;
use serde_json::json;
use tokio::time::{advance, timeout};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// The lease of a node at its `n`th renewal.
fn lease(node: &str, n: u32, reaches: bool) -> Lease {
    let facts = json!({ "daemon": { "reachable": reaches } }).to_string();
    serde_json::from_value(json!({
        "metadata": { "name": format!("vmlet-node-{node}"), "annotations": { NODE_FACTS: facts } },
        "spec": { "renewTime": format!("2001-01-01T00:00:00.{n:06}Z") },
    }))
    .unwrap()
}

#[tokio::test(start_paused = true)]
async fn what_the_daemon_of_a_silent_agent_runs_is_not_known() {
    let agents = Agents::default();
    agents.apply(&Event::Init);
    for node in ["a", "b"] {
        agents.apply(&Event::InitApply(lease(node, 0, true)));
    }
    agents.apply(&Event::InitDone);
    assert_eq!(agents.runs("a", "Revert"), Some(false));
    for n in 1..4 {
        advance(TIMEOUT / 2).await;
        agents.apply(&Event::Apply(lease("b", n, true)));
    }
    assert_eq!(agents.runs("a", "Revert"), None);
    assert_eq!(agents.runs("b", "Revert"), Some(false));
    advance(TIMEOUT).await;
    assert_eq!(agents.runs("b", "Revert"), None, "the only one");
}

/// The lease of a node with these machine types.
fn with_types(node: &str, types: &[&str]) -> Lease {
    let mut lease = lease(node, 0, true);
    let facts = json!({ "daemon": { "reachable": true, "machineTypes": types } });
    let annotations = lease.metadata.annotations.as_mut().unwrap();
    annotations.insert(NODE_FACTS.to_owned(), facts.to_string());
    lease
}

#[tokio::test]
async fn only_nodes_whose_machine_types_are_known_lack_one() {
    let agents = Agents::default();
    let old = with_types("old", &["pc-q35-6.0", "pc-q35-7.2"]);
    let new = with_types("new", &["pc-q35-7.2", "pc-q35-9.0"]);
    assert_eq!(agents.lacks(None, "pc-q35-9.0"), None, "no node is known");
    list(&agents, &[old.clone(), new.clone()]);
    let lacks = |node, wanted| agents.lacks(node, wanted);
    assert_eq!(lacks(Some("old"), "pc-q35-7.2"), None);
    assert_eq!(
        lacks(Some("old"), "pc-q35-9.0").as_deref(),
        Some("pc-q35-7.2")
    );
    assert_eq!(lacks(Some("other"), "pc-q35-9.0"), None);
    assert_eq!(lacks(None, "pc-q35-9.0"), None, "one node has it");
    assert!(lacks(None, "pc-q35-99.0").is_some());
    list(&agents, &[old, new, with_types("silent", &[])]);
    assert_eq!(agents.lacks(None, "pc-q35-99.0"), None, "one is not known");
}

#[tokio::test(start_paused = true)]
async fn a_task_needs_a_node_with_a_running_agent_that_offers_its_kind() {
    let agents = Agents::default();
    let with_kinds = |node: &str, n: u32, kinds: &[&str]| {
        let mut lease = lease(node, n, true);
        let facts = json!({ "daemon": { "reachable": true, "taskKinds": kinds } });
        let annotations = lease.metadata.annotations.as_mut().unwrap();
        annotations.insert(NODE_FACTS.to_owned(), facts.to_string());
        lease
    };
    assert!(!agents.are_listed());
    assert!(agents.apply(&Event::Apply(with_kinds("b", 0, &["InspectImage"]))));
    agents.apply(&Event::Init);
    for node in ["a", "b"] {
        agents.apply(&Event::InitApply(with_kinds(node, 1, &["InspectImage"])));
    }
    agents.apply(&Event::InitApply(with_kinds("old", 1, &["Provision"])));
    assert!(agents.apply(&Event::InitDone), "the first list");
    assert_eq!(agents.able("InspectImage"), ["a", "b"]);
    let again = with_kinds("b", 2, &["InspectImage"]);
    assert!(
        !agents.apply(&Event::Apply(again)),
        "a renewal is no change"
    );
    assert!(agents.apply(&Event::Apply(with_kinds("old", 2, &["InspectImage"]))));
    assert_eq!(agents.able("InspectImage"), ["a", "b", "old"]);
    assert_eq!(agents.able("Provision"), Vec::<String>::new());
    agents.apply(&Event::Apply(lease("a", 3, false)));
    advance(30 * SECOND).await;
    agents.apply(&Event::Apply(with_kinds("b", 4, &["InspectImage"])));
    advance(15 * SECOND).await;
    assert_eq!(
        agents.able("InspectImage"),
        ["b"],
        "one does not reach its daemon, one is silent"
    );
    assert_eq!(agents.known().len(), 3);
}

fn list(agents: &Agents, leases: &[Lease]) {
    agents.apply(&Event::Init);
    for lease in leases {
        agents.apply(&Event::InitApply(lease.clone()));
    }
    agents.apply(&Event::InitDone);
}

/// `a` renews every second; `b` is what the other one says in that second.
async fn pass_by(agents: &Agents, seconds: u32, b: impl Fn(u32) -> Option<Lease>) {
    for n in 1..=seconds {
        advance(SECOND).await;
        agents.apply(&Event::Apply(lease("a", n, true)));
        if let Some(lease) = b(n) {
            agents.apply(&Event::Apply(lease));
        }
    }
}

async fn ends_at_once(future: impl Future<Output = Vec<String>>) -> bool {
    timeout(Duration::ZERO, future).await.is_ok()
}

#[tokio::test(start_paused = true)]
async fn an_agent_without_a_renewal_for_forty_seconds_is_lost_until_it_renews() {
    let agents = Agents::default();
    assert!(agents.lives("b"), "no agent was listed");
    list(&agents, &[lease("a", 0, true), lease("b", 0, true)]);
    // The lease is written, and never renewed.
    pass_by(&agents, 39, |_| Some(lease("b", 0, true))).await;
    assert!(agents.lives("a") && agents.lives("b") && !agents.lives("c"));
    assert!(!ends_at_once(agents.lost()).await);
    pass_by(&agents, 1, |_| None).await;
    // `a` was last renewed with another number.
    assert!(agents.lives("a") && !agents.lives("b"));
    assert!(ends_at_once(agents.lost()).await);
    assert!(!ends_at_once(agents.lost()).await, "reported once");
    agents.apply(&Event::Apply(lease("b", 1, true)));
    assert!(agents.lives("b"));
    agents.apply(&Event::Delete(lease("b", 1, true)));
    assert!(!agents.lives("b"));
}

#[tokio::test(start_paused = true)]
async fn a_daemon_that_does_not_answer_its_agent_is_as_good_as_none_after_the_same_time() {
    let agents = Agents::default();
    list(&agents, &[lease("a", 0, true), lease("b", 0, true)]);
    pass_by(&agents, 40, |n| Some(lease("b", n, false))).await;
    assert!(agents.lives("b"), "it said so 39 seconds ago");
    pass_by(&agents, 1, |_| Some(lease("b", 41, false))).await;
    assert!(!agents.lives("b"));
    agents.apply(&Event::Apply(lease("b", 42, true)));
    assert!(agents.lives("b"));
}

#[tokio::test(start_paused = true)]
async fn a_daemon_that_answers_again_after_a_short_time_can_do_more() {
    let agents = Agents::default();
    list(&agents, &[lease("a", 0, true)]);
    let renew = |n, reaches| agents.apply(&Event::Apply(lease("a", n, reaches)));
    for (n, reaches, is_change) in [
        (1, false, false),
        (2, false, false),
        (3, true, true),
        (4, true, false),
    ] {
        advance(10 * SECOND).await;
        assert_eq!(renew(n, reaches), is_change, "{n}");
        assert_eq!(agents.runs("a", "Revert").is_some(), reaches, "{n}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_any_report_no_agent_is_lost_nor_right_after() {
    let agents = Agents::default();
    let all = |n| {
        [
            lease("a", n, true),
            lease("b", n, true),
            lease("c", 0, true),
        ]
    };
    list(&agents, &all(0));
    pass_by(&agents, 40, |n| Some(lease("b", n, true))).await;
    assert!(!agents.lives("c"));
    assert!(ends_at_once(agents.lost()).await);
    advance(60 * SECOND).await;
    assert!(agents.lives("a") && agents.lives("b") && agents.lives("c"));
    assert!(!ends_at_once(agents.lost()).await);
    agents.apply(&Event::Apply(lease("a", 999, true)));
    advance(10 * SECOND).await;
    assert!(agents.lives("b"), "it has time to renew");
    assert!(!agents.lives("c"), "it was silent before");
    assert!(!ends_at_once(agents.lost()).await);
}

#[tokio::test(start_paused = true)]
async fn a_lost_agent_is_reported_when_its_lease_expires() {
    let agents = Agents::default();
    list(&agents, &[lease("a", 0, true), lease("b", 0, true)]);
    let waiting = tokio::spawn({
        let agents = agents.clone();
        async move { agents.lost().await }
    });
    tokio::task::yield_now().await;
    pass_by(&agents, 45, |_| None).await;
    let lost = timeout(SECOND, waiting).await.unwrap().unwrap();
    assert_eq!(lost, ["b"]);
}
