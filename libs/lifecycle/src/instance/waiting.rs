//! The obstacle of an instance that does not start.
//!
//! Invariant: only obstacles with a value of their own in `printableStatus` are distinguished.
//! Failure: none.

use k8s_openapi::api::core::v1::{ContainerStatus, PodCondition};

/// An obstacle that people see as the machine's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unstartable {
    /// No node has room for it.
    Unschedulable,
    /// The image cannot be had.
    ErrImagePull,
    /// The same, and the next attempt waits.
    ImagePullBackOff,
    /// The image's name is none.
    InvalidImageName,
}

pub(super) fn read(
    container: Option<&ContainerStatus>,
    conditions: &[PodCondition],
) -> Option<Unstartable> {
    let waiting = container
        .and_then(|c| c.state.as_ref())
        .and_then(|s| s.waiting.as_ref());
    match waiting.and_then(|w| w.reason.as_deref()) {
        Some("ErrImagePull" | "ErrImageNeverPull" | "RegistryUnavailable") => {
            Some(Unstartable::ErrImagePull)
        }
        Some("ImagePullBackOff") => Some(Unstartable::ImagePullBackOff),
        Some("InvalidImageName") => Some(Unstartable::InvalidImageName),
        _ => unscheduled(conditions).map(|_| Unstartable::Unschedulable),
    }
}

/// The obstacle for people, empty when there is none.
pub(super) fn message(container: Option<&ContainerStatus>, conditions: &[PodCondition]) -> String {
    let waiting = container
        .and_then(|c| c.state.as_ref())
        .and_then(|s| s.waiting.as_ref());
    waiting
        .and_then(|w| w.message.clone())
        .or_else(|| unscheduled(conditions).and_then(|c| c.message.clone()))
        .unwrap_or_default()
}

fn unscheduled(conditions: &[PodCondition]) -> Option<&PodCondition> {
    conditions.iter().find(|c| {
        c.type_ == "PodScheduled"
            && c.status == "False"
            && c.reason.as_deref() == Some("Unschedulable")
    })
}
