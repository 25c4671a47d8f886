//! Turns and deadlines, on the driver of libvirt that lives in this process.
//!
//! Invariant: the clock is paused; a call hangs until its test releases it.
//! Failure: a call that waits for another one never ends.

use std::sync::mpsc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::*;
use crate::error::Context;
use crate::libvirt::plan::Time;
use crate::{Event, Hypervisor, Libvirt, Settings};

mod agents;

const LONG: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_secs(30);

/// A connection whose lanes are `parallel` wide.
async fn connected(parallel: usize) -> Libvirt {
    let settings = Settings {
        parallel,
        ..Settings::default()
    };
    let hv = Libvirt::connect("test:///default".to_owned(), settings);
    let mut events = hv.events();
    while !hv.is_connected() {
        if events.recv().await.unwrap() == Event::Connected {
            break;
        }
    }
    hv
}

const fn plan(lane: Lane, wait: Duration, call: Duration) -> Plan {
    Plan {
        context: Context {
            call: "test",
            domain: None,
        },
        lane,
        time: Time::Apart { wait, call },
        access: Access::Shared,
    }
}

/// A call that takes as long as it likes.
fn alone(lane: Lane, key: Key) -> Plan {
    Plan {
        access: Access::Alone(key),
        ..plan(lane, LONG, LONG)
    }
}

fn free(hv: &Libvirt, lane: Lane) -> usize {
    hv.calls.permits[lane as usize].free()
}

/// A domain that the driver always has.
const DOMAIN: Uuid = uuid::uuid!("6695eb01-f6a4-8304-79aa-97f2502e193f");
const HUNG: Uuid = Uuid::from_u128(1);
const HEALTHY: Uuid = Uuid::from_u128(2);

/// A call that has its permit and does not return.
struct Hanging {
    call: JoinHandle<Result<bool>>,
    release: mpsc::Sender<()>,
}

impl Hanging {
    async fn begin(hv: &Libvirt, plan: Plan) -> Self {
        let (began, begun) = oneshot::channel();
        let (release, released) = mpsc::channel();
        let calls = Arc::clone(&hv.calls);
        let call = tokio::spawn(async move {
            let hang = move |_: &Connect| {
                began.send(()).unwrap();
                Ok(released.recv().is_ok())
            };
            calls.run(plan, hang).await
        });
        begun.await.unwrap();
        Self { call, release }
    }

    async fn end(self) -> Result<bool> {
        self.release.send(()).unwrap();
        self.call.await.unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn the_deadline_of_a_call_begins_with_its_turn() {
    let hv = connected(1).await;
    let first = Hanging::begin(&hv, plan(Lane::Control, LONG, LONG)).await;
    let calls = Arc::clone(&hv.calls);
    let second = tokio::spawn(async move {
        calls
            .run(plan(Lane::Control, LONG, SHORT), |_| Ok("done"))
            .await
    });
    tokio::task::yield_now().await;
    tokio::time::advance(2 * SHORT).await;
    first.end().await.unwrap();
    assert_eq!(second.await.unwrap().unwrap(), "done");
}

#[tokio::test(start_paused = true)]
async fn the_wait_for_a_turn_ends_and_then_nothing_was_done() {
    let hv = connected(1).await;
    let first = Hanging::begin(&hv, plan(Lane::Control, LONG, LONG)).await;
    let calls = Arc::clone(&hv.calls);
    let (done, was_done) = oneshot::channel();
    let second = tokio::spawn(async move {
        let work = move |_: &Connect| {
            done.send(()).unwrap();
            Ok(())
        };
        calls.run(plan(Lane::Control, SHORT, LONG), work).await
    });
    tokio::task::yield_now().await;
    tokio::time::advance(2 * SHORT).await;
    let error = second.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Busy { wait: SHORT, .. }), "{error}");
    assert!(error.is_unavailable());
    assert!(was_done.await.is_err());
    first.end().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_call_that_hangs_ends_at_its_deadline_and_keeps_its_place() {
    let hv = connected(1).await;
    let first = Hanging::begin(&hv, plan(Lane::Control, LONG, SHORT)).await;
    tokio::time::advance(2 * SHORT).await;
    let error = first.call.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Deadline { .. }), "{error}");
    assert_eq!(free(&hv, Lane::Control), 0);
    first.release.send(()).unwrap();
    let again = plan(Lane::Control, LONG, LONG);
    hv.calls.run(again, |_| Ok(())).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn starts_do_not_delay_looks_at_all_machines() {
    let hv = connected(1).await;
    let start = Hanging::begin(&hv, plan(Lane::Control, LONG, LONG)).await;
    hv.list().await.unwrap();
    hv.stats().await.unwrap();
    assert_eq!(hv.state(HEALTHY).await.unwrap(), None);
    start.end().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_cannot_be_killed_has_one_kill_in_progress() {
    let hv = connected(2).await;
    let first = Hanging::begin(&hv, alone(Lane::Kills, Key::Kill(HUNG))).await;
    let repeated = {
        let hv = hv.clone();
        tokio::spawn(async move { hv.destroy(HUNG).await })
    };
    tokio::task::yield_now().await;
    assert_eq!(free(&hv, Lane::Kills), 1);
    hv.destroy(HEALTHY).await.unwrap();
    assert!(!repeated.is_finished());
    first.end().await.unwrap();
    repeated.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn kills_that_hang_delay_neither_looks_nor_requests_nor_starts() {
    let hv = connected(1).await;
    let kill = Hanging::begin(&hv, alone(Lane::Kills, Key::Kill(HUNG))).await;
    assert_eq!(free(&hv, Lane::Kills), 0);
    assert_eq!(hv.state(HEALTHY).await.unwrap(), None);
    hv.shutdown(HEALTHY, crate::Shutdown::Acpi).await.unwrap();
    hv.undefine(HEALTHY).await.unwrap();
    hv.versions().await.unwrap();
    kill.end().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn after_a_kill_that_failed_the_next_takes_no_place_of_others() {
    let hv = connected(1).await;
    let kill = Plan {
        time: Time::Apart {
            wait: LONG,
            call: SHORT,
        },
        ..alone(Lane::Kills, Key::Kill(HUNG))
    };
    let first = Hanging::begin(&hv, kill).await;
    tokio::time::advance(2 * SHORT).await;
    assert!(first.call.await.unwrap().is_err());
    first.release.send(()).unwrap();
    let second = Hanging::begin(&hv, alone(Lane::Kills, Key::Kill(HUNG))).await;
    assert_eq!((free(&hv, Lane::Kills), free(&hv, Lane::Late)), (1, 0));
    hv.destroy(HEALTHY).await.unwrap();
    assert_eq!(hv.state(HEALTHY).await.unwrap(), None);
    second.end().await.unwrap();
    // Killed at last: it is as others are.
    let third = Hanging::begin(&hv, alone(Lane::Kills, Key::Kill(HUNG))).await;
    assert_eq!((free(&hv, Lane::Kills), free(&hv, Lane::Late)), (0, 1));
    third.end().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn there_is_one_request_for_statistics_at_a_time() {
    let hv = connected(4).await;
    let stats = Hanging::begin(&hv, alone(Lane::Survey, Key::Survey("stats"))).await;
    let second = {
        let hv = hv.clone();
        tokio::spawn(async move { hv.stats().await })
    };
    tokio::task::yield_now().await;
    assert_eq!(free(&hv, Lane::Survey), 2);
    hv.list().await.unwrap();
    hv.versions().await.unwrap();
    assert!(!second.is_finished());
    stats.end().await.unwrap();
    second.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_look_at_failed_disks_takes_no_place_by_which_ends_are_known() {
    let hv = connected(1).await;
    let look = Hanging::begin(&hv, alone(Lane::States, Key::State(HUNG))).await;
    assert_eq!(free(&hv, Lane::States), 0);
    let unknown = hv.failed_disks(HEALTHY).await.unwrap_err();
    assert!(matches!(unknown, Error::NoDomain(_)), "{unknown}");
    look.end().await.unwrap();

    let request = Hanging::begin(&hv, alone(Lane::Emulators, Key::Emulator(HUNG))).await;
    let second = {
        let hv = hv.clone();
        tokio::spawn(async move { hv.failed_disks(HUNG).await })
    };
    tokio::task::yield_now().await;
    assert_eq!(
        (free(&hv, Lane::Emulators), free(&hv, Lane::States)),
        (1, 1)
    );
    assert!(!second.is_finished());
    request.end().await.unwrap();
    assert!(second.await.unwrap().is_err());
}

#[tokio::test(start_paused = true)]
async fn memory_that_is_moved_delays_no_start() {
    let hv = connected(1).await;
    let restore = Hanging::begin(&hv, hv.moving_memory("restore", None)).await;
    let unknown = hv.start(HEALTHY).await.unwrap_err();
    assert!(matches!(unknown, Error::NoDomain(_)), "{unknown}");
    hv.undefine(HEALTHY).await.unwrap();
    hv.list().await.unwrap();
    restore.end().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_definition_and_a_start_that_wait_end_when_they_are_given_up_and_are_undone_at_once() {
    let hv = connected(1).await;
    let other = Hanging::begin(&hv, plan(Lane::Control, LONG, LONG)).await;
    for is_start in [false, true] {
        let (give_up, given_up) = oneshot::channel::<()>();
        let second = {
            let hv = hv.clone();
            tokio::spawn(async move {
                let given_up = async { given_up.await.unwrap() };
                if is_start {
                    hv.start_unless(HEALTHY, given_up).await
                } else {
                    hv.define_unless("<domain/>".to_owned(), given_up).await
                }
            })
        };
        tokio::task::yield_now().await;
        assert!(!second.is_finished());
        give_up.send(()).unwrap();
        let error = second.await.unwrap().unwrap_err().to_string();
        assert!(error.contains("given up before it began"), "{error}");
        hv.undefine(HEALTHY).await.unwrap();
    }
    other.end().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_save_that_waits_for_its_turn_can_be_stopped() {
    let hv = connected(1).await;
    let restore = Hanging::begin(&hv, hv.moving_memory("restore", None)).await;
    let save = {
        let hv = hv.clone();
        tokio::spawn(async move { hv.save(DOMAIN, "/nonexistent/memory".into()).await })
    };
    while !hv.calls.waiting_saves.has(DOMAIN) {
        tokio::task::yield_now().await;
    }
    hv.abort_save(DOMAIN).await.unwrap();
    restore.end().await.unwrap();
    let error = save.await.unwrap().unwrap_err().to_string();
    assert!(error.contains("stopped before it began"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_restore_that_waits_for_its_turn_ends_when_it_is_given_up() {
    let hv = connected(1).await;
    let first = Hanging::begin(&hv, hv.moving_memory("restore", None)).await;
    let (give_up, given_up) = oneshot::channel::<()>();
    let second = {
        let hv = hv.clone();
        tokio::spawn(async move {
            let given_up = async { given_up.await.unwrap() };
            let xml = "<domain/>".to_owned();
            let file = "/nonexistent/memory".into();
            hv.restore(xml, file, given_up).await
        })
    };
    tokio::task::yield_now().await;
    assert!(!second.is_finished());
    give_up.send(()).unwrap();
    let error = second.await.unwrap().unwrap_err().to_string();
    assert!(error.contains("given up before it began"), "{error}");
    first.end().await.unwrap();
}
