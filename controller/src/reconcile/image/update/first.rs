//! The first version of a file: machines use it at once, since there is none that could serve in its place.
//!
//! Invariant: it counts as out of reach only if a pull of it failed, and no node is known to have it. It is forgotten only
//! if besides no disk was made of it, and no node can have it that does not report it.
//! Failure: none of its own.

use crds::{ImageVersion, PrePullStatus};

use super::{Step, former};
use crate::reconcile::image::nodes::Holders;
use crate::reconcile::image::{cache, name};

/// Whether the only version is one that nodes could not pull.
pub(super) fn is_out_of_reach(step: &Step<'_>, all: &[ImageVersion]) -> bool {
    let [only] = all else { return false };
    let Ok(named) = name::of_version(step.object.source(), &only.digest) else {
        return false;
    };
    if !Holders::of_image(&step.ctx.stores, &named.name)
        .nodes
        .is_empty()
    {
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

/// Whether it can be forgotten besides: no machine uses it, or can come to use it.
pub(super) fn is_unused(step: &Step<'_>) -> bool {
    let is_used = step.object.status().is_some_and(|s| s.used_since.is_some());
    !is_used && former::with_other_images(step.ctx).is_empty()
}
