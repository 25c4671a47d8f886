//! The image of all machines, and its cache.
//!
//! Invariant: in the end there is an image.
//! Failure: none of its own.

use fastrand::Rng;
use serde_json::{Value, json};

use super::super::world::{World, name};
use super::{create, delete, set};
use crate::reconcile::vm::tests::bench::{CACHES, IMAGES, image};

pub(in super::super) const IMAGE: &str = "debian";

pub(super) fn change(world: &World, random: &mut Rng) {
    let Some(found) = world.get(IMAGES, IMAGE) else {
        return create(world, IMAGES, image(IMAGE));
    };
    let change = match random.u8(..8) {
        0 => return delete(world, IMAGES, IMAGE),
        1 => {
            let caches = world.all(CACHES);
            return caches
                .iter()
                .for_each(|cache| delete(world, CACHES, name(cache)));
        }
        2 => {
            let url = format!("https://images.example/{}.qcow2", random.u8(..3));
            json!({ "source": { "http": { "url": url } } })
        }
        3..=5 => json!({ "prePull": {} }),
        _ => json!({ "prePull": null }),
    };
    set(world, IMAGES, &found, &change);
}

pub(super) fn decide(world: &World, random: &mut Rng) {
    let pre_pull = if random.bool() {
        json!({})
    } else {
        Value::Null
    };
    if world.get(IMAGES, IMAGE).is_none() {
        create(world, IMAGES, image(IMAGE));
    }
    let found = world.get(IMAGES, IMAGE).unwrap_or_default();
    set(world, IMAGES, &found, &json!({ "prePull": pre_pull }));
}
