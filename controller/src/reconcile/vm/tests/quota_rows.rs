//! A machine that a quota refuses, and the quota that wakes it.
//!
//! Invariant: what counts as waiting is what a real pass writes.
//! Failure: the assertion shows the condition.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ResourceQuota;
use serde_json::json;

use super::bench::*;
use crate::intake::Wakes;
use crate::stores::Change;

fn quota(hard: u32) -> Arc<ResourceQuota> {
    let quota = serde_json::from_value(json!({
        "metadata": { "name": "q", "namespace": "ns" },
        "status": { "hard": { "pods": hard.to_string() }, "used": { "pods": "0" } },
    }));
    Arc::new(quota.unwrap())
}

#[tokio::test]
async fn a_machine_that_a_quota_refused_is_woken_by_the_quota_until_it_fits() {
    let mut bench = Bench::new();
    bench.most_pods(0);
    bench.machine(json!({}));
    bench.settle().await.ok();
    assert_eq!(bench.condition_text("Failure"), "True/FailedCreate");
    let raised = Change::Updated {
        old: quota(0),
        new: quota(1),
        unchanged: false,
    };
    let woken = |bench: &Bench| ResourceQuota::wakes(&raised, &bench.ctx.stores);
    let failure = bench.condition("Failure").unwrap();
    assert_eq!(woken(&bench), [bench.key.clone()], "{}", failure.message);

    bench.most_pods(usize::MAX);
    bench.settle().await.ok();
    assert_eq!(bench.condition_text("Failure"), "-");
    assert_eq!(woken(&bench), []);
}
