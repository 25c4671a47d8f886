//! Executes one task.
//!
//! Invariant: the task is recorded as running before its first effect, and as ended after its last;
//! percents are hints.
//! Failure: every error ends the task with a sentence; only a database that fails leaves it to a
//! later attempt, or to the next start.

use std::sync::Arc;
use std::time::Duration;

use libvirt::Hypervisor;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::agenda::Agenda;
use super::task::{Failure, Progress, State, Task, Work};
use crate::clock;
use crate::disk::{DesiredClone, DesiredDisk, TakenSnapshot};
use crate::image_tls;
use crate::images::{Inspected, Locator, ServerTls};
use crate::metadata;
use crate::platform::Platform;

/// How long a task waits for libvirt after the daemon's start.
const CONNECT: Duration = Duration::from_secs(30);

/// Time to the next attempt at a task that could not be recorded; others of its machine wait behind
/// it.
const RETRY: Duration = Duration::from_secs(10);

/// Steps in which percents are recorded.
const STEP: u8 = 5;

/// Timeout of a guest for power off and reboot when the request has none.
const TIMEOUT: u32 = 300;

/// Longest time for that, in seconds: a week, as for `spec.powerOffTimeout` of a machine.
const LONGEST_TIMEOUT: u32 = 7 * 24 * 60 * 60;

/// What a task that succeeded reports.
#[derive(Debug)]
enum Report {
    Nothing,
    Image(Inspected),
    Snapshot(TakenSnapshot),
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
            let (state, kind) = (task.state, task.work.kind());
            let error = task.failure.as_ref().map(|f| f.message.as_str());
            tracing::info!(task = %task.uid, vm = %task.vm, kind, ?state, error, "task ended");
        }
        faultpoint::point("node.task.ended");
        Ok(())
    }

    /// `None` when it was stopped, and undone.
    async fn attempt(&self, task: &Task, cancel: &CancellationToken) -> Option<Outcome> {
        let (progress, percents) = watch::channel(task.percent);
        let mut work = Box::pin(self.execute(task, progress));
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
            (Some(Err(failure)), Work::Promote) => {
                drop(work);
                let failure = Some(failure).filter(|_| !cancel.is_cancelled());
                self.end_promotion(task, failure).await
            }
            (Some(outcome), _) => Some(outcome),
            (None, made) if made.makes_disk() => {
                drop(work);
                match self.undo(task).await {
                    Ok(()) => None,
                    Err(failure) => Some(Err(failure)),
                }
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
            (None, Work::Snapshot { .. } | Work::Revert { .. }) => Some(work.await),
            (None, Work::Promote) => {
                drop(work);
                self.end_promotion(task, ends_early.then(made_way)).await
            }
            (None, Work::DeleteSnapshot { .. }) => {
                drop(work);
                self.containers.abandon_merge(task.vm).await;
                ends_early.then(|| Err(made_way_unmerged()))
            }
            (None, _) => None,
        }
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
        match self.disks.abandon_promotion(task.vm).await {
            // It was complete.
            Ok(true) => Some(Ok(Report::Nothing)),
            Ok(false) => failure.map(Err),
            Err(error) => Some(Err(error.into())),
        }
    }

    async fn execute(&self, task: &Task, progress: Progress) -> Outcome {
        let (machines, vm) = (&self.containers, task.vm);
        if task.work.needs_hypervisor() {
            self.await_hypervisor().await;
        }
        match &task.work {
            Work::Provision {
                image,
                url,
                size,
                linked,
                name,
                tls_secret,
            } => {
                let there = self.disks.get(vm).is_some_and(|d| d.phase.is_complete());
                if tls_secret.is_some() && !there && self.images.find(image).is_none() {
                    let tls = self.tls(task, tls_secret.as_deref()).await?;
                    let locator = Locator::new(image, url.as_deref()).with_tls(tls.as_ref());
                    self.images.pull(locator).await?;
                }
                let desired = DesiredDisk {
                    vm,
                    name: name.clone(),
                    image: image.clone(),
                    url: url.clone(),
                    size: *size,
                    linked: *linked,
                };
                let reported = move |percent| {
                    progress.send_replace(percent);
                };
                self.disks.make(&desired, reported).await?;
            }
            Work::DeleteDisk => machines.delete_disk(vm).await?,
            Work::GuestShutdown { timeout } => self.shut_down(task, *timeout).await?,
            Work::PowerOff { timeout, pod } => {
                let seconds = (*timeout).min(LONGEST_TIMEOUT);
                let grace = Duration::from_secs(seconds.into());
                machines.power_off(vm, pod, grace).await?;
            }
            Work::GuestReboot { timeout } => self.reboot(task, *timeout).await?,
            Work::Reset => machines.reset(vm).await?,
            Work::Save => machines.save(vm).await?,
            Work::Restore { discard } => machines.restore(vm, *discard).await?,
            Work::Pause => machines.pause(vm).await?,
            Work::Unpause => machines.unpause(vm).await?,
            Work::Promote => {
                let reported = move |percent| {
                    progress.send_replace(percent);
                };
                machines.promote(vm, reported).await?;
            }
            Work::Adopt { name } => self.disks.adoptable(vm, name)?,
            Work::CloneDisk {
                source,
                snapshot,
                size,
                name,
            } => {
                let desired = DesiredClone {
                    vm,
                    name: name.clone(),
                    source: *source,
                    snapshot: *snapshot,
                    size: *size,
                };
                let reported = move |percent| {
                    progress.send_replace(percent);
                };
                machines.clone_disk(&desired, reported).await?;
            }
            Work::Snapshot { snapshot, quiesce } => {
                let taken = machines.take_snapshot(vm, *snapshot, *quiesce).await?;
                return Ok(Report::Snapshot(taken));
            }
            Work::Revert { snapshot } => machines.revert(vm, *snapshot).await?,
            Work::DeleteSnapshot { snapshot } => {
                let reported = move |percent| {
                    progress.send_replace(percent);
                };
                machines.delete_snapshot(vm, *snapshot, reported).await?;
            }
            Work::SetProbe { pod, probe } => {
                machines.set_probe(vm, pod, probe.as_ref()).await?;
            }
            Work::InspectImage {
                image,
                url,
                tls_secret,
            } => {
                let tls = self.tls(task, tls_secret.as_deref()).await?;
                let locator = Locator::new(image, url.as_deref()).with_tls(tls.as_ref());
                return Ok(Report::Image(self.images.inspect(locator).await?));
            }
            Work::PullImage {
                image,
                url,
                tls_secret,
            } => {
                // The daemon does not pull an image again whose name is in the store: machines use that image.
                if self.images.find(image).is_none() {
                    let reported = move |percent| {
                        progress.send_replace(percent);
                    };
                    let tls = self.tls(task, tls_secret.as_deref()).await?;
                    let locator = Locator::new(image, url.as_deref()).with_tls(tls.as_ref());
                    self.images.pull_reporting(locator, reported).await?;
                }
            }
        }
        Ok(Report::Nothing)
    }

    /// The certificates for the server of a task's image, if it names a Secret with some.
    async fn tls(&self, task: &Task, secret: Option<&str>) -> Result<Option<ServerTls>, Failure> {
        let Some(secret) = secret else {
            return Ok(None);
        };
        let wanted = image_tls::of_task(&task.uid.to_string(), secret);
        let wanted = wanted.map_err(|reason| Failure::new(reason, false))?;
        let sources = self.containers.sources();
        Ok(Some(image_tls::read(sources, &self.images, wanted).await?))
    }

    async fn shut_down(&self, task: &Task, timeout: u32) -> Result<(), Failure> {
        let (seconds, deadline) = deadline(task, timeout);
        if self.containers.shut_down(task.vm, deadline).await? {
            return Ok(());
        }
        let words = format!("the guest did not power off within {seconds} s");
        Err(Failure::new(&words, true))
    }

    async fn reboot(&self, task: &Task, timeout: u32) -> Result<(), Failure> {
        let (seconds, deadline) = deadline(task, timeout);
        if self.containers.reboot(task.vm, deadline).await? {
            return Ok(());
        }
        let words = format!("the guest did not reboot within {seconds} s");
        Err(Failure::new(&words, true))
    }

    /// Just after the daemon's start the connection may not be there yet. Without one in time the
    /// task is tried all the same, so that its failure states why.
    pub(super) async fn await_hypervisor(&self) {
        let _ = timeout(CONNECT, self.hypervisor.connected()).await;
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

/// How many seconds a guest has, and until when: they count from the start of the task, also across
/// a restart.
fn deadline(task: &Task, timeout: u32) -> (u32, Instant) {
    let seconds = match timeout {
        0 => TIMEOUT,
        other => other.min(LONGEST_TIMEOUT),
    };
    let whole = Duration::from_secs(seconds.into());
    let begun = task.started_at;
    let end = begun.saturating_add(i64::from(seconds).saturating_mul(1_000_000_000));
    (seconds, Instant::now() + clock::until(end).min(whole))
}

#[cfg(test)]
mod tests {
    use futures_util::poll;

    use super::*;
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
            order: 1,
            created_at: 0,
            started_at: 0,
            completed_at: 0,
        }
    }

    /// Stops an attempt that waits for the database while it has the turn to write records of
    /// disks.
    async fn stop(node: &Node, task: &Task) {
        let (agenda, cancel) = (agenda(node).await, CancellationToken::new());
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
