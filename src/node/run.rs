//! Executes one task.
//!
//! Invariant: the task is recorded as running before its first effect, and as ended after its last;
//! percents are hints.
//! Failure: every error ends the task with a sentence; only a database that fails leaves it to a
//! later attempt, or to the next start.

mod work;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::agenda::Agenda;
use super::task::{DoneBackup, Failure, State, Task, Work};
use crate::clock;
use crate::disk::TakenSnapshot;
use crate::images::Inspected;
use crate::metadata;
use crate::platform::Platform;

/// Time to the next attempt at a task that could not be recorded; others of its machine wait behind
/// it.
const RETRY: Duration = Duration::from_secs(10);

/// Time between two requests to end the writing of memory.
const ABORT: Duration = Duration::from_millis(500);

/// Steps in which percents are recorded.
const STEP: u8 = 5;

/// What a task that succeeded reports.
#[derive(Debug)]
enum Report {
    Nothing,
    Image(Inspected),
    Snapshot(TakenSnapshot),
    Backup(DoneBackup),
}

/// How an attempt ended.
type Outcome = Result<Report, Failure>;

impl<P: Platform> Agenda<P> {
    pub(super) async fn carry_out(&self, task: &Arc<Task>, cancel: CancellationToken) {
        if let Err(e) = self.to_end(task, cancel).await {
            tracing::error!(task = %task.uid, error = crate::one_line(&e), again_in = ?RETRY, "task not recorded");
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn to_end(&self, task: &Task, cancel: CancellationToken) -> metadata::Result<()> {
        let interrupted = task.state == State::Running;
        let begun = self.records.change(&task.uid, |task| {
            let open = !task.state.is_end();
            if !interrupted {
                task.state = State::Running;
                task.started_at = clock::now();
            }
            open
        });
        let Some(task) = begun.await? else {
            return Ok(());
        };
        faultpoint::point("node.task.running");
        if task.cancelled {
            cancel.cancel();
        }
        let outcome = if interrupted && task.work.is_once() {
            let words = "the daemon was restarted, or could not record the result, during the request: \
                 whether the guest received it is unknown";
            Some(Err(Failure::new(words, true)))
        } else {
            self.attempt(&task, &cancel).await
        };
        let ended = self.records.change(&task.uid, |task| {
            task.completed_at = clock::now();
            match outcome {
                Some(Ok(report)) => {
                    task.state = State::Success;
                    match report {
                        Report::Nothing => {}
                        Report::Image(image) => task.image = Some(image),
                        Report::Snapshot(snapshot) => task.snapshot = Some(snapshot),
                        Report::Backup(backup) => task.backup = Some(backup),
                    }
                }
                Some(Err(failure)) => {
                    task.state = State::Error;
                    task.failure = Some(failure);
                }
                None => task.state = State::Cancelled,
            }
            if task.state == State::Success {
                task.percent = 100;
            }
            true
        });
        if let Some(task) = ended.await? {
            let state = task.state;
            let kind = task.work.kind();
            let error = task.failure.as_ref().map(|f| f.message.as_str());
            tracing::info!(task = %task.uid, vm = %task.vm, kind, ?state, error, "task ended");
        }
        faultpoint::point("node.task.ended");
        Ok(())
    }

    /// `None` when it was stopped, and undone.
    async fn attempt(&self, task: &Task, cancel: &CancellationToken) -> Option<Outcome> {
        let (progress, percents) = watch::channel(task.percent);
        let mut work = Box::pin(self.execute(task, progress, cancel));
        let mut reported = Box::pin(self.report_progress(task, percents));
        let makes_way = self.makes_way(task.uid);
        let mut ends_early = false;
        let outcome = loop {
            tokio::select! {
                outcome = &mut work => break Some(outcome),
                () = cancel.cancelled() => break None,
                () = makes_way.cancelled() => {
                    ends_early = true;
                    break None;
                }
                () = &mut reported => {}
            }
        };
        // A future that is not polled any more must not hold what others wait for.
        drop(reported);
        match (outcome, &task.work) {
            (Some(Err(failure)), made) if made.makes_disk() => {
                // What it holds of a source is not held for longer.
                drop(work);
                Some(Err(self.undo(task).await.err().unwrap_or(failure)))
            }
            (Some(Err(failure)), Work::Promote { .. }) => {
                drop(work);
                let failure = Some(failure).filter(|_| !cancel.is_cancelled());
                self.end_promotion(task, failure).await
            }
            (Some(Err(failure)), Work::Backup(backup)) => {
                drop(work);
                Some(Err(self
                    .abandon_backup(task, backup)
                    .await
                    .err()
                    .unwrap_or(failure)))
            }
            (Some(outcome), _) => Some(outcome),
            (None, made) if made.makes_disk() => {
                drop(work);
                match self.undo(task).await {
                    Ok(()) => None,
                    Err(failure) => Some(Err(failure)),
                }
            }
            (None, Work::Snapshot { memory: true, .. }) => {
                self.end_save(task, work).await.ok().map(Ok)
            }
            (None, Work::Save) => {
                let abort = async {
                    if let Err(e) = self.containers.abort_save(task.vm).await {
                        tracing::info!(task = %task.uid, error = crate::one_line(&e), "save not stopped");
                    }
                };
                // Both go on: the save may have a turn that the abort waits for. It was too late,
                // or the save fails now.
                let (saved, ()) = tokio::join!(work, abort);
                saved.ok().map(Ok)
            }
            // They end soon, and leave nothing that is half done.
            (None, Work::Snapshot { .. } | Work::Revert { .. } | Work::Freeze { .. }) => {
                Some(work.await)
            }
            (None, Work::Promote { .. }) => {
                drop(work);
                self.end_promotion(task, ends_early.then(made_way)).await
            }
            (None, Work::DeleteSnapshot { .. }) => {
                drop(work);
                self.containers.abandon_merge(task.vm).await;
                ends_early.then(|| Err(made_way_unmerged()))
            }
            (None, Work::Backup(backup)) => {
                drop(work);
                match self.abandon_backup(task, backup).await {
                    Ok(()) if ends_early => {
                        // The merge after it is left to the next one.
                        let completed = self.completed_backup(task.vm, backup).await;
                        let completed = completed.map(Report::Backup);
                        Some(completed.ok_or_else(made_way_unwritten))
                    }
                    Ok(()) => None,
                    Err(failure) => Some(Err(failure)),
                }
            }
            (None, Work::DeleteBackup { .. }) => {
                drop(work);
                self.containers.abandon_merge(task.vm).await;
                ends_early.then(|| Err(made_way_unmerged()))
            }
            (None, _) => None,
        }
    }

    /// Ends a snapshot with memory. It may not have begun to write that, and may begin a second time; no request is left
    /// behind for the next task.
    async fn end_save<T>(&self, task: &Task, work: impl Future<Output = T>) -> T {
        let is_over = AtomicBool::new(false);
        let working = async {
            let outcome = work.await;
            is_over.store(true, Ordering::Release);
            outcome
        };
        let aborting = async {
            while !is_over.load(Ordering::Acquire) {
                if let Err(e) = self.containers.abort_save(task.vm).await {
                    let error = crate::one_line(&e);
                    tracing::debug!(task = %task.uid, error, "snapshot with memory not ended yet");
                }
                tokio::time::sleep(ABORT).await;
            }
        };
        tokio::join!(working, aborting).0
    }

    /// Records percents; ends never.
    async fn report_progress(&self, task: &Task, mut percents: watch::Receiver<u8>) {
        let mut last = task.percent;
        while percents.changed().await.is_ok() {
            let percent = *percents.borrow_and_update();
            if percent < last.saturating_add(STEP) {
                continue;
            }
            last = percent;
            let record = |task: &mut Task| {
                task.percent = percent.min(100);
                true
            };
            // A hint that is lost is nothing.
            let _ = self.records.change(&task.uid, record).await;
        }
        std::future::pending().await
    }

    async fn undo(&self, task: &Task) -> Result<(), Failure> {
        Ok(self.disks.undo(task.vm).await?)
    }

    /// Removes what a promotion that was cancelled, or failed, has left.
    async fn end_promotion(&self, task: &Task, failure: Option<Failure>) -> Option<Outcome> {
        match self.containers.abandon_promotion(task.vm).await {
            // It was complete.
            Ok(true) => Some(Ok(Report::Nothing)),
            Ok(false) => failure.map(Err),
            Err(error) => Some(Err(error.into())),
        }
    }
}

/// The end of a task that others of its machine did not wait for.
fn made_way() -> Failure {
    let words = "ended for another task of the machine, which needs its disk: the disk stays an overlay \
                 on its image";
    Failure::new(words, true)
}

/// The same of a deletion of a snapshot.
fn made_way_unmerged() -> Failure {
    let words = "ended for another task of the machine, which needs its disk: the next deletion of a snapshot merges \
                 the layers that are left";
    Failure::new(words, true)
}

/// The same of a backup.
fn made_way_unwritten() -> Failure {
    let words = "ended for another task of the machine, which needs its disk: the next attempt writes the backup";
    Failure::new(words, true)
}

#[cfg(test)]
mod tests {
    use futures_util::poll;
    use tokio::time::timeout;

    use super::*;
    use crate::disk::DesiredDisk;
    use crate::node::tests::{agenda, uid};
    use crate::testkit::{Node, TIMEOUT};

    fn task(image: String) -> Task {
        Task {
            uid: uid(1),
            vm: uid(9),
            work: Work::Provision {
                image,
                url: None,
                size: 0,
                linked: true,
                name: String::new(),
                tls_secret: None,
            },
            state: State::Running,
            cancelled: false,
            percent: 0,
            failure: None,
            image: None,
            snapshot: None,
            backup: None,
            order: 1,
            created_at: 0,
            started_at: 0,
            completed_at: 0,
        }
    }

    /// Stops an attempt that waits for the database while it has the turn to write records of
    /// disks.
    async fn stop(node: &Node, task: &Task) {
        let agenda = agenda(node).await;
        let cancel = CancellationToken::new();
        let held = node.hold_writes().await;
        let mut attempt = Box::pin(agenda.attempt(task, &cancel));
        // No other task gets the turn then.
        while poll!(Box::pin(node.disks.undo(uid(7)))).is_ready() {
            assert!(poll!(&mut attempt).is_pending());
            tokio::task::yield_now().await;
        }
        cancel.cancel();
        assert!(poll!(&mut attempt).is_pending(), "it is not undone yet");
        drop(held);
        let ended = timeout(TIMEOUT, attempt).await;
        assert!(ended.expect("it ends").is_none());
    }

    #[tokio::test]
    async fn a_provision_that_is_stopped_while_it_is_recorded_leaves_nothing() {
        let node = Node::new().await;
        stop(&node, &task(node.image("disk"))).await;
        let node = node.restarted().await;
        assert!(node.disks.get(uid(9)).is_none());
    }

    #[tokio::test]
    async fn a_provision_that_is_stopped_while_it_changes_its_record_is_undone() {
        let node = Node::new().await;
        let task = task(node.image("absent"));
        let Work::Provision { image, .. } = &task.work else {
            unreachable!()
        };
        let desired = DesiredDisk {
            vm: uid(9),
            name: String::new(),
            image: image.clone(),
            url: None,
            size: 0,
            linked: true,
        };
        node.disks.make(&desired, |_| {}).await.unwrap_err();
        let owner = format!("vm-{}", uid(9));
        node.images.pin(&owner, &node.image("disk")).await.unwrap();
        // The next step is to record which image it is.
        stop(&node, &task).await;
        let node = node.restarted().await;
        assert!(node.disks.get(uid(9)).is_none());
        assert!(node.images.pinned(&owner).is_none());
    }
}
