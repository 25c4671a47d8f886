//! What the daemon of a test knows: its tasks, machines, disks and settings.
//!
//! Invariant: it outlives a stop of the server, as the daemon's database does.
//! Failure: none.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nodeapi::v1::task_status::State;
use nodeapi::v1::{
    Disk, InfoResponse, Machine, MachineEvent, Pull, PullEvent, RunTaskRequest, SetManifestRequest,
    TaskEvent, TaskStatus,
};
use tokio::sync::mpsc::UnboundedSender;
use tonic::Status;

use super::Manner;
use super::settings::NodeSettings;

#[derive(Debug, Clone)]
pub(super) struct Memory(Arc<Mutex<Known>>);

#[derive(Debug)]
pub(super) struct Known {
    pub(super) manner: Manner,
    pub(super) info: InfoResponse,
    pub(super) tasks: BTreeMap<String, (RunTaskRequest, TaskStatus)>,
    /// How often each UID was started, over the lifetime of the server.
    pub(super) began: BTreeMap<String, u32>,
    pub(super) machines: BTreeMap<String, Machine>,
    pub(super) disks: BTreeMap<String, Disk>,
    /// Each with the times that it was sent.
    pub(super) manifests: BTreeMap<String, (SetManifestRequest, u32)>,
    /// Refuses manifests with these words.
    pub(super) refusal: Option<String>,
    pub(super) settings: NodeSettings,
    pub(super) task_watchers: Vec<UnboundedSender<Result<TaskEvent, Status>>>,
    pub(super) machine_watchers: Vec<UnboundedSender<Result<MachineEvent, Status>>>,
    pub(super) pulls: BTreeMap<String, Pull>,
    pub(super) pull_watchers: Vec<UnboundedSender<Result<PullEvent, Status>>>,
}

impl Memory {
    /// That of a daemon that has nothing.
    pub(super) fn new() -> Self {
        let kinds = ["provision", "delete_disk", "guest_reboot", "reset", "save"];
        let known = Known {
            manner: Manner::Succeed,
            info: InfoResponse {
                version: "9.9.9".to_owned(),
                installation_id: "installation".to_owned(),
                accelerator: "tcg".to_owned(),
                task_kinds: kinds.map(str::to_owned).to_vec(),
                disk_capacity_bytes: 1000,
                disk_available_bytes: 500,
                ..InfoResponse::default()
            },
            tasks: BTreeMap::new(),
            began: BTreeMap::new(),
            machines: BTreeMap::new(),
            disks: BTreeMap::new(),
            manifests: BTreeMap::new(),
            refusal: None,
            settings: NodeSettings::default(),
            task_watchers: Vec::new(),
            machine_watchers: Vec::new(),
            pulls: BTreeMap::new(),
            pull_watchers: Vec::new(),
        };
        Self(Arc::new(Mutex::new(known)))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    pub(super) fn notify(&mut self, status: &TaskStatus) {
        let event = TaskEvent {
            task: Some(status.clone()),
            synced: false,
        };
        let to = &mut self.task_watchers;
        to.retain(|watcher| watcher.send(Ok(event.clone())).is_ok());
    }
}

/// The next standing of a task.
pub(super) fn stands(status: &TaskStatus, state: State, percent: u32, message: &str) -> TaskStatus {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = i64::try_from(now.unwrap_or_default().as_millis()).unwrap_or_default();
    let mut next = TaskStatus {
        state: state.into(),
        progress_percent: percent,
        message: message.to_owned(),
        ..status.clone()
    };
    if next.started_ms == 0 && state != State::Queued {
        next.started_ms = now;
    }
    if ended(&next) {
        next.completed_ms = now;
    }
    next
}

pub(super) fn ended(status: &TaskStatus) -> bool {
    matches!(
        status.state(),
        State::Success | State::Error | State::Cancelled
    )
}
