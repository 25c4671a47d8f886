//! The objects of a runtime at one time, and their changes since.
//!
//! Invariant: a pure value. Each object passes through created, started, stopped and deleted in
//! this order, however much happened between two looks.
//! Failure: `None` for lists that cannot be decoded.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use cri_proto::v1;
use cri_proto::v1::ContainerEventType as Event;
use prost::Message;

/// How far an object has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Created,
    Started,
    Stopped,
}

/// What a runtime had.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    /// By id: sandbox, stage. A sandbox is its own.
    objects: BTreeMap<String, (String, Stage)>,
}

/// Something that happened.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) id: String,
    pub(super) sandbox: String,
    pub(super) event: Event,
}

impl Snapshot {
    pub(super) fn decode(sandboxes: Bytes, containers: Bytes) -> Option<Self> {
        let sandboxes = v1::ListPodSandboxResponse::decode(sandboxes).ok()?.items;
        let containers = v1::ListContainersResponse::decode(containers)
            .ok()?
            .containers;
        let mut objects = BTreeMap::new();
        for sandbox in sandboxes {
            let ready = i32::from(v1::PodSandboxState::SandboxReady);
            let stage = if sandbox.state == ready {
                Stage::Started
            } else {
                Stage::Stopped
            };
            objects.insert(sandbox.id.clone(), (sandbox.id, stage));
        }
        for container in containers {
            let stage = match container.state() {
                v1::ContainerState::ContainerCreated => Stage::Created,
                v1::ContainerState::ContainerRunning => Stage::Started,
                _ => Stage::Stopped,
            };
            objects.insert(container.id, (container.pod_sandbox_id, stage));
        }
        Some(Self { objects })
    }

    /// Ids of the containers of a sandbox.
    pub(super) fn containers_of(&self, sandbox: &str) -> impl Iterator<Item = &str> {
        let objects = self.objects.iter();
        objects
            .filter(move |(id, (of, _))| of == sandbox && *id != sandbox)
            .map(|(id, _)| id.as_str())
    }

    /// Whether an event is news: this snapshot does not contain its effect, and its object is none
    /// of those that no longer exist.
    pub(super) fn would_change(&self, event: &Bytes, gone: &BTreeSet<String>) -> bool {
        let Ok(event) = v1::ContainerEventResponse::decode(event.clone()) else {
            return true;
        };
        let known = self.objects.get(&event.container_id);
        match (stage(&event), known) {
            (Some(stage), Some((_, reached))) => *reached < stage,
            (None, known) => known.is_some(),
            (Some(_), None) => !gone.contains(&event.container_id),
        }
    }

    /// Applies an event that was sent on.
    pub(super) fn apply(&mut self, event: &Bytes) {
        let Ok(event) = v1::ContainerEventResponse::decode(event.clone()) else {
            return;
        };
        let Some(stage) = stage(&event) else {
            self.objects.remove(&event.container_id);
            return;
        };
        let sandbox = event.pod_sandbox_status.map(|status| status.id);
        let sandbox = sandbox.unwrap_or_else(|| event.container_id.clone());
        let known = self.objects.entry(event.container_id);
        let (_, reached) = known.or_insert((sandbox, stage));
        *reached = stage.max(*reached);
    }

    /// What happened until `now`.
    pub(super) fn changes(&self, now: &Self) -> Vec<Change> {
        let mut changes = Vec::new();
        for (id, (sandbox, stage)) in &now.objects {
            let before = self.objects.get(id).map(|(_, stage)| *stage);
            let passed = [
                (Stage::Created, Event::ContainerCreatedEvent),
                (Stage::Started, Event::ContainerStartedEvent),
                (Stage::Stopped, Event::ContainerStoppedEvent),
            ];
            for (reached, event) in passed {
                if reached <= *stage && before.is_none_or(|before| before < reached) {
                    changes.push(change(id, sandbox, event));
                }
            }
        }
        for (id, (sandbox, _)) in &self.objects {
            if !now.objects.contains_key(id) {
                changes.push(change(id, sandbox, Event::ContainerDeletedEvent));
            }
        }
        changes
    }
}

/// The stage that an event leads to; `None` is the end.
fn stage(event: &v1::ContainerEventResponse) -> Option<Stage> {
    match event.container_event_type() {
        Event::ContainerCreatedEvent => Some(Stage::Created),
        Event::ContainerStartedEvent => Some(Stage::Started),
        Event::ContainerStoppedEvent => Some(Stage::Stopped),
        Event::ContainerDeletedEvent => None,
    }
}

fn change(id: &str, sandbox: &str, event: Event) -> Change {
    Change {
        id: id.into(),
        sandbox: sandbox.into(),
        event,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(objects: &[(&str, Stage)]) -> Snapshot {
        let objects = objects.iter();
        let objects = objects.map(|(id, stage)| ((*id).to_owned(), ("pod".to_owned(), *stage)));
        Snapshot {
            objects: objects.collect(),
        }
    }

    #[test]
    fn each_object_passes_through_every_stage_it_skipped() {
        let before = snapshot(&[
            ("a", Stage::Created),
            ("b", Stage::Started),
            ("c", Stage::Stopped),
        ]);
        let now = snapshot(&[
            ("a", Stage::Stopped),
            ("b", Stage::Started),
            ("d", Stage::Started),
        ]);
        let reported: Vec<_> = (before.changes(&now).into_iter())
            .map(|change| (change.id, change.event))
            .collect();
        let want = [
            ("a", Event::ContainerStartedEvent),
            ("a", Event::ContainerStoppedEvent),
            ("d", Event::ContainerCreatedEvent),
            ("d", Event::ContainerStartedEvent),
            ("c", Event::ContainerDeletedEvent),
        ];
        assert_eq!(reported, want.map(|(id, event)| (id.to_owned(), event)));
        assert!(now.changes(&now).is_empty());
    }
    #[test]
    fn an_event_that_the_lists_contained_already_changes_nothing() {
        let event = |id: &str, event: Event| {
            let event = v1::ContainerEventResponse {
                container_id: id.into(),
                container_event_type: event.into(),
                ..Default::default()
            };
            Bytes::from(event.encode_to_vec())
        };
        let now = snapshot(&[("a", Stage::Started)]);
        let gone = BTreeSet::from(["b".to_owned()]);
        let all = [
            Event::ContainerCreatedEvent,
            Event::ContainerStartedEvent,
            Event::ContainerStoppedEvent,
            Event::ContainerDeletedEvent,
        ];
        // In the lists, gone since, and created after the lists.
        for (id, expected) in [
            ("a", [false, false, true, true]),
            ("b", [false; 4]),
            ("c", [true, true, true, false]),
        ] {
            let changes = all.map(|kind| now.would_change(&event(id, kind), &gone));
            assert_eq!(changes, expected, "{id}");
        }
        let unreadable = Bytes::from_static(b"\xff");
        assert!(now.would_change(&unreadable, &gone));
    }
}
