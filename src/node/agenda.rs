//! The tasks, and their order.
//!
//! Invariant: one task per machine or image runs at a time, in the order of their arrival; few make
//! disks, save memory, promote disks, look at images or pull them at once. A promotion, the deletion of a
//! snapshot, or a backup, runs beside the other tasks of its machine, and ends for those that need the disk;
//! a copy by an emulator also ends for a backup, and a freeze for what is neither a snapshot nor a probe. A task is
//! recorded before it is answered, and as running before its first effect.
//! Failure: what a killed daemon left running is carried on at the next start, or ended where that
//! would do it twice.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use podspec::VmUid;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::task::{State, Task, TaskUid, Work};
use crate::backup::Targets;
use crate::clock;
use crate::disk::Disks;
use crate::images::Images;
use crate::metadata::{self, Db, RecordStore};
use crate::platform::Platform;
use crate::tasks::Tasks;
use crate::vm::Containers;

/// Maximum number of tasks that are stored; ended ones are removed by the client that recorded
/// their result.
const MOST: usize = 10_000;

/// Images that are checked where they come from at once: each is one short request.
const INSPECTIONS: usize = 4;

/// Images that are pulled before a machine needs them at once: they share the network of the node
/// with pulls of pods.
const PULLS: usize = 2;

/// Backups that are written or verified at once: they share disks and network with machines.
const BACKUPS: usize = 2;

/// Kinds of tasks for which a backup in a target must stay as it is, or goes.
const VERIFY: &str = "verify_backup";
const DELETE: &str = "delete_backup";

/// How many tasks of one kind may run at once.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// That make disks.
    pub provisions: usize,
    /// That save memory: as many as libvirt is asked to at once.
    pub saves: usize,
    /// That make disks independent of their images.
    pub promotions: usize,
    /// How much of its image a machine that runs copies into its disk, in bytes per second; 0: as much as it can.
    pub promotion_rate: u64,
}

/// A task that is not taken.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The uid is known with another content.
    #[error("task {0} is known with another content")]
    Other(TaskUid),
    /// There are too many.
    #[error("more than {MOST} tasks are known: forget those that ended")]
    TooMany,
    /// No task has the uid.
    #[error("no task has the uid {0}")]
    Unknown(TaskUid),
    /// It runs or waits.
    #[error("task {0} has not ended: cancel it first")]
    NotEnded(TaskUid),
    /// The database failed.
    #[error(transparent)]
    Db(#[from] metadata::Error),
}

/// The tasks of this node.
#[derive(Debug)]
pub struct Agenda<P: Platform> {
    pub(super) records: RecordStore<Task>,
    pub(super) containers: Arc<Containers<P>>,
    pub(super) hypervisor: Arc<P::Hypervisor>,
    pub(super) disks: Arc<Disks>,
    pub(super) images: Arc<Images>,
    /// Where backups are.
    pub(super) targets: Targets,
    pub(super) limits: Limits,
    tasks: Tasks,
    active: Mutex<HashMap<TaskUid, Active>>,
    /// The next task's place; greater than those of all that are remembered.
    next: AtomicU64,
}

/// A task that this process carries out.
#[derive(Debug)]
pub(super) struct Active {
    vm: VmUid,
    kind: &'static str,
    is_in_background: bool,
    /// Ends for others of its machine, but for snapshots.
    is_freeze: bool,
    /// Ends for others of its machine.
    ends_for_others: bool,
    /// Ends for a backup of its machine.
    ends_for_backups: bool,
    cancel: CancellationToken,
    /// Another task of the machine needs what this one uses.
    makes_way: CancellationToken,
}

impl<P: Platform> Agenda<P> {
    /// Reads what is recorded; nothing runs before [`Self::work`].
    pub async fn open(
        db: Db,
        containers: Arc<Containers<P>>,
        hypervisor: Arc<P::Hypervisor>,
        disks: Arc<Disks>,
        images: Arc<Images>,
        tasks: Tasks,
        limits: Limits,
    ) -> metadata::Result<Self> {
        let records: RecordStore<Task> = RecordStore::load(db).await?;
        let last = records.all().iter().map(|task| task.order).max();
        Ok(Self {
            records,
            next: AtomicU64::new(last.unwrap_or_default() + 1),
            containers,
            hypervisor,
            disks,
            images,
            targets: Targets::default(),
            limits,
            tasks,
            active: Mutex::default(),
        })
    }

    /// The same with these targets of backups.
    pub fn with_targets(self, targets: Targets) -> Self {
        Self { targets, ..self }
    }

    /// Accepts a task, or returns the state of the one with that uid.
    pub async fn submit(&self, uid: TaskUid, vm: VmUid, work: Work) -> Result<Arc<Task>, Refused> {
        if self.records.get(&uid).is_none() && self.records.all().len() >= MOST {
            return Err(Refused::TooMany);
        }
        let task = Task {
            uid,
            vm,
            work,
            state: State::Queued,
            cancelled: false,
            percent: 0,
            failure: None,
            image: None,
            snapshot: None,
            backup: None,
            order: self.next.fetch_add(1, Ordering::Relaxed),
            created_at: clock::now(),
            started_at: 0,
            completed_at: 0,
        };
        let (there, new) = self.records.insert(task.clone()).await?;
        faultpoint::point("node.task.recorded");
        if new {
            tracing::info!(task = %uid, %vm, kind = task.work.kind(), "task accepted");
        } else if (there.vm, &there.work) != (task.vm, &task.work) {
            return Err(Refused::Other(uid));
        }
        Ok(there)
    }

    /// Requests a task to stop; returns its state.
    pub async fn cancel(&self, uid: TaskUid) -> Result<Arc<Task>, Refused> {
        let request = self.records.change(&uid, |task| {
            let open = !task.state.is_end();
            task.cancelled = true;
            if task.state == State::Queued {
                task.state = State::Cancelled;
                task.completed_at = clock::now();
            }
            open
        });
        request.await?;
        faultpoint::point("node.task.cancelled");
        if let Some(active) = self.active().get(&uid) {
            active.cancel.cancel();
        }
        let task = self.records.readable(&uid).map_err(metadata::Error::from)?;
        task.ok_or(Refused::Unknown(uid))
    }

    /// Drops a task that ended; success when there is none.
    pub async fn forget(&self, uid: TaskUid) -> Result<(), Refused> {
        let readable = self.records.readable(&uid);
        readable.map_err(metadata::Error::from)?;
        let gone = self.records.remove_if(&uid, |task| task.state.is_end());
        gone.await?.then_some(()).ok_or(Refused::NotEnded(uid))
    }

    /// All tasks.
    pub fn all(&self) -> Vec<Arc<Task>> {
        self.records.all()
    }

    /// Changes whenever a task does.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.records.changes()
    }

    /// Carries out tasks, without end.
    pub async fn work(self: Arc<Self>) {
        let mut changes = self.changes();
        loop {
            for task in self.next() {
                let this = Arc::clone(&self);
                let cancel = self.active().get(&task.uid).map(|a| a.cancel.clone());
                self.tasks.spawn(async move {
                    this.carry_out(&task, cancel.unwrap_or_default()).await;
                    this.active().remove(&task.uid);
                    // The next task of this machine can start now.
                    this.records.touch();
                });
            }
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// The tasks whose turn it is, from now on active.
    pub(super) fn next(&self) -> Vec<Arc<Task>> {
        let mut open = self.records.all();
        open.retain(|task| !task.state.is_end());
        open.sort_by_key(|task| (task.order, task.created_at, task.uid));
        let mut active = self.active();
        let mut chosen = Vec::new();
        let mut waiting = Vec::new();
        for task in open {
            let kind = task.work.kind();
            let background = task.work.is_in_background();
            let waits = |a: &&Active| a.vm == task.vm && a.holds_up(kind, background);
            let is_foreground = |a: &&Active| a.vm == task.vm && !a.is_in_background;
            let is_in_line = kind != VERIFY && waiting.contains(&task.vm);
            let mut busy = active.values().any(|a| waits(&a)) || is_in_line;
            let is_next =
                !active.values().any(|a| is_foreground(&a)) && !waiting.contains(&task.vm);
            // A snapshot that cannot be taken ends no merge that makes room for it.
            let is_possible =
                !matches!(task.work, Work::Snapshot { .. }) || !self.disks.is_full(task.vm);
            let ends_others = task.work.needs_whole_disk() && is_possible;
            let alike = active.values().filter(|a| a.kind == kind).count();
            let most = match task.work {
                Work::Provision { .. } | Work::CloneDisk { .. } => self.limits.provisions,
                Work::RestoreBackup { .. } => self.limits.provisions,
                Work::Backup(_) | Work::VerifyBackup { .. } => BACKUPS,
                Work::DeleteBackup { .. } => BACKUPS,
                Work::Save | Work::Snapshot { memory: true, .. } => self.limits.saves,
                Work::Promote { .. } => self.limits.promotions,
                Work::InspectImage { .. } => INSPECTIONS,
                Work::PullImage { .. } => PULLS,
                _ => usize::MAX,
            };
            // One that waits for other backups ends nothing yet.
            let is_backup = matches!(task.work, Work::Backup(_)) && alike < most;
            let is_of_snapshot = matches!(task.work, Work::Snapshot { .. } | Work::SetProbe { .. });
            let thaws = !background && !is_of_snapshot;
            let ends = |a: &&Active| {
                let is_due = ends_others && a.ends_for_others
                    || is_backup && a.ends_for_backups
                    || thaws && a.is_freeze;
                a.vm == task.vm && a.kind != kind && is_due
            };
            if is_next && !active.contains_key(&task.uid) {
                let others = active.values().filter(ends);
                busy |= others.inspect(|a| a.makes_way.cancel()).count() > 0;
            }
            if active.contains_key(&task.uid) {
                continue;
            }
            if busy || alike >= most {
                // Later tasks of the same machine wait for it.
                if !background {
                    waiting.push(task.vm);
                }
                continue;
            }
            let entry = Active {
                vm: task.vm,
                kind,
                is_in_background: background,
                is_freeze: task.work.is_freeze(),
                ends_for_others: task.work.makes_way(),
                ends_for_backups: matches!(task.work, Work::Promote { online: true }),
                cancel: CancellationToken::new(),
                makes_way: CancellationToken::new(),
            };
            active.insert(task.uid, entry);
            chosen.push(task);
        }
        chosen
    }

    /// Ends when another task of the machine needs what this one uses.
    pub(super) fn makes_way(&self, task: TaskUid) -> CancellationToken {
        let active = self.active();
        let token = active.get(&task).map(|active| active.makes_way.clone());
        token.unwrap_or_default()
    }

    pub(super) fn active(&self) -> MutexGuard<'_, HashMap<TaskUid, Active>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Active {
    /// Whether a later task of the same machine waits for it. A verification reads a target alone, perhaps for hours: only
    /// what removes a backup there is in its way.
    fn holds_up(&self, kind: &str, is_in_background: bool) -> bool {
        if kind == VERIFY || self.kind == VERIFY {
            return [kind, self.kind]
                .iter()
                .all(|one| [VERIFY, DELETE].contains(one));
        }
        is_in_background || !self.is_in_background
    }
}
