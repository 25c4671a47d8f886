//! Tasks over a fake hypervisor: their order, their ends, and what a restart makes of them.
//!
//! Invariant: a second agenda over the same database is what a restarted daemon has.
//! Failure: waits have a deadline and panic after it.

use std::num::NonZeroU16;
use std::sync::Arc;

use podspec::VmUid;
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::backup::Targets;
use crate::disk::Phase;
use crate::testkit::{Fake, Node, TIMEOUT};
use crate::vm::TcpProbe;

mod backups;
mod clones;
mod disks;
mod info;
mod inspect;
mod pod_pulls;
mod promote;
mod pull;
mod snapshots;

type Tasks = Agenda<Fake>;

pub(super) fn uid(n: u32) -> VmUid {
    format!("0d1f4ad2-3c0e-4d53-9a8b-1f3e{n:08x}")
        .parse()
        .unwrap()
}

pub(super) async fn agenda(node: &Node) -> Arc<Tasks> {
    let limits = Limits {
        provisions: 1,
        saves: 1,
        promotions: 1,
        promotion_rate: 0,
    };
    let agenda = Agenda::open(
        node.db.clone(),
        Arc::clone(&node.containers),
        Arc::new(node.hypervisor.clone()),
        Arc::clone(&node.disks),
        Arc::clone(&node.images),
        crate::tasks::Tasks::default(),
        limits,
    );
    Arc::new(agenda.await.unwrap())
}

pub(super) fn exports(node: &Node) -> Exports {
    exports_with(node, Targets::default())
}

fn exports_with(node: &Node, targets: Targets) -> Exports {
    let root = exports_root(node);
    Exports::open(Arc::clone(&node.disks), targets, root).unwrap()
}

fn exports_root(node: &Node) -> std::path::PathBuf {
    let file = node.disks.file(uid(0));
    let state = file.ancestors().nth(3).unwrap();
    Exports::directory_of(state)
}

pub(super) async fn service(node: &Node) -> Service<Fake> {
    let hypervisor = Arc::new(node.hypervisor.clone());
    let containers = Arc::clone(&node.containers);
    let health = Health::new(
        Arc::clone(&hypervisor),
        Arc::new(node.network.clone()),
        Arc::clone(&containers),
    );
    let services = Services {
        identity: Identity {
            installation: String::new(),
            boot: String::new(),
        },
        agenda: agenda(node).await,
        machines: Arc::new(Machines::new(Arc::clone(&containers), hypervisor)),
        probes: Arc::new(Probes::new(Arc::clone(&containers))),
        containers,
        disks: Arc::clone(&node.disks),
        exports: exports(node),
        settings: crate::node_settings::tests::of_plain_node().await,
        images: Arc::clone(&node.images),
        health: Arc::new(health),
    };
    Service::new(services, &Config::default(), CancellationToken::new())
}

fn work(agenda: &Arc<Tasks>) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(Arc::clone(agenda).work()))
}

fn provision(node: &Node, image: &str) -> Work {
    Work::Provision {
        image: node.image(image),
        url: None,
        size: 0,
        linked: true,
        name: "default/vm".to_owned(),
        tls_secret: None,
    }
}

fn probe() -> Work {
    let probe = TcpProbe {
        host: None,
        port: NonZeroU16::MIN,
        period_seconds: 10,
        timeout_seconds: 1,
    };
    Work::SetProbe {
        pod: "p".to_owned(),
        probe: Some(probe),
    }
}

async fn ended(agenda: &Arc<Tasks>, task: TaskUid) -> Arc<Task> {
    let mut changes = agenda.changes();
    let waiting = async {
        loop {
            let all = agenda.all();
            let found = all.iter().find(|t| t.uid == task);
            if let Some(task) = found.filter(|task| task.state.is_end()) {
                return Arc::clone(task);
            }
            changes.changed().await.unwrap();
        }
    };
    tokio::time::timeout(TIMEOUT, waiting)
        .await
        .expect("it ends in time")
}

#[tokio::test]
async fn a_uid_runs_once_and_another_content_is_refused() {
    let node = Node::new().await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    let work = provision(&node, "disk");
    agenda.submit(uid(1), uid(9), work.clone()).await.unwrap();
    let done = ended(&agenda, uid(1)).await;
    assert_eq!((done.state, done.percent), (State::Success, 100));
    let again = agenda.submit(uid(1), uid(9), work).await.unwrap();
    assert_eq!(again, done);
    for (vm, work) in [(9, Work::Save), (8, provision(&node, "disk"))] {
        let refused = agenda.submit(uid(1), uid(vm), work).await;
        assert!(matches!(refused, Err(Refused::Other(_))));
    }
    agenda.forget(uid(1)).await.unwrap();
    agenda.forget(uid(1)).await.unwrap();
    assert!(agenda.all().is_empty());
}

#[tokio::test]
async fn tasks_of_one_machine_run_in_the_order_of_their_arrival() {
    let node = Node::new().await;
    let agenda = agenda(&node).await;
    agenda
        .submit(uid(3), uid(9), provision(&node, "disk"))
        .await
        .unwrap();
    agenda
        .submit(uid(2), uid(9), Work::DeleteDisk)
        .await
        .unwrap();
    agenda
        .submit(uid(1), uid(9), provision(&node, "other"))
        .await
        .unwrap();
    let _work = work(&agenda);
    let ends = [3, 2, 1].map(uid);
    let mut last = 0;
    for task in ends {
        let task = ended(&agenda, task).await;
        assert_eq!(task.state, State::Success, "{task:?}");
        assert!(task.started_at >= last, "{task:?} did not wait");
        last = task.completed_at;
    }
    assert_eq!(node.disks.get(uid(9)).unwrap().image, node.image("other"));
}

/// The clock was wrong when the first one came, and was put right; then the daemon was updated.
#[tokio::test]
async fn tasks_keep_their_order_over_clocks_that_jump_restarts_and_updates() {
    let node = Node::new().await;
    let before = agenda(&node).await;
    for (task, order, at) in [(3, 0, 7), (2, 0, 8), (1, 5, i64::MAX)] {
        before.submit(uid(task), uid(9), Work::Reset).await.unwrap();
        let as_then = |task: &mut Task| {
            (task.order, task.created_at) = (order, at);
            true
        };
        before.records.change(&uid(task), as_then).await.unwrap();
    }
    let after = agenda(&node).await;
    after.submit(uid(0), uid(9), Work::Reset).await.unwrap();
    for task in [3, 2, 1, 0].map(uid) {
        let chosen: Vec<_> = after.next().iter().map(|task| task.uid).collect();
        assert_eq!(chosen, [task]);
        after.active().clear();
        after.cancel(task).await.unwrap();
    }
    let mut old = serde_json::to_value(&*after.all()[0]).unwrap();
    old.as_object_mut().unwrap().remove("order");
    assert_eq!(serde_json::from_value::<Task>(old).unwrap().order, 0);
}

#[tokio::test]
async fn what_was_running_is_carried_on_unless_it_would_be_done_twice() {
    let node = Node::new().await;
    let before = agenda(&node).await;
    for (task, work) in [(1, provision(&node, "disk")), (2, Work::Reset)] {
        before.submit(uid(task), uid(task), work).await.unwrap();
        let run = |task: &mut Task| {
            task.state = State::Running;
            task.started_at = 1;
            true
        };
        before.records.change(&uid(task), run).await.unwrap();
    }
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    assert_eq!(ended(&agenda, uid(1)).await.state, State::Success);
    let reset = ended(&agenda, uid(2)).await;
    let failure = reset.failure.clone().unwrap();
    assert!(failure.transient && failure.message.contains("restarted"));
    assert!(node.hypervisor.reboots().is_empty());
}

#[tokio::test]
async fn a_failed_or_cancelled_provision_leaves_nothing() {
    let node = Node::new().await;
    let agenda = agenda(&node).await;
    let absent = Work::Provision {
        image: node.image("absent"),
        url: None,
        size: 0,
        linked: true,
        name: String::new(),
        tls_secret: None,
    };
    agenda.submit(uid(1), uid(1), absent).await.unwrap();
    agenda
        .submit(uid(2), uid(2), provision(&node, "disk"))
        .await
        .unwrap();
    // Cancelled while the daemon was away, after it had begun.
    let begun = |task: &mut Task| {
        task.state = State::Running;
        task.cancelled = true;
        true
    };
    agenda.records.change(&uid(2), begun).await.unwrap();
    agenda.submit(uid(3), uid(3), Work::Save).await.unwrap();
    let waiting = agenda.cancel(uid(3)).await.unwrap();
    assert_eq!(waiting.state, State::Cancelled);
    let _work = work(&agenda);
    let failed = ended(&agenda, uid(1)).await;
    assert_eq!(failed.state, State::Error);
    let cancelled = ended(&agenda, uid(2)).await;
    if cancelled.state == State::Cancelled {
        assert!(node.disks.get(uid(2)).is_none());
    } else {
        // It was faster.
        assert_eq!(node.disks.get(uid(2)).unwrap().phase, Phase::Ready);
    }
    assert!(node.disks.get(uid(1)).is_none());
    assert_eq!(agenda.cancel(uid(1)).await.unwrap(), failed);
    let unknown = agenda.cancel(uid(7)).await;
    assert!(matches!(unknown, Err(Refused::Unknown(_))));
}

#[tokio::test]
async fn a_task_for_a_stopped_machine_fails_with_that_reason() {
    let node = Node::new().await;
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    for (task, work) in [
        (1, Work::Pause),
        (2, Work::Save),
        (3, Work::GuestReboot { timeout: 5 }),
        (4, Work::Restore { discard: false }),
        (7, probe()),
    ] {
        agenda.submit(uid(task), uid(9), work).await.unwrap();
        let ended = ended(&agenda, uid(task)).await;
        assert_eq!(ended.state, State::Error, "{ended:?}");
    }
    let shutdown = Work::GuestShutdown { timeout: 5 };
    agenda.submit(uid(5), uid(9), shutdown).await.unwrap();
    assert_eq!(ended(&agenda, uid(5)).await.state, State::Success);
    let power_off = Work::PowerOff {
        timeout: 0,
        pod: "p".to_owned(),
    };
    agenda.submit(uid(6), uid(9), power_off).await.unwrap();
    assert_eq!(ended(&agenda, uid(6)).await.state, State::Success);
}

#[tokio::test]
async fn a_task_begins_when_the_connection_is_there() {
    let node = Node::new().await;
    let agenda = agenda(&node).await;
    node.hypervisor.disconnect();
    let waiting = agenda.await_hypervisor();
    tokio::pin!(waiting);
    assert_eq!(
        futures_util::poll!(&mut waiting),
        std::task::Poll::Pending,
        "without a connection"
    );
    node.hypervisor.reconnect();
    // An event wakes it, not time: the first poll finds it.
    assert_eq!(
        futures_util::poll!(&mut waiting),
        std::task::Poll::Ready(())
    );
}

#[tokio::test]
async fn a_failing_database_gets_no_repeated_queries() {
    let node = Node::new().await;
    let agenda = agenda(&node).await;
    agenda.submit(uid(1), uid(9), Work::Pause).await.unwrap();
    let lose = |t: &rusqlite::Transaction<'_>| t.execute_batch("DROP TABLE node_tasks");
    node.db.write(lose).await.unwrap();
    let mut changes = agenda.changes();
    tokio::time::pause();
    let _work = work(&agenda);
    let minute = tokio::time::sleep(std::time::Duration::from_secs(60));
    tokio::pin!(minute);
    let mut attempts = 0;
    loop {
        tokio::select! {
            biased;
            _ = changes.changed() => attempts += 1,
            () = &mut minute => break,
        }
        assert!(attempts < 20, "it spins");
    }
    assert!(attempts > 1, "it is never tried again");
}
