//! The streams of what the daemon has and does: tasks, machines, sources and pulls.
//!
//! Invariant: a stream begins with all that there is and an event that says so, then has what changes.
//! Failure: none here; a stream ends when its client goes, or the daemon stops.

use std::sync::Arc;

use nodeapi::v1;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::Service;
use crate::node::watch::{Change, stream};
use crate::node::{Task, describe, wire};
use crate::platform::Platform;

type Events<T> = ReceiverStream<Result<T, Status>>;

impl<P: Platform> Service<P> {
    pub(super) fn task_events(&self) -> Events<v1::TaskEvent> {
        let agenda = Arc::clone(&self.services.agenda);
        let changes = vec![agenda.changes()];
        let look = move || agenda.all().into_iter().map(|t| (t.uid, t)).collect();
        let encode = |change: Change<'_, _, Arc<Task>>| match change {
            Change::Is(task) => Some(v1::TaskEvent {
                task: Some(wire::status(task)),
                synced: false,
            }),
            Change::Gone(_) => None,
            Change::Synced => Some(v1::TaskEvent {
                task: None,
                synced: true,
            }),
        };
        stream(changes, look, encode, self.stop.clone())
    }

    pub(super) fn machine_events(&self) -> Events<v1::MachineEvent> {
        let machines = Arc::clone(&self.services.machines);
        let probes = Arc::clone(&self.services.probes);
        let disks = Arc::clone(&self.services.disks);
        let changes = vec![
            self.services.containers.changes(),
            self.services.containers.share_changes(),
            disks.changes(),
            machines.changes(),
            probes.changes(),
        ];
        let look = move || describe::all(&machines, &probes, &disks);
        let encode = |change: Change<'_, podspec::ContainerId, v1::Machine>| {
            Some(match change {
                Change::Is(machine) => v1::MachineEvent {
                    machine: Some(machine.clone()),
                    ..v1::MachineEvent::default()
                },
                Change::Gone(container) => v1::MachineEvent {
                    machine: Some(v1::Machine {
                        container_id: container.to_string(),
                        ..v1::Machine::default()
                    }),
                    gone: true,
                    ..v1::MachineEvent::default()
                },
                Change::Synced => v1::MachineEvent {
                    synced: true,
                    ..v1::MachineEvent::default()
                },
            })
        };
        stream(changes, look, encode, self.stop.clone())
    }

    pub(super) fn source_events(&self) -> Events<v1::SourceEvent> {
        let sources = Arc::clone(self.services.containers.sources());
        let changes = vec![sources.changes()];
        let look = move || {
            let all = sources.wanted().into_iter();
            all.map(|(id, wanted)| (id, (id, wanted))).collect()
        };
        let encode = |change: Change<'_, _, _>| Some(wire::source_event(&change));
        stream(changes, look, encode, self.stop.clone())
    }

    pub(super) fn pull_events(&self) -> Events<v1::PullEvent> {
        let images = Arc::clone(&self.services.images);
        let changes = vec![images.pod_pull_changes()];
        let look = move || {
            let all = images.pod_pulls().into_iter();
            all.map(|(id, pull)| (id, (id, pull))).collect()
        };
        let encode = |change: Change<'_, _, _>| Some(wire::pull_event(&change));
        stream(changes, look, encode, self.stop.clone())
    }
}
