//! How an instance ended.
//!
//! Invariant: an end is read from what the container reports, else from the pod's own phase.
//! Failure: an end of unknown kind keeps its text.

use std::fmt;

use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::phase::Phase;

/// Reasons of a failed pod that its node or the cluster is to blame for.
const HOST: [&str; 6] = [
    "Evicted",
    "Terminated",
    "NodeShutdown",
    "Preempting",
    "UnexpectedAdmissionError",
    "NodeLost",
];

/// How an instance ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndCause {
    /// The guest powered itself off.
    GuestShutdown,
    /// Kubelet asked, and the guest obeyed.
    Stopped,
    /// The guest did not obey in time.
    GraceExceeded,
    /// The guest's kernel panicked.
    GuestPanic,
    /// It could not be started.
    StartError,
    /// Its memory was saved.
    Saved,
    /// The kernel killed the emulator for its memory.
    OomKilled,
    /// The node or the cluster took it away.
    Host(String),
    /// The pod was deleted, and its end was not observed.
    Lost,
    /// Another one, with its text.
    Other(String),
}

impl EndCause {
    fn from_reason(reason: &str) -> Self {
        match reason {
            "GuestShutdown" => Self::GuestShutdown,
            "Stopped" => Self::Stopped,
            "GraceExceeded" => Self::GraceExceeded,
            "GuestPanic" => Self::GuestPanic,
            "StartError" => Self::StartError,
            "Saved" => Self::Saved,
            "OOMKilled" => Self::OomKilled,
            other => Self::Other(other.to_owned()),
        }
    }
}

impl fmt::Display for EndCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::GuestShutdown => "GuestShutdown",
            Self::Stopped => "Stopped",
            Self::GraceExceeded => "GraceExceeded",
            Self::GuestPanic => "GuestPanic",
            Self::StartError => "StartError",
            Self::Saved => "Saved",
            Self::OomKilled => "OOMKilled",
            Self::Lost => "Lost",
            Self::Host(word) | Self::Other(word) => word,
        })
    }
}

pub(super) struct Ended {
    pub(super) phase: Phase,
    pub(super) cause: EndCause,
    pub(super) exit_code: Option<i32>,
    pub(super) finished_at: Option<Time>,
    pub(super) message: String,
}

/// Whether the pod as a whole failed for a reason that is the host's.
pub(super) fn is_host_reason(status: &PodStatus) -> bool {
    status.phase.as_deref() == Some("Failed")
        && status
            .reason
            .as_deref()
            .is_some_and(|reason| HOST.contains(&reason) || reason.starts_with("OutOf"))
}

/// The end, if there is one.
pub(super) fn read(status: &PodStatus, container: Option<&ContainerStatus>) -> Option<Ended> {
    let terminated = container
        .and_then(|c| c.state.as_ref())
        .and_then(|s| s.terminated.as_ref());
    let pod_message = || status.message.clone().unwrap_or_default();
    if is_host_reason(status) {
        return Some(Ended {
            phase: Phase::Failed,
            cause: EndCause::Host(status.reason.clone().unwrap_or_default()),
            exit_code: terminated.map(|t| t.exit_code),
            finished_at: terminated.and_then(|t| t.finished_at.clone()),
            message: pod_message(),
        });
    }
    if let Some(terminated) = terminated {
        return Some(of_container(terminated));
    }
    let phase = match status.phase.as_deref() {
        Some("Succeeded") => Phase::Succeeded,
        Some("Failed") => Phase::Failed,
        _ => return None,
    };
    Some(Ended {
        phase,
        cause: EndCause::Other(status.reason.clone().unwrap_or_else(|| phase.to_string())),
        exit_code: None,
        finished_at: None,
        message: pod_message(),
    })
}

fn of_container(terminated: &ContainerStateTerminated) -> Ended {
    let cause = EndCause::from_reason(terminated.reason.as_deref().unwrap_or("Completed"));
    let is_well = terminated.exit_code == 0 && cause != EndCause::StartError;
    Ended {
        phase: if is_well {
            Phase::Succeeded
        } else {
            Phase::Failed
        },
        cause,
        exit_code: Some(terminated.exit_code),
        finished_at: terminated.finished_at.clone(),
        message: terminated.message.clone().unwrap_or_default(),
    }
}
