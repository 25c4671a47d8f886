//! The group in the end.
//!
//! Invariant: reads the world only.
//! Failure: the first difference, in words.

use crds::conditions::MEMBER_POWER_STATE_SYNCED;
use serde_json::Value;

use super::super::users::GROUP;
use super::super::world::World;
use crate::reconcile::vm::tests::bench::{GROUPS, VMS};

/// Members that exist have the power state of the group, and the group says so.
pub(super) fn check(world: &World) -> Result<(), String> {
    let group = world.get(GROUPS, GROUP).ok_or("there is no group")?;
    let members = group["status"]["members"].as_array();
    let members = members.ok_or("the group shows no members")?;
    let exists = |member: &Value| {
        let name = member["name"].as_str().unwrap_or_default();
        world.get(VMS, name).is_some()
    };
    let is_synced = |member: &Value| {
        let all = member["conditions"].as_array();
        let mut all = all.into_iter().flatten();
        let is_it = |one: &&Value| one["type"] == MEMBER_POWER_STATE_SYNCED;
        all.find(is_it).is_some_and(|one| one["status"] == "True")
    };
    let mut there = members.iter().filter(|member| exists(member));
    match there.find(|member| !is_synced(member)) {
        Some(member) => Err(format!("the group shows {member}")),
        None => Ok(()),
    }
}
