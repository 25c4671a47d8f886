//! Restarts at a time that the owner named.
//!
//! Invariant: a time is used once; the pod stays, so that kubelet counts no restart. Whatever else is to be done with the
//! machine comes first: a guest may take minutes to reboot.
//! Failure: a guest that does not reboot in time is reset when the mode allows it, else the failure is shown.

use std::time::Duration;

use crds::TaskKind;
use crds::vm::PowerOpMode;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use lifecycle::Action;
use lifecycle::power::{self, Restart};

use super::{of, tasks};
use crate::outcome::{Outcome, Stop};
use crate::reconcile::vm::pass::Pass;
use crate::reconcile::vm::tasks::Progress;

/// How long the clock is trusted.
const LOOK: Duration = Duration::from_secs(60 * 60);

/// Restarts the guest if that is due; `true`: done and on record.
pub(super) async fn run(pass: &mut Pass<'_>) -> Outcome<bool> {
    let status = pass.seen();
    let last = status.and_then(|s| s.last_restart_time.clone());
    let instance = pass.view.instance.as_ref();
    let restart = power::restart(&pass.vm.spec, last.as_ref(), instance, &pass.now);
    let at = match restart.map_err(|e| Stop::Failed(e.into()))? {
        Restart::None => return Ok(false),
        Restart::In(left) => {
            pass.look_again(left.min(LOOK));
            return Ok(false);
        }
        Restart::Due(at) => at,
    };
    // It hears nobody before it runs on.
    if instance.is_some_and(|i| i.paused.is_some()) {
        return Ok(false);
    }
    let mode = pass.vm.spec.restart_mode.unwrap_or_default();
    let progress = match mode {
        PowerOpMode::Hard => once(pass, TaskKind::Reset, &at).await?,
        PowerOpMode::Soft => once(pass, TaskKind::GuestReboot, &at).await?,
        PowerOpMode::TrySoft if has_failed(pass, &at) => once(pass, TaskKind::Reset, &at).await?,
        PowerOpMode::TrySoft => once(pass, TaskKind::GuestReboot, &at).await?,
    };
    if progress == Progress::Running {
        return Err(Stop::quiet("asked the node for a restart"));
    }
    pass.status().last_restart_time = Some(at);
    pass.acted = true;
    Ok(true)
}

async fn once(pass: &mut Pass<'_>, kind: TaskKind, at: &Time) -> Outcome<Progress> {
    let mut task = of(pass, kind)?;
    if kind == TaskKind::GuestReboot {
        task.timeout_seconds = Some(pass.power_off_timeout());
    }
    tasks::ensure(pass, task, &at.0.to_string()).await
}

/// Stops a reboot that is waited for, when there is something to do with the machine.
pub(super) async fn make_way(pass: &mut Pass<'_>, action: &Action) -> Outcome<()> {
    if matches!(action, Action::Wait(_) | Action::Patch(_)) {
        return Ok(());
    }
    for task in tasks::all(pass) {
        if task.spec.kind == TaskKind::GuestReboot && !tasks::is_final(&task) {
            tasks::cancel(pass, &task).await?;
        }
    }
    Ok(())
}

/// The guest did not reboot, or could not be asked.
fn has_failed(pass: &Pass<'_>, at: &Time) -> bool {
    let name = tasks::name(&pass.key.name, TaskKind::GuestReboot, &at.0.to_string());
    let task = tasks::find(pass, &name);
    let state = task.and_then(|t| t.status.as_ref().and_then(|s| s.state));
    state == Some(crds::TaskState::Error)
}
