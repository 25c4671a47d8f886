//! Restarts at a time that the owner specified.
//!
//! Invariant: a time is used once; the pod stays, so that kubelet counts no restart. Whatever else
//! is to be done with the machine comes first: a guest may take minutes to reboot.
//! Failure: a guest that does not reboot in time is reset when the mode allows it, else the failure
//! is shown.

use std::time::Duration;

use crds::vm::PowerOpMode;
use crds::{TaskKind, TaskState, VirtualMachineTask};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use lifecycle::Action;
use lifecycle::power::{self, Restart};

use super::{plain_task, tasks};
use crate::flow::{Flow, Outcome, PassError};
use crate::reconcile::answers::again;
use crate::reconcile::node_tasks;
use crate::reconcile::vm::act::tasks::Progress;
use crate::reconcile::vm::pass::Pass;

/// How long the clock is trusted.
const LOOK: Duration = Duration::from_secs(60 * 60);

/// Restarts the guest if that is due.
pub(super) async fn run(pass: &mut Pass<'_>) -> Outcome {
    let at = match wanted(pass)? {
        Restart::None => return Ok(Flow::Continue),
        Restart::In(left) => {
            pass.requeue_within(left.min(LOOK));
            return Ok(Flow::Continue);
        }
        Restart::Due(at) => at,
    };
    // A paused guest cannot respond to ACPI events.
    let instance = pass.view.instance.as_ref();
    if instance.is_some_and(|i| i.paused.is_some()) {
        return Ok(Flow::Continue);
    }
    let mode = pass.vm.spec.restart_mode.unwrap_or_default();
    let progress = match mode {
        PowerOpMode::Hard => once(pass, TaskKind::Reset, &at).await?,
        PowerOpMode::Soft => once(pass, TaskKind::GuestReboot, &at).await?,
        PowerOpMode::TrySoft if has_failed(pass, &at) => once(pass, TaskKind::Reset, &at).await?,
        PowerOpMode::TrySoft => once(pass, TaskKind::GuestReboot, &at).await?,
    };
    match progress {
        Progress::Running => Ok(Flow::Done("requested a restart from the node")),
        Progress::Done => {
            pass.status().last_restart_time = Some(at);
            pass.count_change();
            Ok(Flow::Done("restarted"))
        }
        // It made way for a pause or a suspend, after which the guest is as it was before.
        Progress::Cancelled => {
            for task in tasks::all(pass).iter().filter(|task| is_cancelled(task)) {
                tasks::delete(pass, task).await?;
            }
            Err(again())
        }
        Progress::Removed => Ok(Flow::RequeueAfter(tasks::NEXT)),
    }
}

fn is_cancelled(task: &VirtualMachineTask) -> bool {
    let state = task.status.as_ref().and_then(|status| status.state);
    let is_restart = matches!(task.spec.kind, TaskKind::GuestReboot | TaskKind::Reset);
    is_restart && state == Some(TaskState::Cancelled)
}

/// The restart that the owner named, if it was not made yet.
fn wanted(pass: &Pass<'_>) -> Outcome<Restart> {
    let last = pass.seen().and_then(|s| s.last_restart_time.clone());
    let instance = pass.view.instance.as_ref();
    let restart = power::restart(&pass.vm.spec, last.as_ref(), instance, &pass.now);
    restart.map_err(|e| PassError::Failed(e.into()))
}

async fn once(pass: &mut Pass<'_>, kind: TaskKind, at: &Time) -> Outcome<Progress> {
    let mut task = plain_task(pass, kind)?;
    if kind == TaskKind::GuestReboot {
        task.timeout_seconds = Some(power::power_off_seconds(&pass.vm.spec));
    }
    tasks::ensure(pass, task, &at.0.to_string()).await
}

/// Stops a reboot that is waited for, when there is something to do with the machine.
pub(super) async fn make_way(pass: &mut Pass<'_>, action: &Action) -> Outcome<()> {
    if matches!(action, Action::Wait(_) | Action::Patch(_)) {
        return Ok(());
    }
    // A guest that is powered off boots again when it is started again.
    if matches!(action, Action::Delete { .. } | Action::Shutdown { .. })
        && let Ok(Restart::Due(at)) = wanted(pass)
    {
        pass.status().last_restart_time = Some(at);
    }
    for task in tasks::all(pass) {
        if task.spec.kind == TaskKind::GuestReboot && !task.is_final() {
            tasks::cancel(pass, &task).await?;
        }
    }
    Ok(())
}

/// The guest did not reboot, or could not be queried.
fn has_failed(pass: &Pass<'_>, at: &Time) -> bool {
    let name = node_tasks::name(&pass.key.name, TaskKind::GuestReboot, &at.0.to_string());
    let task = tasks::find(pass, &name);
    let state = task.and_then(|t| t.status.as_ref().and_then(|s| s.state));
    state == Some(TaskState::Error)
}
