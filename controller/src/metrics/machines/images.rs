//! Series of each image: whether it can be used, whether the nodes that need it have it, and whether one
//! that follows a tag is up to date.
//!
//! Invariant: as those of machines; an image of the cluster has an empty namespace.
//! Failure: none.

use std::collections::HashSet;
use std::fmt;

use crds::conditions::{self, CACHE_FILES_READY, READY};
use prometheus_client::encoding::DescriptorEncoder;

use super::gauges;
use crate::reconcile::image::UP_TO_DATE;
use crate::reconcile::image::object::Object;
use crate::stores::{Key, Stores};

/// Encodes the series.
pub(super) fn encode(encoder: &mut DescriptorEncoder<'_>, stores: &Stores) -> fmt::Result {
    let images: Vec<_> = Object::all(stores).collect();
    let is_resolved = |image: &Object| {
        let ready = image.status().map(|status| &status.conditions);
        ready.is_some_and(|all| conditions::is_true(all, READY))
    };
    gauges(
        encoder,
        "vmi_resource_resolve",
        "Whether an image can be used",
        images
            .iter()
            .map(|image| (labels(&image.key()), i64::from(is_resolved(image)))),
    )?;
    let is_up_to_date = |image: &Object| {
        let up_to_date = image.status().map(|status| &status.conditions);
        up_to_date.is_some_and(|all| conditions::is_true(all, UP_TO_DATE))
    };
    let following = images.iter().filter(|image| image.update().is_some());
    gauges(
        encoder,
        "vmi_up_to_date",
        "Whether new machines use the version that the tag of an image means",
        following.map(|image| (labels(&image.key()), i64::from(is_up_to_date(image)))),
    )?;
    let caches = stores.image_caches.state().into_iter();
    let filled = caches.filter(|cache| {
        let status = cache.status.as_ref();
        status.is_some_and(|s| conditions::is_true(&s.conditions, CACHE_FILES_READY))
    });
    let filled = filled.filter_map(|cache| cache.spec.image.clone());
    let filled: HashSet<_> = filled.map(|image| image.uid).collect();
    gauges(
        encoder,
        "vmi_content_sync",
        "Whether all nodes that need an image have it",
        images.iter().map(|image| {
            (
                labels(&image.key()),
                i64::from(filled.contains(image.uid())),
            )
        }),
    )
}

fn labels(key: &Key) -> Vec<(&'static str, String)> {
    vec![
        ("vmi_name", key.name.clone()),
        ("vmi_namespace", key.namespace.clone()),
    ]
}
