//! The processes that this daemon follows.
//!
//! Invariant: one task follows a process; it alone writes the log. Clients get copies of the output,
//! and one that is too slow loses its session, not the process its time.
//! Failure: none.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use guestapi::Stream;
use podspec::ContainerId;
use tokio::sync::{broadcast, watch};
use tokio_util::sync::CancellationToken;

use super::log::Log;
use crate::guest::{Control, Input};
use crate::vm::stats::{Cpu, Memory, Usage};

/// Pieces of output that wait for one client.
const OUTPUT: usize = 256;

/// Output of a process.
pub type Piece = (Stream, Bytes);

/// The processes by container.
#[derive(Debug, Default)]
pub(in crate::vm) struct Processes(Mutex<HashMap<ContainerId, Arc<Live>>>);

/// A process that a task starts or follows.
#[derive(Debug)]
pub(super) struct Live {
    /// What it writes, for clients.
    pub(super) output: broadcast::Sender<Piece>,
    /// Ends the start, while that is in progress.
    pub(super) stop: CancellationToken,
    /// The session that is connected.
    pub(super) session: watch::Sender<Option<Session>>,
    /// The log, once it is open.
    pub(super) log: tokio::sync::Mutex<Option<Log>>,
    /// What it uses, as it was reported last.
    pub(super) usage: Mutex<Usage>,
}

/// The part of a session that others than its follower use.
#[derive(Debug, Clone)]
pub(super) struct Session {
    pub(super) input: Arc<Input>,
    pub(super) control: Control,
}

/// A client's part of a process. Dropped, it is detached.
#[derive(Debug)]
pub struct Attached {
    /// What the process writes.
    pub output: broadcast::Receiver<Piece>,
    /// What it reads, and its terminal.
    pub input: Arc<Input>,
    /// The terminal.
    pub control: Control,
    /// Whether the end of the client's input is that of the process.
    pub closes_input: bool,
}

impl Processes {
    /// Takes the place of a process; `None` when a task has it.
    pub(super) fn begin(&self, id: &ContainerId) -> Option<Arc<Live>> {
        let mut all = self.lock();
        if all.contains_key(id) {
            return None;
        }
        let live = Arc::new(Live {
            output: broadcast::channel(OUTPUT).0,
            stop: CancellationToken::new(),
            session: watch::channel(None).0,
            log: tokio::sync::Mutex::default(),
            usage: Mutex::default(),
        });
        all.insert(id.clone(), Arc::clone(&live));
        Some(live)
    }

    pub(super) fn get(&self, id: &ContainerId) -> Option<Arc<Live>> {
        self.lock().get(id).cloned()
    }

    /// The task has ended.
    pub(super) fn end(&self, id: &ContainerId) {
        self.lock().remove(id);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ContainerId, Arc<Live>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Live {
    /// Until the first report a process that starts now has used nothing.
    pub(super) fn begin_usage(&self, at: i64) {
        let now = cgroup::Memory::default();
        *self.usage() = Usage {
            cpu: Some(Cpu::after(None, at, 0)),
            memory: Some(Memory { at, now }),
            ..Usage::default()
        };
    }

    pub(super) fn usage(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
