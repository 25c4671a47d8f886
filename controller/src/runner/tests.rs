//! From how a pass ended to what becomes of its key.
//!
//! Invariant: time is paused; no API server is asked.
//! Failure: the assertion shows the verdict or the passes.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crds::conditions::{CREATED, Status, set};
use crds::{PowerState, VirtualMachine};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Client;
use kube::client::Body;
use kube::runtime::watcher::Event;
use rstest::rstest;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use workqueue::{Options, Outcome, Verdict};

use super::{outcome_of, queue, run, verdict};
use crate::context::{Context, Key};
use crate::outcome::{Done, Stop};
use crate::priority::{Additions, Profile};
use crate::stores::{Feeds, Stores};

const SECONDS: Duration = Duration::from_secs(5);

fn context() -> (Context, Feeds) {
    let (stores, feeds) = Stores::new();
    let nobody = tower::service_fn(|_: http::Request<Body>| async {
        std::future::pending::<Result<http::Response<Body>, std::convert::Infallible>>().await
    });
    let (context, _) = Context::new(Client::new(nobody, "default"), stores);
    (context, feeds)
}

fn vm() -> VirtualMachine {
    let mut vm = VirtualMachine::new("vm", Default::default());
    vm.metadata.namespace = Some("default".to_owned());
    vm.spec.power_state = Some(PowerState::PoweredOn);
    let status = vm.status.insert(Default::default());
    status.power_state = Some(PowerState::PoweredOn);
    let now = Time(jiff::Timestamp::UNIX_EPOCH);
    let conditions = &mut status.conditions;
    set(conditions, CREATED, Status::True, "", "", None, &now);
    vm
}

fn key() -> Key {
    Key::new("default", "vm")
}

fn failed() -> Stop {
    Stop::Failed(anyhow::anyhow!("no"))
}

fn no_cache() -> Stop {
    let name = "disk".to_owned();
    let location = None;
    Stop::CacheNotReady { name, location }
}

fn again(after: Duration) -> Stop {
    let reason = "soon".to_owned();
    Stop::Requeue { after, reason }
}

#[rstest]
#[case::done(Ok(Done::QUIET), Outcome::Ok)]
#[case::done_for_now(Ok(Done::again(SECONDS)), Outcome::After(SECONDS))]
#[case::again_at_once(Err(again(Duration::ZERO)), Outcome::Requeue)]
#[case::again_later(Err(again(SECONDS)), Outcome::After(SECONDS))]
#[case::changed_something(Err(Stop::quiet("created")), Outcome::Ok)]
#[case::waits(Err(Stop::wait("the node is lost")), Outcome::Terminal)]
#[case::cache(Err(no_cache()), Outcome::Ok)]
#[case::being_made(Err(Stop::InProgress), Outcome::After(SECONDS))]
#[case::no_slot(Err(Stop::TooManyCreates), Outcome::After(SECONDS))]
#[case::failed(Err(failed()), Outcome::Error)]
fn each_end_of_a_pass_has_its_outcome(
    #[case] ended: crate::outcome::Outcome,
    #[case] wanted: Outcome,
) {
    assert_eq!(outcome_of(ended, false, SECONDS), wanted);
}

#[test]
fn a_deletion_that_waits_for_a_creation_backs_off() {
    assert_eq!(
        outcome_of(Err(Stop::InProgress), true, SECONDS),
        Outcome::Error
    );
}

#[tokio::test]
async fn what_goes_back_takes_the_priority_of_its_present_state() {
    let (context, mut feeds) = context();
    let rules = Profile::page(Additions::ON);
    let ended = || Ok(Done::again(SECONDS));
    // Waits for an address.
    feeds.vms.apply(Event::Apply(vm()));
    let wanted = Verdict::from(Outcome::After(SECONDS)).with_priority(97);
    assert_eq!(verdict(&context, &rules, &key(), ended()), wanted);
    let strict = Profile::page(Additions::OFF);
    assert_eq!(verdict(&context, &strict, &key(), ended()).priority, None);
    feeds.vms.apply(Event::Delete(vm()));
    assert_eq!(verdict(&context, &rules, &key(), ended()).priority, None);
}

#[tokio::test(start_paused = true)]
async fn no_pass_runs_before_all_stores_are_full_and_one_that_panics_is_counted_and_repeated() {
    let (context, mut feeds) = context();
    macro_rules! fill {
        ($($name:ident),+) => {$(
            feeds.$name.apply(Event::Init);
            feeds.$name.apply(Event::InitDone);
        )+};
    }
    let rules = Arc::new(Profile::page(Additions::ON));
    let metrics = context.metrics.queue.clone();
    let queue = Arc::new(queue(&context.config, &rules, metrics));
    let stop = CancellationToken::new();
    let passes = Arc::new(Mutex::new(0));
    let count = Arc::clone(&passes);
    let until = stop.clone();
    let pass = move |_: Context, _: Key| {
        let mut passes = count.lock().unwrap();
        *passes += 1;
        let number = *passes;
        let until = until.clone();
        async move {
            assert!(number > 1, "the first pass panics");
            until.cancel();
            Ok(Done::QUIET)
        }
    };
    queue.push(key(), Options::at(100));
    let working = run(&context, Arc::clone(&queue), rules, stop, pass);
    let mut working = std::pin::pin!(working);
    fill!(
        vms,
        pods,
        tasks,
        classes,
        images,
        cluster_images,
        image_caches,
        groups,
        nodes
    );
    fill!(claims, data_volumes, networks, storage_classes);
    let early = timeout(Duration::from_secs(60), &mut working).await;
    assert!(early.is_err() && *passes.lock().unwrap() == 0);
    fill!(secrets);
    timeout(Duration::from_secs(60), working).await.unwrap();
    assert_eq!(*passes.lock().unwrap(), 2);
    let panics = "vmlet_controller_reconcile_panics_total{controller=\"virtualmachine\"} 1";
    assert!(context.metrics.text().contains(panics));
}
