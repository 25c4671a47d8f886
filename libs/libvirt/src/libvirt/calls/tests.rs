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
    }
}

/// A call that has its permit and does not return.
struct Hanging {
    call: JoinHandle<Result<()>>,
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
                // The sender may be gone, too.
                drop(released.recv());
                Ok(())
            };
            calls.run(plan, hang).await
        });
        begun.await.unwrap();
        Self { call, release }
    }

    async fn end(self) -> Result<()> {
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
    assert_eq!(
        hv.calls.permits[Lane::Control as usize].available_permits(),
        0
    );
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
    assert_eq!(hv.state(Uuid::from_u128(1)).await.unwrap(), None);
    start.end().await.unwrap();
}
