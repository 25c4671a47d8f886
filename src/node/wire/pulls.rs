//! Conversions of the pulls that pods wait for.
//!
//! Invariant: an id is that of the store's list.
//! Failure: none.

use nodeapi::v1;
use uuid::Uuid;

use crate::images::PodPull;
use crate::node::watch::Change;

/// A change of the list, as a message.
pub(in crate::node) fn pull_event(change: &Change<'_, Uuid, (Uuid, PodPull)>) -> v1::PullEvent {
    let none = v1::PullEvent::default();
    match change {
        Change::Is((id, pull)) => v1::PullEvent {
            pull: Some(message(id, pull)),
            ..none
        },
        Change::Gone(id) => v1::PullEvent {
            pull: Some(v1::Pull {
                id: id.to_string(),
                ..v1::Pull::default()
            }),
            gone: true,
            ..none
        },
        Change::Synced => v1::PullEvent {
            synced: true,
            ..none
        },
    }
}

fn message(id: &Uuid, pull: &PodPull) -> v1::Pull {
    v1::Pull {
        id: id.to_string(),
        pod_namespace: pull.pod.namespace.clone(),
        pod_name: pull.pod.name.clone(),
        pod_uid: pull.pod.uid.clone(),
        image: pull.image.clone(),
        received_bytes: pull.progress.received,
        total_bytes: pull.progress.total.unwrap_or_default(),
    }
}
