//! From how a pass ended to what becomes of its key.
//!
//! Invariant: time is paused; no API server is called.
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
use crate::flow::{Flow, PassError};
use crate::priority::{Additions, Profile};
use crate::stores::{Feeds, Stores};

const SECONDS: Duration = Duration::from_secs(5);

fn context() -> (Context, Feeds) {
    let (stores, feeds) = Stores::new();
    let silent = tower::service_fn(|_: http::Request<Body>| async {
        std::future::pending::<Result<http::Response<Body>, std::convert::Infallible>>().await
    });
    let (context, _) = Context::new(Client::new(silent, "default"), stores);
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

/// By a rule of the API server: no watch may show when it allows the write.
fn refusal() -> kube::Error {
    let status = kube::core::Status::failure("exceeded quota", "Forbidden").with_code(403);
    kube::Error::Api(Box::new(status))
}

fn key() -> Key {
    Key::new("default", "vm")
}

#[rstest]
#[case::done(Ok(Flow::Continue), Outcome::Ok)]
#[case::changed_something(Ok(Flow::Done("created")), Outcome::Ok)]
#[case::done_for_now(Ok(Flow::RequeueAfter(SECONDS)), Outcome::After(SECONDS))]
#[case::waits(Ok(Flow::Waiting("the node is lost".to_owned())), Outcome::Terminal)]
#[case::conflict(Err(PassError::Conflict("the object")), Outcome::Requeue)]
#[case::failed(Err(PassError::Failed(anyhow::anyhow!("no"))), Outcome::Error)]
#[case::refused(Err(refusal().into()), Outcome::ErrorWithin(Duration::from_secs(90)))]
fn each_end_of_a_pass_has_its_outcome(
    #[case] ended: crate::flow::Outcome,
    #[case] wanted: Outcome,
) {
    assert_eq!(outcome_of(ended), wanted);
}

#[tokio::test]
async fn what_goes_back_takes_the_priority_of_its_present_state() {
    let (context, mut feeds) = context();
    let rules = Profile::page(Additions::ON);
    let ended = || Ok(Flow::RequeueAfter(SECONDS));
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
            Ok(Flow::Continue)
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
        replica_sets,
        snapshots,
        backups,
        backup_schedules,
        nodes
    );
    fill!(
        claims,
        data_volumes,
        volume_snapshots,
        networks,
        quotas,
        limit_ranges,
        namespaces
    );
    let early = timeout(Duration::from_secs(60), &mut working).await;
    assert!(early.is_err() && *passes.lock().unwrap() == 0);
    fill!(storage_classes);
    timeout(Duration::from_secs(60), working).await.unwrap();
    assert_eq!(*passes.lock().unwrap(), 2);
    let panics = "vmlet_controller_reconcile_panics_total{controller=\"virtualmachine\"} 1";
    assert!(context.metrics.text().contains(panics));
}
