//! A failure that lasts, with the real queue: what wakes a machine, and how often it is looked at.
//!
//! Invariant: time is paused; the watches show each write as soon as its pass ends, as fast as any
//! API server can.
//! Failure: the assertion shows the writes.

use std::sync::Arc;
use std::time::Duration;

use crds::{VirtualMachine, conditions};
use http::Method;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use workqueue::Options;

use super::bench::*;
use crate::context::{Context, Key};
use crate::flow::PassError;
use crate::intake::Intake;
use crate::priority::{Additions, Profile};
use crate::reconcile::vm::reconcile;
use crate::runner;

/// How long the failure lasts.
const TIME: Duration = Duration::from_mins(10);
/// Most passes in that time: a back-off that doubles from 5 ms, some of them begun again.
const MOST_PASSES: usize = 60;
/// Most writes in that time: conditions once, and a task that is made again every five minutes.
const MOST_WRITES: usize = 12;

/// What failed, by its end: the node refuses all tasks.
fn refuse_tasks(bench: &mut Bench) {
    for kind in ["Save", "GuestShutdown", "Provision", "DeleteDisk"] {
        bench.task_ends(kind, "Error");
    }
}

/// The controller works on the machine for [`TIME`]; returns the passes, the writes and the machine.
async fn ten_minutes(mut bench: Bench) -> (usize, Vec<String>, VirtualMachine) {
    let epoch = Instant::now();
    let start = (bench.ctx.clock)().0;
    bench.ctx.clock = Arc::new(move || {
        let passed = jiff::SignedDuration::try_from(epoch.elapsed()).unwrap();
        k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(start + passed)
    });
    bench.writes();
    let context = bench.ctx.clone();
    let rules = Arc::new(Profile::page(Additions::ON));
    let metrics = context.metrics.queue.clone();
    let queue = Arc::new(runner::queue(&context.config, &rules, metrics));
    let metrics = context.metrics.images.clone();
    let images = Arc::new(runner::images::queue(&context.config, metrics));
    let profile = Profile::page(Additions::ON);
    let intake = Intake::new(context.stores.clone(), profile, Arc::clone(&queue), images);
    bench.fill_the_rest();
    queue.push(bench.key.clone(), Options::at(0));
    let bench = Arc::new(Mutex::new((bench, 0)));
    let shared = Arc::clone(&bench);
    let pass = move |context: Context, key: Key| {
        let shared = Arc::clone(&shared);
        let intake = intake.clone();
        async move {
            let result = Box::pin(reconcile(&context, &key)).await;
            let (bench, passes) = &mut *shared.lock().await;
            *passes += 1;
            bench.sync_to(Some(&intake));
            refuse_tasks(bench);
            bench.sync_to(Some(&intake));
            result
        }
    };
    let stop = CancellationToken::new();
    let until = stop.clone();
    let working = runner::run(&context, queue, rules, stop, pass);
    let clock = async {
        tokio::time::sleep(TIME).await;
        until.cancel();
    };
    tokio::join!(working, clock);
    let (bench, passes) = &mut *bench.lock().await;
    (*passes, bench.writes(), bench.vm())
}

#[rstest]
#[case::a_suspension_that_the_node_refuses(json!({ "spec": { "runStrategy": null, "powerState": "Suspended" } }), None)]
#[case::a_soft_power_off_that_the_node_refuses(
    json!({ "spec": { "runStrategy": "Halted", "powerOffMode": "Soft" } }), None
)]
#[case::a_pod_that_cannot_be_deleted(
    json!({ "spec": { "runStrategy": "Halted", "powerOffMode": "Hard" } }), Some((Method::DELETE, "pods/vm"))
)]
#[case::a_task_that_cannot_be_made(
    json!({ "spec": { "runStrategy": null, "powerState": "Suspended" } }),
    Some((Method::POST, "virtualmachinetasks"))
)]
#[case::a_status_that_cannot_be_written(
    json!({ "spec": { "runStrategy": "Halted" } }), Some((Method::PATCH, "virtualmachines/vm/status"))
)]
#[tokio::test(start_paused = true)]
async fn a_failure_of_a_running_machine_keeps_its_back_off(
    #[case] change: Value,
    #[case] refused: Option<(Method, &str)>,
) {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    if let Some((method, part)) = refused {
        bench.refuse(method, part, 403, usize::MAX);
    }
    bench.edit(VMS, "vm", change);
    let (passes, writes, _) = ten_minutes(bench).await;
    assert!(passes > 1, "no failure");
    assert!(passes <= MOST_PASSES, "{passes} passes: {writes:?}");
    assert!(writes.len() <= MOST_WRITES, "{writes:?}");
}

#[rstest]
#[case::no_class(json!({ "spec": { "className": "none" } }), conditions::CLASS_READY)]
#[case::no_image(json!({ "spec": { "imageName": "none" } }), conditions::IMAGE_READY)]
#[case::no_network(
    json!({ "spec": { "network": { "interfaces": [{ "name": "a", "networkRef": "none" }] } } }),
    conditions::NETWORK_READY
)]
#[case::no_room(json!({}), conditions::CREATED)]
#[tokio::test(start_paused = true)]
async fn a_machine_that_cannot_be_made_keeps_its_back_off(
    #[case] change: Value,
    #[case] failed: &str,
) {
    let mut bench = Bench::new();
    if failed == conditions::CREATED {
        bench.most_pods(0);
    }
    bench.machine(change);
    let (passes, writes, vm) = ten_minutes(bench).await;
    let status = vm.status.unwrap();
    let condition = conditions::find(&status.conditions, failed);
    assert_eq!(condition.unwrap().status, "False", "{status:?}");
    assert!(passes > 1, "no failure");
    assert!(passes <= MOST_PASSES, "{passes} passes: {writes:?}");
    assert!(writes.len() <= MOST_WRITES, "{writes:?}");
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_the_node_cannot_make_keeps_its_back_off() {
    let mut bench = Bench::new();
    bench.provisioning(json!({})).await;
    let (passes, writes, _) = ten_minutes(bench).await;
    assert!(passes > 1, "no failure");
    assert!(passes <= MOST_PASSES, "{passes} passes: {writes:?}");
    assert!(writes.len() <= MOST_WRITES, "{writes:?}");
}

#[tokio::test]
async fn a_failure_is_written_once_however_often_it_comes() {
    let mut bench = Bench::new();
    bench.running(json!({})).await;
    let suspended = json!({ "spec": { "runStrategy": null, "powerState": "Suspended" } });
    bench.edit(VMS, "vm", suspended);
    bench.pass().await.ok();
    refuse_tasks(&mut bench);
    bench.pass().await.unwrap_err();
    bench.writes();
    for _ in 0..3 {
        let result = bench.pass().await;
        assert!(matches!(result, Err(PassError::Failed(_))), "{result:?}");
    }
    assert_eq!(bench.writes(), Vec::<String>::new());
    assert_eq!(bench.condition_text("Failure"), "True/FailedUpdate");
}
