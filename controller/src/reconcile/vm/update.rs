//! A machine that exists: one step after the other, and what a failure of one means for the next.
//!
//! ```text
//! status ─► promotion ─► location ─► schema ─► backup ─► revert ─► config ─► power ─► probe ─► snapshots
//! an ordinary failure is remembered and the next step runs; config stops all but snapshots, unless a machine is to
//! go off
//! a step that ends the pass ends it; what was remembered is then the result, unless the pass is to be repeated soon
//! ```
//!
//! Invariant: an earlier ordinary failure turns a later end of the pass into a retry; a failed
//! configuration never keeps a machine from being powered off.
//! Failure: all ordinary failures together.

use std::ops::ControlFlow;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use lifecycle::{Action, Volumes};
use service::telemetry::one_line;

use crate::flow::{Flow, Outcome, PassError};
use crate::reconcile::vm::act::{
    backup, clone, config, handover, power, probe, promotion, revert, saved, schema, snapshot,
    tasks,
};
use crate::reconcile::vm::error::joined;
use crate::reconcile::vm::observe::{location, pods, view};
use crate::reconcile::vm::pass::Pass;
use crate::reconcile::vm::prerequisites;
use crate::reconcile::vm::write::status;

/// One of the steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Any but the next.
    Plain,
    /// Configuration.
    Config,
}

/// Failures that did not end the pass.
#[derive(Debug, Default)]
pub(crate) struct Aggregate(Vec<anyhow::Error>);

impl Aggregate {
    /// Takes the result of a step in; `Break` is the result of the pass.
    pub(crate) fn take(
        &mut self,
        step: Step,
        result: Outcome,
        is_going_off: bool,
    ) -> ControlFlow<Outcome> {
        match result {
            Ok(Flow::Continue) => ControlFlow::Continue(()),
            Err(PassError::Failed(error)) => {
                self.0.push(error);
                if step == Step::Config && !is_going_off {
                    return ControlFlow::Break(self.end());
                }
                ControlFlow::Continue(())
            }
            again @ (Ok(Flow::RequeueAfter(_)) | Err(PassError::Conflict(_))) => {
                if let Err(error) = self.end() {
                    tracing::warn!(error = one_line(&error), "machine update failed");
                }
                ControlFlow::Break(again)
            }
            Ok(other) => ControlFlow::Break(self.end().map(|_| other)),
        }
    }

    /// The result when every step ran.
    pub(crate) fn end(&mut self) -> Outcome {
        match joined(std::mem::take(&mut self.0)) {
            Some(error) => Err(PassError::Failed(error)),
            None => Ok(Flow::Continue),
        }
    }
}

/// All steps.
pub(crate) async fn run(pass: &mut Pass<'_>, pod: Option<Arc<Pod>>) -> Outcome {
    let edited = saved::take_devices(pass, pod.as_deref());
    let owners = revert::hold(pass);
    let result = steps(pass, pod).await;
    if let Some(owners) = owners {
        pass.vm.spec = owners;
    }
    if let Some(edited) = edited {
        pass.vm.spec = edited;
    }
    result
}

async fn steps(pass: &mut Pass<'_>, pod: Option<Arc<Pod>>) -> Outcome {
    let mut aggregate = Aggregate::default();
    let volumes = match prerequisites::disks(pass).await {
        Ok(volumes) => volumes,
        Err(PassError::Failed(error)) => {
            aggregate.0.push(error);
            Volumes::Provisioning
        }
        Err(conflict) => return Err(conflict),
    };
    view::observe(pass, pod, volumes);
    let decision = view::decide(pass);
    revert::keep_record(pass);
    saved::record(pass);
    let is_going_off = matches!(
        decision.action,
        Action::Delete { .. } | Action::Shutdown { .. } | Action::Save { .. }
    );
    tasks::sweep(pass).await?;
    // Before anything that may end the pass: the place of a machine is held at the cost of others.
    if decision.failure.is_none() {
        handover::run(pass, &decision.action).await?;
    }

    let result = clone::snapshot::leave(pass).await;
    if let ControlFlow::Break(end) = aggregate.take(Step::Plain, result, is_going_off) {
        return end;
    }
    let result = status::run(pass);
    if let ControlFlow::Break(end) = aggregate.take(Step::Plain, result, is_going_off) {
        return end;
    }
    let result = promotion::run(pass, &decision.action).await;
    if let ControlFlow::Break(end) = aggregate.take(Step::Plain, result, is_going_off) {
        return end;
    }
    let result = Box::pin(snapshot::let_go(pass)).await;
    if let ControlFlow::Break(end) = aggregate.take(Step::Plain, result, is_going_off) {
        return end;
    }
    let flow = location::run(pass);
    if let Flow::Waiting(why) = &flow {
        Box::pin(revert::without_node(pass, why)).await?;
    }
    let result = Ok(flow);
    if let ControlFlow::Break(end) = aggregate.take(Step::Plain, result, is_going_off) {
        return end;
    }
    schema::run(pass, &decision.action);
    backup::run(pass);
    let result = Box::pin(revert::run(pass, &decision.action)).await;
    if let ControlFlow::Break(end) = aggregate.take(Step::Plain, result, is_going_off) {
        return end;
    }
    let result = config::run(pass, &decision.action).await;
    if let ControlFlow::Break(end) = aggregate.take(Step::Config, result, is_going_off) {
        let Err(PassError::Failed(error)) = end else {
            return end;
        };
        // What a machine lacks to start is nothing that its disk lacks.
        aggregate.0.push(error);
        return snapshots(pass, aggregate, is_going_off).await;
    }
    let result = power::run(pass, &decision).await;
    if let ControlFlow::Break(end) = aggregate.take(Step::Plain, result, is_going_off) {
        return end;
    }
    let result = probe::run(pass).await;
    if let ControlFlow::Break(end) = aggregate.take(Step::Plain, result, is_going_off) {
        return end;
    }
    snapshots(pass, aggregate, is_going_off).await
}

/// The last step: snapshots of the machine.
async fn snapshots(pass: &mut Pass<'_>, mut aggregate: Aggregate, is_going_off: bool) -> Outcome {
    let result = Box::pin(snapshot::run(pass)).await;
    match aggregate.take(Step::Plain, result, is_going_off) {
        ControlFlow::Break(end) => end,
        ControlFlow::Continue(()) => aggregate.end(),
    }
}

/// The only step of a paused machine: its pod, which a drain waits for, is let go once its end is
/// recorded.
pub(crate) fn record_end(pass: &mut Pass<'_>) {
    let pods = pass.ctx.stores.pods_of(&pass.uid());
    let mut pods = pods.into_iter();
    let pod = pods.find(|pod| pod.name_any() == pass.key.name);
    let Some(pod) = pod.filter(|pod| pods::is_deleting(pod) && pods::is_over(pod)) else {
        return;
    };
    view::observe(pass, Some(pod), Volumes::Ready);
    view::decide(pass);
    pass.writes.pops_request = false;
}
