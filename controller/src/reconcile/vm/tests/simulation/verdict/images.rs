//! The image and its cache in the end.
//!
//! Invariant: reads the world only.
//! Failure: the first difference, in words.

use super::super::nodes::NODE_NAMES;
use super::super::users::IMAGE;
use super::super::world::{World, name, uid};
use crate::reconcile::vm::tests::bench::{CACHES, IMAGES};

/// A cache is of the image that there is, and nodes have what they are to pull.
pub(super) fn check(world: &World) -> Result<(), String> {
    let image = world.get(IMAGES, IMAGE).ok_or("there is no image")?;
    let status = &image["status"];
    for cache in world.all(CACHES) {
        if cache["spec"]["image"]["uid"] != uid(&image) {
            return Err(format!("{} is of another image", name(&cache)));
        }
    }
    let is_desired = !image["spec"]["prePull"].is_null();
    let ready = status["prePull"]["ready"].as_u64();
    let wanted = is_desired.then_some(NODE_NAMES.len() as u64);
    if ready != wanted {
        return Err(format!("{wanted:?} nodes are to have the image: {status}"));
    }
    let is_ready = status["conditions"].as_array().is_some_and(|all| {
        all.iter()
            .any(|one| one["type"] == "Ready" && one["status"] == "True")
    });
    is_ready
        .then_some(())
        .ok_or_else(|| format!("the image is not ready: {status}"))
}
