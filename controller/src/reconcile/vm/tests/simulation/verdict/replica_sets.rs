//! The set of machines in the end.
//!
//! Invariant: reads the world only.
//! Failure: the first difference, in words.

use super::super::users::SET;
use super::super::world::{World, name};
use super::machines::is_on;
use crate::reconcile::vm::tests::bench::{SETS, VMS};

const NUMBERS: [&str; 4] = [
    "replicas",
    "readyReplicas",
    "availableReplicas",
    "updatedReplicas",
];

/// The set has so many machines, all of which run; `None`: there is no set.
pub(super) fn check(world: &World, replicas: Option<u64>) -> Result<(), String> {
    let Some(replicas) = replicas else {
        return Ok(());
    };
    let set = world.get(SETS, SET).ok_or("there is no set")?;
    let prefix = format!("{SET}-");
    let all = world.all(VMS).into_iter();
    let names = all.map(|vm| name(&vm).to_owned());
    let names: Vec<_> = names.filter(|name| name.starts_with(&prefix)).collect();
    let wanted: Vec<_> = (0..replicas)
        .map(|index| format!("{prefix}{index}"))
        .collect();
    if names != wanted {
        return Err(format!("the set has {names:?} instead of {wanted:?}"));
    }
    for machine in &names {
        is_on(world, machine).map_err(|why| format!("{machine} is not on: {why}"))?;
    }
    let status = &set["status"];
    let is_number = |number: &&str| status[number].as_u64().unwrap_or_default() == replicas;
    let is_shown = NUMBERS.iter().all(is_number);
    is_shown
        .then_some(())
        .ok_or_else(|| format!("the set of {replicas} shows {status}"))
}
