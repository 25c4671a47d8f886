//! Events about the versions of an image.
//!
//! Invariant: each follows from the difference of two states, so that a repeated pass has none.
//! Failure: none; events are for people.

use crds::{ImageVersion, VirtualMachineImageStatus};

use super::versions::is_ready;
use crate::context::Context;
use crate::reconcile::image::object::Object;

/// States what is new.
pub(in crate::reconcile::image) fn record(
    ctx: &Context,
    object: &Object,
    old: &VirtualMachineImageStatus,
    new: &VirtualMachineImageStatus,
) {
    let Some(update) = &new.update else { return };
    let before = old.update.clone().unwrap_or_default();
    let report = |is_warning: bool, reason: &str, message: &str| {
        object.report(&ctx.events, is_warning, reason, message);
    };
    let has_failed = update.failed_checks > before.failed_checks;
    if has_failed && (update.failed_checks == 1 || update.message != before.message) {
        report(true, "CheckFailed", &update.message);
    }
    if let Some(newest) = new.versions.first() {
        let last = old.versions.first();
        if last.is_none_or(|last| last.digest != newest.digest) {
            let text = format!("the source has version {}", newest.digest);
            report(false, "VersionFound", &text);
        }
        let pulls = update.pulls.clone().unwrap_or_default();
        let last = before.pulls.unwrap_or_default();
        if pulls.failed > 0 && pulls.message != last.message {
            report(true, "PullFailed", &pulls.message);
        }
        if becomes_ready(newest, old) && pulls.ready < pulls.desired {
            let text = format!(
                "new machines use version {} although only {} of {} nodes have it: its time is over",
                newest.digest, pulls.ready, pulls.desired
            );
            report(true, "PullIncomplete", &text);
        }
    }
    if let Some(current) = update
        .current
        .as_ref()
        .filter(|c| before.current.as_ref() != Some(*c))
    {
        let text = match &before.current {
            Some(before) => format!("new machines use version {current} in place of {before}"),
            None => format!("new machines use version {current}"),
        };
        report(false, "VersionChanged", &text);
    }
}

fn becomes_ready(newest: &ImageVersion, old: &VirtualMachineImageStatus) -> bool {
    let mut before = old.versions.iter();
    let before = before.find(|version| version.digest == newest.digest);
    is_ready(newest) && before.is_some_and(|before| !is_ready(before))
}
