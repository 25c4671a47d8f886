//! What a task does: a call of the service that can do it.
//!
//! Invariant: each call can be repeated after a crash; what it has begun is undone by the attempt that it is
//! a part of.
//! Failure: a sentence for the status of the task.

use std::time::Duration;

use libvirt::Hypervisor;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::{Outcome, Report};
use crate::clock;
use crate::disk::{DesiredClone, DesiredDisk, SnapshotUid, TakenSnapshot};
use crate::image_tls;
use crate::images::{Locator, ServerTls};
use crate::node::agenda::Agenda;
use crate::node::task::{Failure, Progress, Task, Work};
use crate::platform::Platform;

/// How long a task waits for libvirt after the daemon's start.
const CONNECT: Duration = Duration::from_secs(30);

/// Timeout of a guest for power off and reboot when the request has none.
const TIMEOUT: u32 = 300;

/// Longest time for that, in seconds: a week, as for `spec.powerOffTimeout` of a machine.
const LONGEST_TIMEOUT: u32 = 7 * 24 * 60 * 60;

impl<P: Platform> Agenda<P> {
    /// Does it; an error ends the task with its sentence.
    pub(super) async fn execute(
        &self,
        task: &Task,
        progress: Progress,
        cancel: &CancellationToken,
    ) -> Outcome {
        let machines = &self.containers;
        let vm = task.vm;
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
                // An image without certificates that is not here is pulled with the disk.
                let is_here = self.images.find(image).is_some();
                let mut tls = None;
                if !there && (is_here || tls_secret.is_some()) {
                    let locator = Locator::new(image, url.as_deref());
                    let secret = tls_secret.as_deref();
                    tls = self.bring(task, locator, secret, |_| ()).await?;
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
                self.disks
                    .make_with(&desired, tls.as_ref(), reported)
                    .await?;
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
            Work::Promote { online } => {
                let reported = move |percent| {
                    progress.send_replace(percent);
                };
                if *online {
                    let rate = self.limits.promotion_rate;
                    machines.promote_online(vm, rate, reported).await?;
                } else {
                    machines.promote(vm, reported).await?;
                }
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
            Work::Snapshot {
                snapshot,
                memory: true,
                ..
            } => {
                let reported = move |percent| {
                    progress.send_replace(percent);
                };
                let taken = machines.take_snapshot_with_memory(vm, *snapshot, reported);
                return Ok(Report::Snapshot(taken.await?));
            }
            Work::Snapshot {
                snapshot, quiesce, ..
            } => {
                let taken = machines.take_snapshot(vm, *snapshot, *quiesce).await?;
                return Ok(Report::Snapshot(taken));
            }
            Work::Revert {
                snapshot,
                memory: true,
            } => machines.revert_with_memory(vm, *snapshot).await?,
            Work::Revert { snapshot, .. } => machines.revert(vm, *snapshot).await?,
            Work::DeleteSnapshot { snapshot } => {
                let reported = move |percent| {
                    progress.send_replace(percent);
                };
                machines.delete_snapshot(vm, *snapshot, reported).await?;
            }
            Work::Freeze { snapshot, seconds } => {
                let held = self.hold_guest(task, *snapshot, *seconds, cancel).await?;
                return Ok(Report::Snapshot(held));
            }
            Work::Backup(backup) => {
                return Ok(Report::Backup(self.back_up(vm, backup, progress).await?));
            }
            Work::VerifyBackup { stored } => {
                return Ok(Report::Backup(
                    self.verify_backup(vm, stored, progress).await?,
                ));
            }
            Work::DeleteBackup { stored } => self.delete_backup(vm, stored).await?,
            Work::RestoreBackup {
                stored,
                source,
                size,
            } => {
                self.restore_backup(vm, stored, *source, *size, progress)
                    .await?
            }
            Work::SetProbe { pod, probe } => {
                machines.set_probe(vm, pod, probe.as_ref()).await?;
            }
            Work::InspectImage {
                image,
                url,
                tls_secret,
                checksum_url,
            } => {
                let tls = self.tls(task, tls_secret.as_deref()).await?;
                let locator = Locator::new(image, url.as_deref()).with_tls(tls.as_ref());
                let locator = locator.with_checksums(checksum_url.as_deref());
                return Ok(Report::Image(self.images.inspect(locator).await?));
            }
            Work::PullImage {
                image,
                url,
                tls_secret,
            } => {
                let reported = move |percent| {
                    progress.send_replace(percent);
                };
                let locator = Locator::new(image, url.as_deref());
                self.bring(task, locator, tls_secret.as_deref(), reported)
                    .await?;
            }
        }
        Ok(Report::Nothing)
    }

    /// Has the guest freeze, and thaw when the task is to end, or its time is over.
    async fn hold_guest(
        &self,
        task: &Task,
        snapshot: SnapshotUid,
        seconds: u32,
        cancel: &CancellationToken,
    ) -> Result<TakenSnapshot, Failure> {
        let makes_way = self.makes_way(task.uid);
        faultpoint::point("node.freeze.begins");
        let guest = tokio::select! {
            guest = self.containers.freeze_guest(task.vm, seconds) => guest?,
            () = either(cancel, &makes_way) => {
                return Err(Failure::new("ended before the guest was frozen", true));
            }
        };
        let mut held = TakenSnapshot {
            uid: snapshot,
            parent: None,
            virtual_bytes: 0,
            used_bytes: 0,
            created_at: clock::now(),
            quiesced: false,
            running: true,
            memory_bytes: 0,
        };
        let noted = self.records.change(&task.uid, |task| {
            task.snapshot = Some(held);
            true
        });
        // Without it no other program knows that the guest is frozen.
        noted
            .await
            .map_err(|error| Failure::new(&crate::one_line(&error), true))?;
        let is_requested = tokio::select! {
            biased;
            () = cancel.cancelled() => true,
            () = makes_way.cancelled() => false,
            () = guest.await_due() => false,
        };
        let was_frozen = guest.thaw().await;
        // Who takes the snapshots cancels after the last one.
        held.quiesced = was_frozen && is_requested;
        Ok(held)
    }

    /// Pulls an image that is not here, or that came by other certificates than those of the task. The
    /// daemon does not pull an image again whose name is in the store: machines use that image. Returns the
    /// certificates, where they were needed.
    async fn bring(
        &self,
        task: &Task,
        image: Locator<'_>,
        secret: Option<&str>,
        reported: impl Fn(u8) + Send + Sync,
    ) -> Result<Option<ServerTls>, Failure> {
        if self.images.is_usable(image) {
            return Ok(None);
        }
        let tls = self.tls(task, secret).await?;
        let image = image.with_tls(tls.as_ref());
        if !self.images.is_usable(image) {
            self.images.pull_reporting(image, reported).await?;
        }
        Ok(tls)
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
    pub(in crate::node) async fn await_hypervisor(&self) {
        let _ = timeout(CONNECT, self.hypervisor.connected()).await;
    }
}

/// Returns when one of them is cancelled.
async fn either(one: &CancellationToken, other: &CancellationToken) {
    tokio::select! {
        () = one.cancelled() => {}
        () = other.cancelled() => {}
    }
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
