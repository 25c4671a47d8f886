//! The events of a change of the installation's status.
//!
//! Invariant: a function of two statuses; equal conditions cause no event, so that an event stands
//! for a transition and a controller that takes over repeats none.
//! Failure: none. Texts are those of the conditions, bounded there.

use crds::VmletStatus;
use crds::conditions::{Status, find};

use super::consolidate::{Kind, UPGRADING};
use super::status::recorded;

/// Something that happened to the installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Transition {
    /// It should be looked at.
    pub(super) is_warning: bool,
    /// One word.
    pub(super) reason: &'static str,
    /// A sentence.
    pub(super) message: String,
}

impl Transition {
    fn normal(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            is_warning: false,
            reason,
            message: message.into(),
        }
    }
}

/// The transitions from the old status to the new one: at most one about an upgrade, then one about
/// the state of the installation.
pub(super) fn transitions(old: &VmletStatus, new: &VmletStatus) -> Vec<Transition> {
    if old.conditions.is_empty() {
        return vec![Transition::normal(
            "Initializing",
            "the installation is looked at for the first time",
        )];
    }
    let was_upgrading = is_upgrading(old);
    let is_upgrading = is_upgrading(new);
    let mut all = Vec::new();
    if is_upgrading && !was_upgrading {
        all.push(Transition::normal(
            "Upgrading",
            message_of(new, Kind::Progressing).to_owned(),
        ));
    }
    if let Some(before) = recorded(old)
        && let Some(after) = recorded(new)
        && before != after
    {
        let message_of = format!("upgraded from version {before} to {after}");
        all.push(Transition::normal("Upgraded", message_of));
    }
    all.extend(standing(old, new, is_upgrading));
    all
}

/// The worst that is new, or that all is well again.
fn standing(old: &VmletStatus, new: &VmletStatus, is_upgrading: bool) -> Option<Transition> {
    let became = |kind, status| is(new, kind, status) && !is(old, kind, status);
    let warning = |reason, kind| {
        Some(Transition {
            is_warning: true,
            reason,
            message: message_of(new, kind).to_owned(),
        })
    };
    // During an upgrade parts come and go: only a fault is reported.
    if became(Kind::Available, Status::False) && !is_upgrading {
        return warning("NotAvailable", Kind::Available);
    }
    if became(Kind::Degraded, Status::True) {
        return warning("Degraded", Kind::Degraded);
    }
    match (is_ready(old), is_ready(new)) {
        (false, true) => Some(Transition::normal(
            "Ready",
            "every part of the installation is well",
        )),
        (true, false) if !is_upgrading => {
            let worst = Kind::ALL
                .into_iter()
                .find(|kind| !is(new, *kind, kind.good()));
            warning("NotReady", worst.unwrap_or(Kind::ReconcileComplete))
        }
        _ => None,
    }
}

fn is(status: &VmletStatus, kind: Kind, wanted: Status) -> bool {
    find(&status.conditions, kind.as_str()).is_some_and(|found| found.status == wanted.as_str())
}

fn message_of(status: &VmletStatus, kind: Kind) -> &str {
    find(&status.conditions, kind.as_str()).map_or("", |found| found.message.as_str())
}

/// No component reports a finding, and no upgrade is in progress.
fn is_ready(status: &VmletStatus) -> bool {
    Kind::ALL
        .into_iter()
        .all(|kind| is(status, kind, kind.good()))
}

fn is_upgrading(status: &VmletStatus) -> bool {
    let found = find(&status.conditions, Kind::Progressing.as_str());
    found.is_some_and(|found| found.status == "True" && found.reason == UPGRADING)
}

#[cfg(test)]
mod tests;
