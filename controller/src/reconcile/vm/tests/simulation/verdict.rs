//! What must hold in the end.
//!
//! Invariant: reads the world only.
//! Failure: the first difference, in words.

mod backups;
mod groups;
mod images;
mod log;
mod machines;
mod replica_sets;
mod snapshots;

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::{Instant, sleep};

pub(super) use self::log::watch;
use super::plan::Kind;
use super::users::Wanted;
use super::world::World;

/// Longest time from the last fault to the desired states. The longest delays between two attempts are five
/// minutes: of a guest that keeps ending, and of a task that failed.
pub(super) const LONGEST: Duration = Duration::from_mins(30);
/// What is written about settled machines is looked at for so long.
const QUIET: Duration = Duration::from_mins(4);

/// Waits for the desired states, and for the end of all writes.
pub(super) async fn settles(world: &World, wanted: &Wanted) {
    let end = Instant::now() + LONGEST;
    while let Some(difference) = difference(world, wanted) {
        if Instant::now() >= end {
            world.finding(&difference);
            return;
        }
        sleep(Duration::from_secs(1)).await;
    }
    world.note("everything is as desired");
    sleep(Duration::from_mins(1)).await;
    let before = world.on_server(|state| state.writes.len());
    sleep(QUIET).await;
    let again = world.on_server(|state| {
        let again = repeated(&state.writes[before..]);
        again.into_iter().map(str::to_owned).collect::<Vec<_>>()
    });
    if !again.is_empty() {
        world.finding(&format!("what has settled is written: {again:?}"));
    }
    if let Some(difference) = difference(world, wanted) {
        world.finding(&format!("no longer: {difference}"));
    }
}

/// What was written more than once: a task that ended is removed after ten minutes, and its machine then has one
/// write.
fn repeated(writes: &[String]) -> BTreeSet<&str> {
    let mut once = BTreeSet::new();
    let writes = writes.iter().map(String::as_str);
    writes.filter(|write| !once.insert(*write)).collect()
}

fn difference(world: &World, wanted: &Wanted) -> Option<String> {
    let of = |kind: Kind, check: fn(&World) -> Result<(), String>| {
        if world.includes(kind) {
            check(world)
        } else {
            Ok(())
        }
    };
    machines::check(world, &wanted.machines)
        .and_then(|()| replica_sets::check(world, wanted.replicas))
        .and_then(|()| of(Kind::Groups, groups::check))
        .and_then(|()| of(Kind::Snapshots, snapshots::check))
        .and_then(|()| of(Kind::Backups, backups::check))
        .and_then(|()| of(Kind::Images, images::check))
        .err()
}
