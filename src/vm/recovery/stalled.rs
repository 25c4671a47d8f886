//! Resumes guests that QEMU paused because a disk failed, as a full file system makes it.
//!
//! ```text
//!   Power event ─► paused by an I/O error? ─► look every 5 s for room ─► resume ─► runs
//!                                                  ▲                          │ fails again
//!                                                  └──────── back-off ◄───────┘
//! ```
//!
//! Invariant: only machines of ours that run are touched, and only while the reason of their pause
//! is an I/O error; a stop in progress decides by itself. A guest that its owner has paused as well,
//! or whose memory is being saved, is left alone.
//! Failure: a guest that stands still again is resumed less and less often, at last every five
//! minutes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use libvirt::{Event, Hypervisor, Pause, Power};
use podspec::ContainerId;
use service::backoff::Backoff;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::time::Instant;

use crate::platform::Platform;
use crate::vm::error::Error;
use crate::vm::model::Container;
use crate::vm::power::pause_name;
use crate::vm::service::Containers;
use crate::vm::state::Phase;

/// Time between two looks for room.
const LOOK: Duration = Duration::from_secs(5);

/// Time to the next attempt after one that failed; each further failure doubles it.
const FIRST: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_secs(300);

/// Guests that are resumed at once.
const ABREAST: usize = 8;

/// A guest that ran for so long starts with short back-offs again.
const CALM: Duration = Duration::from_secs(600);

/// A guest that stands still, or did lately.
#[derive(Debug)]
struct Stalled {
    backoff: Backoff,
    /// Since when it runs again; `None`: it stands still.
    runs_since: Option<Instant>,
}

type All = BTreeMap<ContainerId, Stalled>;

impl<P: Platform> Containers<P> {
    /// Resumes guests whose disks failed once these have room, without end; `events` must be older
    /// than the connection.
    pub async fn resume_stalled(self: Arc<Self>, mut events: broadcast::Receiver<Event>) {
        let mut all = All::new();
        let mut looks = tokio::time::interval(LOOK);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        if self.parts.hypervisor.is_connected() {
            self.note_every_one(&mut all).await;
        }
        loop {
            tokio::select! {
                event = events.recv() => match event {
                    Ok(Event::Connected) | Err(RecvError::Lagged(_)) => {
                        self.note_every_one(&mut all).await;
                    }
                    Ok(Event::Power(domain)) => if let Some(row) = self.running_as(domain) {
                        self.note(&mut all, &row).await;
                    },
                    Ok(_) => {}
                    Err(RecvError::Closed) => return,
                },
                _ = looks.tick(), if !all.is_empty() => self.look_for_room(&mut all).await,
            }
        }
    }

    async fn note_every_one(&self, all: &mut All) {
        for row in self.machines() {
            if row.phase.runs() {
                self.note(all, &row).await;
            }
        }
    }

    /// Takes down whether a guest stands still because a disk failed.
    async fn note(&self, all: &mut All, row: &Container) {
        let Ok(power) = self.parts.hypervisor.power(row.domain()).await else {
            return;
        };
        let now = Instant::now();
        match (power, all.get_mut(&row.id)) {
            (Some(Power::Paused(Pause::IoError)), Some(known)) if known.runs_since.is_some() => {
                known.runs_since = None;
                known.backoff.failed(now);
            }
            (Some(Power::Paused(Pause::IoError)), None) => {
                let disks = self.failed_disks(row.domain()).await;
                tracing::warn!(container = %row.id, disks, "guest paused by QEMU: its disk failed; it continues once there is space");
                let known = Stalled {
                    backoff: Backoff::new(FIRST, LONGEST),
                    runs_since: None,
                };
                all.insert(row.id.clone(), known);
            }
            (Some(Power::On), Some(known)) => {
                known.runs_since.get_or_insert(now);
            }
            _ => {}
        }
    }

    async fn look_for_room(&self, all: &mut All) {
        let now = Instant::now();
        all.retain(|id, known| {
            let row = self.parts.table.get(id);
            let calm = known.runs_since.is_some_and(|since| now - since >= CALM);
            row.is_some_and(|row| row.phase.runs()) && !calm
        });
        let due = all.iter_mut().filter(|(_, known)| {
            known.runs_since.is_none() && known.backoff.not_before(now).is_none()
        });
        let attempts = due.filter_map(|(id, known)| {
            let row = self.parts.table.get(id)?;
            let is_kept = row.held || self.is_being_saved(&row) || self.is_pivoting(&row);
            let waits = row.phase == Phase::Running && !is_kept;
            waits.then(move || self.try_to_resume(row, known))
        });
        let attempts: Vec<_> = attempts.collect();
        let attempts = stream::iter(attempts).buffer_unordered(ABREAST);
        attempts.collect::<()>().await;
    }

    async fn try_to_resume(&self, row: Arc<Container>, known: &mut Stalled) {
        let domain = row.domain();
        // Its owner may have resumed or paused it; an event says which.
        if !self.has_room(&row).await || !self.has_disk_failed(domain).await {
            return;
        }
        let _still = match row.vm() {
            Some(vm) => Some(self.parts.locks.lock(&pause_name(vm)).await),
            None => None,
        };
        if self.is_pivoting(&row) {
            return;
        }
        match self.resume_after_failure(domain).await {
            Ok(()) if self.was_paused(&row).await => {}
            Ok(()) => {
                known.runs_since = Some(Instant::now());
                self.set_guest_time(&row);
                tracing::info!(container = %row.id, "guest continues: its disks have space again");
            }
            Err(error) => {
                let again_in = known.backoff.failed(Instant::now());
                match error {
                    Error::DiskFails(disks) => {
                        tracing::info!(container = %row.id, disks, ?again_in, "guest stands still again");
                    }
                    other => {
                        let error = crate::one_line(&other);
                        tracing::warn!(container = %row.id, error, ?again_in, "paused guest not resumed");
                    }
                }
            }
        }
    }

    /// Pauses the guest again if its owner has paused it just now, before it ran.
    async fn was_paused(&self, row: &Container) -> bool {
        let is_held = self.parts.table.get(&row.id).is_some_and(|now| now.held);
        if is_held && let Err(error) = self.parts.hypervisor.suspend(row.domain()).await {
            let error = crate::one_line(&error);
            tracing::warn!(container = %row.id, error, "guest not paused again");
        }
        is_held
    }
}
