//! Containers as rows of the database.
//!
//! Invariant: what is read back equals what was written.
//! Failure: a row that cannot be decoded is set aside, for guessing could lose a machine; what is
//! made out of it only protects others from it and it from others.

use std::collections::HashSet;
use std::time::Duration;

use podspec::ContainerId;
use rusqlite::{Transaction, params};
use serde::de::DeserializeOwned;
use service::boot_clock::{self, Deadline};

use super::model::Container;
use super::state::Phase;
use crate::clock;
use crate::images::{Digest, Users};
use crate::metadata::aside::{self, Loaded};
use crate::metadata::{Row, Table, decode, encode};

/// What is made out of a row that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remnant {
    /// The sandbox's id as it is stored.
    pub sandbox: String,
    /// User that the machine runs as.
    pub user: Option<u32>,
}

/// kubelet, too, keeps the image of a container until the container is removed.
impl Users for Table<Container> {
    fn images(&self) -> HashSet<Digest> {
        let all = self.all();
        let digests = all.iter().map(|row| row.spec.image_digest.parse());
        digests.filter_map(Result::ok).collect()
    }
}

impl Row for Container {
    type Kind = podspec::kind::Container;
    type Phase = Phase;
    type Trace = Remnant;
    const TABLE: &'static str = "containers";

    fn id(&self) -> &ContainerId {
        &self.id
    }

    fn phase(&self) -> Phase {
        self.phase
    }

    fn load(t: &Transaction<'_>) -> rusqlite::Result<Loaded<Self, Remnant>> {
        let mut statement = t.prepare(
            "SELECT id, sandbox, phase, created_at, started_at, finished_at, kill_at, exit, spec,
                    oom_kills, resources, wanted, held, kill_by, probe
             FROM containers",
        )?;
        let now = Now {
            boot: boot_clock::now(),
            wall: clock::now(),
        };
        let read = |row: &rusqlite::Row<'_>| read(row, &now);
        let is_named = aside::has_key::<ContainerId>;
        aside::sort(&mut statement.query([])?, is_named, read, remnant)
    }

    fn insert(&self, t: &Transaction<'_>) -> rusqlite::Result<()> {
        t.execute(
            "INSERT INTO containers (id, sandbox, phase, created_at, spec)
             VALUES (?1, ?2, ?3, ?4, ?5)",
            params![
                self.id.as_str(),
                self.sandbox.as_str(),
                self.phase.as_str(),
                self.created_at,
                encode(&self.spec)?,
            ],
        )?;
        Ok(())
    }

    fn update(&self, t: &Transaction<'_>, expected: Phase) -> rusqlite::Result<usize> {
        t.execute(
            "UPDATE containers
             SET phase = ?1, started_at = ?2, finished_at = ?3, kill_at = 0, kill_by = ?4, exit = ?5,
                 oom_kills = ?6, resources = ?7, wanted = ?8, held = ?9, spec = ?10, probe = ?11
             WHERE id = ?12 AND phase = ?13",
            params![
                self.phase.as_str(),
                self.started_at,
                self.finished_at,
                self.kill_at.map(nanos),
                self.exit.as_ref().map(encode).transpose()?,
                self.oom_kills,
                self.updated.as_ref().map(encode).transpose()?,
                self.wanted.as_ref().map(encode).transpose()?,
                self.held,
                encode(&self.spec)?,
                self.probe.as_ref().map(encode).transpose()?,
                self.id.as_str(),
                expected.as_str(),
            ],
        )
    }

    fn delete(&self, t: &Transaction<'_>) -> rusqlite::Result<()> {
        t.execute("DELETE FROM containers WHERE id = ?1", [self.id.as_str()])?;
        Ok(())
    }
}

fn read(row: &rusqlite::Row<'_>, now: &Now) -> rusqlite::Result<Container> {
    Ok(Container {
        id: row.get::<_, String>(0)?.parse().map_err(decode(0))?,
        sandbox: row.get::<_, String>(1)?.parse().map_err(decode(1))?,
        phase: Phase::parse(&row.get::<_, String>(2)?)
            .ok_or("unknown phase")
            .map_err(decode(2))?,
        created_at: row.get(3)?,
        started_at: row.get(4)?,
        finished_at: row.get(5)?,
        kill_at: deadline(row.get(13)?, row.get(6)?, now),
        exit: json(row, 7)?,
        spec: serde_json::from_str(&row.get::<_, String>(8)?).map_err(decode(8))?,
        oom_kills: row.get(9)?,
        updated: json(row, 10)?,
        wanted: json(row, 11)?,
        held: row.get(12)?,
        probe: json(row, 14)?,
    })
}

fn json<T: DeserializeOwned>(
    row: &rusqlite::Row<'_>,
    column: usize,
) -> rusqlite::Result<Option<T>> {
    let text: Option<String> = row.get(column)?;
    text.map(|text| serde_json::from_str(&text).map_err(decode(column)))
        .transpose()
}

fn remnant(row: &rusqlite::Row<'_>) -> Remnant {
    let spec: Option<serde_json::Value> = serde_json::from_str(&aside::text(row, 8)).ok();
    let user = spec.and_then(|spec| spec["user"].as_u64());
    Remnant {
        sandbox: aside::text(row, 1),
        user: user.and_then(|user| user.try_into().ok()),
    }
}

/// Both clocks at one moment.
struct Now {
    boot: Duration,
    wall: i64,
}

/// When a stop kills: nanoseconds `since_start` of the node, which count whatever the wall clock says.
/// A stop that an earlier version recorded has a time of the `wall` clock; what is left of it by that
/// clock is what the guest still gets.
///
/// A time of an earlier boot has no meaning, and does no harm: no guest outlives its node.
fn deadline(since_start: Option<i64>, wall: i64, now: &Now) -> Option<Deadline> {
    let nanos = |nanos: i64| Duration::from_nanos(u64::try_from(nanos).unwrap_or(0));
    match since_start {
        Some(since_start) => Some(Deadline::at(nanos(since_start))),
        None if wall == 0 => None,
        None => {
            let left = nanos(wall.saturating_sub(now.wall));
            Some(Deadline::at(now.boot.saturating_add(left)))
        }
    }
}

fn nanos(deadline: Deadline) -> i64 {
    i64::try_from(deadline.since_start().as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;
    const WALL: i64 = 1_790_000_000 * SECOND;

    fn at(boot: u64, wall: i64) -> Now {
        Now {
            boot: Duration::from_secs(boot),
            wall,
        }
    }

    #[test]
    fn a_step_of_the_wall_clock_moves_no_kill() {
        let kill_at = Deadline::at(Duration::from_secs(1030));
        for step in [-86_400, 0, 86_400] {
            let now = at(1010, WALL + (10 + step) * SECOND);
            let read = deadline(Some(nanos(kill_at)), 0, &now).unwrap();
            assert_eq!(read.left_at(now.boot), Duration::from_secs(20), "{step}");
        }
    }

    #[test]
    fn a_stop_of_an_earlier_version_keeps_what_is_left_by_its_clock() {
        let now = at(1010, WALL);
        let left = |kill_at| deadline(None, kill_at, &now).map(|at| at.left_at(now.boot));
        assert_eq!(left(WALL + 20 * SECOND), Some(Duration::from_secs(20)));
        assert_eq!(left(WALL - 1), Some(Duration::ZERO));
        assert_eq!(left(0), None);
    }

    #[test]
    fn a_stop_for_ever_is_read_as_it_was_written() {
        let for_ever = Deadline::at(Duration::MAX);
        let stored = nanos(for_ever);
        let read = deadline(Some(stored), 0, &at(1, WALL)).unwrap();
        assert_eq!(nanos(read), stored);
    }
}
