//! One pass over one schedule of backups.
//!
//! ```text
//! time passed? ─► a backup of each machine, named by machine and time ─► lastScheduleTime
//!              └─► backups that are not kept, and that none that is kept builds upon ─► deleted
//! ```
//!
//! Invariant: the name of a backup follows from machine, schedule and time, so that a pass that is repeated, by a killed
//! controller or one with a stale store, creates none twice; the time is recorded when all are created. Of the times that
//! passed while no controller ran, the last one is made up for. Only backups with the label of the schedule are deleted,
//! as they were read.
//! Failure: a schedule that cannot be read, and what the API server refuses, show in `Ready`; the latter is repeated with
//! the back-off of the pass.

mod create;
mod retention;

use std::time::Duration;

use crds::conditions::{self, READY, Status};
use crds::{VirtualMachineBackupSchedule, VirtualMachineBackupScheduleStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use crate::context::{Context, Key};
use crate::flow::{Flow, Outcome, PassError};
use crate::reconcile::backup::apply_status;
use crate::reconcile::cron;
use crate::reconcile::vm::shortened;

/// Seconds between two times of a schedule.
const LEAST: i64 = 300;
/// Seconds by which the clocks of two controllers may differ.
const SKEW: i64 = 60;
/// Longest time until a schedule is looked at again, in seconds: the clock may be set, and backups become old.
const LONGEST_WAIT: i64 = 3600;
/// Time until the next pass of one that had more to write than a pass writes.
const NEXT: Duration = Duration::from_millis(200);
/// Reason of [`READY`], False: the API server refused something.
const WRITE_FAILED: &str = "WriteFailed";
/// Objects that a pass creates, and deletes.
const MOST: usize = 50;

/// What a pass has led to.
#[derive(Debug, Default)]
struct Work {
    /// Something is left for the next pass.
    is_cut: bool,
    /// The first refusal of the API server.
    failure: Option<anyhow::Error>,
}

/// One pass.
///
/// # Errors
///
/// What the API server reports of a write; see [`PassError`].
pub async fn reconcile(ctx: &Context, key: &Key) -> Outcome {
    let found = ctx.stores.backup_schedules.get(&key.reference());
    let Some(schedule) = found.filter(|found| found.metadata.deletion_timestamp.is_none()) else {
        // Its backups stay.
        return Ok(Flow::Continue);
    };
    let now = (ctx.clock)().0.as_second();
    let mut draft = schedule.status.clone().unwrap_or_default();
    let mut work = Work::default();
    let text = &schedule.spec.schedule;
    let next = cron::next(text, now);
    if !schedule.spec.suspend
        && let Some(due) = due(&schedule, now)
    {
        create::run(ctx, &schedule, due, &mut work).await?;
        if work.failure.is_none() && !work.is_cut {
            draft.last_schedule_time = Timestamp::from_second(due).ok().map(Time);
        }
    }
    retention::run(ctx, &schedule, now, &mut work).await?;
    report(ctx, &schedule, &mut draft, (next.as_ref().err(), &work));
    if schedule.status.as_ref() != Some(&draft) {
        apply_status(ctx, &*schedule, &draft).await?;
    }
    if let Some(error) = work.failure {
        return Err(PassError::Failed(error));
    }
    let wait = next.map_or(LONGEST_WAIT, |next| (next - now).clamp(1, LONGEST_WAIT));
    let wait = Duration::from_secs(wait.unsigned_abs());
    Ok(Flow::RequeueAfter(if work.is_cut { NEXT } else { wait }))
}

/// The time of the schedule for which backups are to be created, in seconds.
fn due(schedule: &VirtualMachineBackupSchedule, now: i64) -> Option<i64> {
    let last = cron::last(&schedule.spec.schedule, now).ok()?;
    let status = schedule.status.as_ref();
    let done = status.and_then(|status| status.last_schedule_time.as_ref());
    let done = done.map(|done| done.0.as_second());
    let made = schedule.metadata.creation_timestamp.as_ref();
    let made = made.map_or(now, |made| made.0.as_second());
    let is_due = match done {
        // A clock that was set back causes one backup.
        Some(done) => last >= done + LEAST || done > now + SKEW,
        None => last > made,
    };
    is_due.then_some(last)
}

fn report(
    ctx: &Context,
    schedule: &VirtualMachineBackupSchedule,
    draft: &mut VirtualMachineBackupScheduleStatus,
    (problem, work): (Option<&String>, &Work),
) {
    let generation = schedule.metadata.generation;
    draft.observed_generation = generation;
    let failure = work.failure.as_ref().map(crate::reconcile::vm::error::text);
    let verdict = match (problem, &failure) {
        (Some(problem), _) => {
            let text = format!("spec.schedule cannot be used: {problem}");
            (Status::False, "InvalidSchedule", text)
        }
        (None, Some(failure)) => (Status::False, WRITE_FAILED, failure.clone()),
        (None, None) if schedule.spec.suspend => {
            let text = "the schedule is suspended, and creates no backups".to_owned();
            (Status::False, "Suspended", text)
        }
        (None, None) => (Status::True, "", String::new()),
    };
    let now = (ctx.clock)();
    let all = &mut draft.conditions;
    let message = shortened(&verdict.2);
    conditions::set(all, READY, verdict.0, verdict.1, message, generation, &now);
}
