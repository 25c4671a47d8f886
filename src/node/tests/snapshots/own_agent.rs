//! Freezes by `vmlet-guest`, which the test plays.
//!
//! Invariant: as of all tests of snapshots; the QEMU guest agent would answer, too, and gets no command.
//! Failure: a test prints the task that did not end as it should.

use std::sync::{Mutex, PoisonError};

use guestapi::request::Action;
use guestapi::{
    Answer, Decoder, FromGuest, GuestHello, MAX_FRAME, Request, ToGuest, VERSION, encode, to_guest,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixListener;
use tokio_util::task::AbortOnDropHandle;

use super::*;

/// What the guest answers to the greeting, to a freeze and to a thaw.
#[derive(Debug, Clone)]
struct Answers {
    watches: bool,
    frozen: Result<u32, String>,
    thawed: u32,
}

/// Of an agent of this version.
fn answers(frozen: Result<u32, String>, thawed: u32) -> Answers {
    Answers {
        watches: true,
        frozen,
        thawed,
    }
}

/// The guest of a machine.
struct Guest {
    requests: Arc<Mutex<Vec<&'static str>>>,
    _serves: AbortOnDropHandle<()>,
}

impl Guest {
    fn playing(node: &Node, machine: &ContainerId, answers: Answers) -> Self {
        let socket = node.containers.paths().guest_socket(machine);
        std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
        let listener = UnixListener::bind(socket).unwrap();
        let requests = Arc::<Mutex<Vec<_>>>::default();
        let serves = serve(listener, Arc::clone(&requests), answers);
        Self {
            requests,
            _serves: AbortOnDropHandle::new(tokio::spawn(serves)),
        }
    }

    fn requests(&self) -> Vec<&'static str> {
        let requests = self.requests.lock();
        requests.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn serve(listener: UnixListener, requests: Arc<Mutex<Vec<&'static str>>>, answers: Answers) {
    loop {
        let (mut host, _) = listener.accept().await.unwrap();
        let mut decoder = Decoder::new(MAX_FRAME);
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = host.read(&mut buffer).await {
            let messages: Vec<ToGuest> = decoder.feed(&buffer[..length]).collect();
            for message in messages {
                let answer = match message.kind {
                    Some(to_guest::Kind::HostHello(hello)) => FromGuest::from(GuestHello {
                        version: VERSION,
                        connection: hello.connection,
                        program: "1".to_owned(),
                        watches_freezes: answers.watches,
                    }),
                    Some(to_guest::Kind::Request(request)) => {
                        answer(&request, &requests, &answers).into()
                    }
                    other => panic!("{other:?}"),
                };
                host.write_all(&encode(&answer)).await.unwrap();
            }
        }
    }
}

fn answer(request: &Request, requests: &Mutex<Vec<&'static str>>, answers: &Answers) -> Answer {
    let note = |name| {
        let mut all = requests.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(name);
    };
    let done = match &request.action {
        Some(Action::Freeze(_)) => {
            note("freeze");
            answers.frozen.clone()
        }
        Some(Action::Thaw(_)) => {
            note("thaw");
            Ok(answers.thawed)
        }
        other => panic!("{other:?}"),
    };
    Answer {
        number: request.number,
        file_systems: done.clone().unwrap_or_default(),
        error: done.err().unwrap_or_default(),
        ..Answer::default()
    }
}

fn qemu() -> FakeHypervisor {
    FakeHypervisor::default().agent_answering([json!({}), json!(2), json!(2)])
}

/// A snapshot during which the guest thawed by itself is taken, and not called quiesced.
#[rstest::rstest]
#[case::until_the_thaw(2, true)]
#[case::some_of_them(1, false)]
#[case::not_any_more(0, false)]
#[tokio::test]
async fn a_snapshot_is_quiesced_when_all_were_frozen_until_the_thaw(
    #[case] thawed: u32,
    #[case] is_quiesced: bool,
) {
    let (node, id, domain) = running(qemu()).await;
    let guest = Guest::playing(&node, &id, answers(Ok(2), thawed));
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    let taken = run(&agenda, 1, take(1, 30)).await.snapshot.unwrap();
    assert_eq!(taken.quiesced, is_quiesced);
    assert!(taken.running);
    assert_eq!(guest.requests(), ["freeze", "thaw"]);
    assert!(commands(&node).is_empty());
    assert_eq!(root(&node, domain).await, node.disks.file(uid(9)));
    assert_eq!(node.disks.change(uid(9)), None);
}

#[rstest::rstest]
#[case::nothing_to_freeze(Ok(0), "no file system that it can freeze")]
#[case::refused(Err("failed to freeze /: x".to_owned()), "failed to freeze /: x")]
#[tokio::test]
async fn a_guest_that_refuses_to_freeze_leaves_no_snapshot(
    #[case] frozen: Result<u32, String>,
    #[case] words: &str,
) {
    let (node, id, domain) = running(qemu()).await;
    let before = node.disks.file(uid(9));
    let _guest = Guest::playing(&node, &id, answers(frozen, 0));
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    let refused = failure(&agenda, 1, take(1, 30)).await;
    assert!(
        !refused.transient && refused.message.contains(words),
        "{refused:?}"
    );
    assert!(refused.message.contains("without quiesce"), "{refused:?}");
    assert!(commands(&node).is_empty());
    assert_eq!(root(&node, domain).await, before);
    assert!(node.disks.get(uid(9)).unwrap().layers.is_none());
    // It is no reason against one without that.
    assert_eq!(run(&agenda, 2, take(2, 0)).await.state, State::Success);
}

/// Of the two agents of a guest, one whose guest could stay frozen is the second choice.
#[rstest::rstest]
#[case::with_the_other(qemu(), 2, 0)]
#[case::alone(FakeHypervisor::default(), 0, 2)]
#[tokio::test]
async fn an_agent_of_an_earlier_version_freezes_only_where_there_is_no_other(
    #[case] hypervisor: FakeHypervisor,
    #[case] by_qemu: usize,
    #[case] by_own: usize,
) {
    let (node, id, _) = running(hypervisor).await;
    let earlier = Answers {
        watches: false,
        ..answers(Ok(1), 1)
    };
    let guest = Guest::playing(&node, &id, earlier);
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    let taken = run(&agenda, 1, take(1, 30)).await.snapshot.unwrap();
    assert!(taken.quiesced);
    assert_eq!(commands(&node).len(), by_qemu);
    assert_eq!(guest.requests().len(), by_own);
}

fn freeze(n: u32) -> Work {
    Work::Freeze {
        snapshot: snapshot(n),
        seconds: 600,
    }
}

/// The task once it has the guest frozen.
async fn frozen(agenda: &Tasks, task: u32) -> Arc<Task> {
    let mut changes = agenda.changes();
    loop {
        let mut all = agenda.all().into_iter();
        let found = all.find(|one| one.uid == uid(task) && one.snapshot.is_some());
        if let Some(found) = found {
            return found;
        }
        changes.changed().await.unwrap();
    }
}

#[rstest::rstest]
#[case::until_the_thaw(2, true)]
#[case::some_of_them(1, false)]
#[tokio::test]
async fn a_guest_is_frozen_beside_a_snapshot_until_its_task_is_cancelled(
    #[case] thawed: u32,
    #[case] is_quiesced: bool,
) {
    let (node, id, _) = running(qemu()).await;
    let guest = Guest::playing(&node, &id, answers(Ok(2), thawed));
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    agenda.submit(uid(1), uid(9), freeze(1)).await.unwrap();
    let held = frozen(&agenda, 1).await;
    assert_eq!(held.state, State::Running);
    assert!(!held.snapshot.unwrap().quiesced, "it is not over");
    let taken = run(&agenda, 2, take(1, 0)).await;
    assert_eq!(taken.state, State::Success, "{taken:?}");
    assert_eq!(guest.requests(), ["freeze"]);
    agenda.cancel(uid(1)).await.unwrap();
    let done = ended(&agenda, uid(1)).await;
    assert_eq!(done.state, State::Success, "{done:?}");
    assert_eq!(done.snapshot.unwrap().quiesced, is_quiesced);
    assert_eq!(guest.requests(), ["freeze", "thaw"]);
    assert!(commands(&node).is_empty());
}

#[tokio::test]
async fn a_guest_thaws_for_another_task_of_its_machine() {
    let (node, id, _) = running(qemu()).await;
    let guest = Guest::playing(&node, &id, answers(Ok(1), 1));
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    agenda.submit(uid(1), uid(9), freeze(1)).await.unwrap();
    frozen(&agenda, 1).await;
    let paused = run(&agenda, 2, Work::Pause).await;
    assert_eq!(paused.state, State::Success, "{paused:?}");
    let done = ended(&agenda, uid(1)).await;
    assert!(done.completed_at <= paused.started_at);
    // No one says that all disks were taken by then.
    assert!(!done.snapshot.unwrap().quiesced);
    assert_eq!(guest.requests(), ["freeze", "thaw"]);
}

/// The storage system needs longer than that.
#[tokio::test]
async fn a_guest_whose_time_is_over_was_not_frozen_for_all_disks() {
    let (node, id, _) = running(qemu()).await;
    let _guest = Guest::playing(&node, &id, answers(Ok(1), 1));
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    let short = Work::Freeze {
        snapshot: snapshot(1),
        seconds: 1,
    };
    let done = run(&agenda, 1, short).await;
    assert_eq!(done.state, State::Success, "{done:?}");
    assert!(!done.snapshot.unwrap().quiesced);
}

/// The QEMU guest agent would leave it frozen if this node were away.
#[tokio::test]
async fn a_guest_that_does_not_thaw_by_itself_is_not_frozen_for_others() {
    let (node, id, _) = running(qemu()).await;
    let earlier = Answers {
        watches: false,
        ..answers(Ok(1), 1)
    };
    let guest = Guest::playing(&node, &id, earlier);
    let agenda = agenda(&node).await;
    let _work = work(&agenda);
    let refused = failure(&agenda, 1, freeze(1)).await;
    assert!(
        !refused.transient && refused.message.contains("thaws by itself"),
        "{refused:?}"
    );
    assert!(guest.requests().is_empty() && commands(&node).is_empty());
}

#[tokio::test]
async fn a_freeze_of_a_process_that_was_killed_has_failed_for_now() {
    let (node, id, _) = running(qemu()).await;
    let before = agenda(&node).await;
    before.submit(uid(1), uid(9), freeze(1)).await.unwrap();
    interrupted(&before, 1, false).await;
    let node = node.restarted().await;
    let guest = Guest::playing(&node, &id, answers(Ok(1), 1));
    let after = agenda(&node).await;
    let _work = work(&after);
    let failed = ended(&after, uid(1)).await.failure.clone().unwrap();
    assert!(failed.transient, "{failed:?}");
    assert!(guest.requests().is_empty(), "it has thawed");
}

/// The daemon was killed while the guest was frozen: the guest has thawed, and no record requests that.
#[rstest::rstest]
#[case::before_the_switch(false)]
#[case::after_the_switch(true)]
#[tokio::test]
async fn the_snapshot_of_a_process_that_was_killed_is_ended_without_a_thaw(
    #[case] is_switched: bool,
) {
    use libvirt::Hypervisor as _;
    let (node, id, domain) = running(qemu()).await;
    let before = agenda(&node).await;
    before.submit(uid(1), uid(9), take(1, 30)).await.unwrap();
    interrupted(&before, 1, false).await;
    let change = node.disks.begin_snapshot(uid(9), snapshot(1), true).await;
    let change = change.unwrap();
    node.disks.make_layer(uid(9), change).await.unwrap();
    if is_switched {
        let layer = node.disks.new_layer(uid(9), change);
        node.hypervisor.switch_root(domain, layer).await.unwrap();
    }
    let node = node.restarted().await;
    let guest = Guest::playing(&node, &id, answers(Ok(1), 1));
    let after = agenda(&node).await;
    let _work = work(&after);
    let done = ended(&after, uid(1)).await;
    assert_eq!(done.state, State::Success, "{done:?}");
    assert_eq!(done.snapshot.unwrap().quiesced, !is_switched);
    let expected: &[_] = if is_switched {
        &[]
    } else {
        &["freeze", "thaw"]
    };
    assert_eq!(guest.requests(), expected);
    assert!(commands(&node).is_empty());
    assert_eq!(root(&node, domain).await, node.disks.file(uid(9)));
}
