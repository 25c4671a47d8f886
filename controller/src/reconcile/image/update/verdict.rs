//! The condition `UpToDate`: whether new machines use the version that the source has.
//!
//! | `UpToDate` | reason | when |
//! | --- | --- | --- |
//! | True | `UpToDate` | new machines use the newest version |
//! | False | `Pulling`, `PullFailed` | nodes pull the newest version; each node without it has failed, and repeats the pull |
//! | False | `Pinned` | `spec.update.digest` is another version |
//! | False | `CheckFailed` | the last check failed |
//! | False | `InvalidSchedule`, `NotSupported` | `spec.update.schedule` has no time; the source cannot be followed |
//! | Unknown | `Checking`, `NoNode` | the first check is in progress; no node can check |
//!
//! Invariant: pure; a check that repeats what is known changes nothing.
//! Failure: none.

use crds::conditions::Status;
use crds::{ImageUpdate, ImageUpdateStatus, ImageVersion};

use super::check::Check;
use super::versions;

/// The condition.
pub(crate) const UP_TO_DATE: &str = "UpToDate";

const NO_NODE: &str = "no node with a vmlet-agent and a daemon that can check which version the source has is available";

/// Of a former version of a file.
const ALONE: &str = ", which nodes without it cannot pull: a web server has one version of a file";

/// What the condition says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::reconcile::image) struct Verdict {
    pub(in crate::reconcile::image) status: Status,
    pub(in crate::reconcile::image) reason: &'static str,
    pub(in crate::reconcile::image) message: String,
}

impl Verdict {
    const fn new(status: Status, reason: &'static str, message: String) -> Self {
        Self {
            status,
            reason,
            message,
        }
    }

    /// The image has no source that a node could check.
    pub(super) const fn not_supported(message: String) -> Self {
        Self::new(Status::False, "NotSupported", message)
    }
}

/// What follows from a check and from what is known after it.
pub(super) fn of_step(
    check: &Check,
    problem: Option<String>,
    update: &ImageUpdate,
    (status, all): (&ImageUpdateStatus, &[ImageVersion]),
) -> Verdict {
    let newest = all.first().map(|newest| &newest.digest);
    let alone = |used: &String| match update.checksum_url {
        Some(_) if newest != Some(used) => ALONE,
        _ => "",
    };
    let stays = match &status.current {
        Some(current) => format!("; new machines use {current}{}", alone(current)),
        None => String::new(),
    };
    if status.failed_checks > 0 {
        let message = format!("{}{stays}", status.message);
        return Verdict::new(Status::False, "CheckFailed", message);
    }
    if let Some(problem) = problem {
        let message = format!(
            "spec.update.schedule is of no use: {problem} Write five fields, such as 30 2 * * *, or @daily{stays}"
        );
        return Verdict::new(Status::False, "InvalidSchedule", message);
    }
    match check {
        Check::NoNode => {
            return Verdict::new(Status::Unknown, "NoNode", format!("{NO_NODE}{stays}"));
        }
        Check::Waiting { node } if all.is_empty() => {
            let message = format!("node {node} checks which version the source has");
            return Verdict::new(Status::Unknown, "Checking", message);
        }
        _ => {}
    }
    let Some(newest) = all.first() else {
        return Verdict::new(Status::Unknown, "Checking", String::new());
    };
    if !versions::is_ready(newest) {
        return pulled(newest, status, &stays);
    }
    match update.digest.as_ref().filter(|pin| **pin != newest.digest) {
        Some(pin) => {
            let newest = &newest.digest;
            let alone = alone(pin);
            let message =
                format!("spec.update.digest is {pin}{alone}; the newest version is {newest}");
            Verdict::new(Status::False, "Pinned", message)
        }
        None => Verdict::new(Status::True, UP_TO_DATE, String::new()),
    }
}

fn pulled(newest: &ImageVersion, status: &ImageUpdateStatus, stays: &str) -> Verdict {
    let digest = &newest.digest;
    let Some(pulls) = &status.pulls else {
        let message = format!("nodes pull version {digest}{stays}");
        return Verdict::new(Status::False, "Pulling", message);
    };
    if pulls.is_stalled() {
        let message = format!("version {digest}: {}{stays}", pulls.message);
        return Verdict::new(Status::False, "PullFailed", message);
    }
    let count = format!("{} of {} nodes", pulls.ready, pulls.desired);
    let message = format!("{count} have version {digest}{stays}");
    Verdict::new(Status::False, "Pulling", message)
}

#[cfg(test)]
mod tests {
    use crds::{ImageVersionState, InspectedImage, PrePullStatus};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    fn version(digest: &str, state: ImageVersionState) -> ImageVersion {
        ImageVersion {
            digest: digest.to_owned(),
            state,
            found_time: Time(jiff::Timestamp::UNIX_EPOCH),
            ready_nodes: 0,
            image: InspectedImage::default(),
        }
    }

    fn says(check: &Check, pin: Option<&str>, status: &ImageUpdateStatus, newest: &str) -> String {
        let state = if newest.ends_with('!') {
            ImageVersionState::Ready
        } else {
            ImageVersionState::Pulling
        };
        let newest = newest.trim_end_matches('!');
        let mut all = vec![
            version(newest, state),
            version("a", ImageVersionState::Ready),
        ];
        if newest.is_empty() {
            all.clear();
        }
        let update = ImageUpdate {
            digest: pin.map(str::to_owned),
            ..ImageUpdate::default()
        };
        let verdict = of_step(check, None, &update, (status, &all));
        format!(
            "{}/{}: {}",
            verdict.status.as_str(),
            verdict.reason,
            verdict.message
        )
    }

    #[test]
    fn the_condition_names_what_new_machines_use_and_why() {
        let known = || ImageUpdateStatus {
            current: Some("a".to_owned()),
            ..ImageUpdateStatus::default()
        };
        let idle = Check::Idle;
        assert_eq!(says(&idle, None, &known(), "b!"), "True/UpToDate: ");
        let node = Check::Waiting {
            node: "n".to_owned(),
        };
        assert_eq!(says(&node, None, &known(), "b!"), "True/UpToDate: ");
        let none = ImageUpdateStatus::default;
        assert_eq!(
            says(&node, None, &none(), ""),
            "Unknown/Checking: node n checks which version the source has"
        );
        let absent = says(&Check::NoNode, None, &known(), "b!");
        assert!(absent.starts_with("Unknown/NoNode: ") && absent.ends_with("; new machines use a"));
        let pinned = says(&idle, Some("a"), &known(), "b!");
        assert_eq!(
            pinned,
            "False/Pinned: spec.update.digest is a; the newest version is b"
        );
        let all = [version("b", ImageVersionState::Ready)];
        let of_file = |pin: &str| {
            let update = ImageUpdate {
                digest: Some(pin.to_owned()),
                checksum_url: Some("https://h/SUMS".to_owned()),
                ..ImageUpdate::default()
            };
            of_step(&idle, None, &update, (&known(), &all)).message
        };
        assert_eq!(
            of_file("a"),
            format!("spec.update.digest is a{ALONE}; the newest version is b")
        );
        assert_eq!(of_file("b"), "");
        let mut status = known();
        status.pulls = Some(PrePullStatus {
            desired: 3,
            ready: 1,
            pulling: 2,
            ..PrePullStatus::default()
        });
        assert_eq!(
            says(&idle, None, &status, "b"),
            "False/Pulling: 1 of 3 nodes have version b; new machines use a"
        );
        let mut status = known();
        status.pulls = Some(PrePullStatus {
            desired: 1,
            failed: 1,
            message: "node n: broken".to_owned(),
            ..PrePullStatus::default()
        });
        assert_eq!(
            says(&idle, None, &status, "b"),
            "False/PullFailed: version b: node n: broken; new machines use a"
        );
        let mut status = known();
        status.failed_checks = 2;
        status.message = "node n: answered 404".to_owned();
        assert_eq!(
            says(&idle, None, &status, "b!"),
            "False/CheckFailed: node n: answered 404; new machines use a"
        );
    }
}
