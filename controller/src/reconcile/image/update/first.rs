//! The first version of a file: machines use it at once, since there is none that could serve in its place.
//!
//! Invariant: it counts as out of reach only if a pull of it failed, and no node is known to have it.
//! Failure: none of its own.

use crds::{ImageVersion, PrePullStatus};

use super::Step;
use crate::reconcile::image::nodes::Holders;
use crate::reconcile::image::{cache, name};

/// Whether the only version is one that nodes could not pull.
pub(super) fn is_out_of_reach(step: &Step<'_>, all: &[ImageVersion]) -> bool {
    let [only] = all else { return false };
    let Ok(named) = name::of_version(step.object.source(), &only.digest) else {
        return false;
    };
    if !Holders::of(&step.ctx.stores, &named.name).nodes.is_empty() {
        return false;
    }
    let cached = cache::find(step.ctx, step.object);
    let cached = cached.filter(|found| cache::is_of(found, step.object, &named.name));
    let status = step.object.status();
    let status = status.filter(|status| status.provider_item_id.as_ref() == Some(&named.name));
    let pre_pull = status.and_then(|status| status.pre_pull.as_ref());
    let has_none = pre_pull.is_none_or(|pulls| pulls.ready == 0)
        && cached
            .as_ref()
            .is_none_or(|cache| cache::nodes_with(cache).next().is_none());
    let fails = pre_pull.is_some_and(PrePullStatus::is_stalled)
        || cached.is_some_and(|cache| cache::has_failed(&cache));
    has_none && fails
}
