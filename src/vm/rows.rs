//! Containers as rows of the database.
//!
//! Invariant: what is read back equals what was written.
//! Failure: a row that cannot be decoded stops the start of the daemon: guessing could lose a
//! machine.

use std::collections::HashSet;

use podspec::ContainerId;
use rusqlite::{Transaction, params};

use super::model::Container;
use super::state::Phase;
use crate::images::{Digest, Users};
use crate::metadata::{Row, Table, decode, encode};

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

    fn id(&self) -> &ContainerId {
        &self.id
    }

    fn phase(&self) -> Phase {
        self.phase
    }

    fn load(t: &Transaction<'_>) -> rusqlite::Result<Vec<Self>> {
        let mut statement = t.prepare(
            "SELECT id, sandbox, phase, created_at, started_at, finished_at, kill_at, exit, spec,
                    oom_kills, resources, wanted, held
             FROM containers",
        )?;
        let rows = statement.query_map([], |row| {
            Ok(Self {
                id: row.get::<_, String>(0)?.parse().map_err(decode(0))?,
                sandbox: row.get::<_, String>(1)?.parse().map_err(decode(1))?,
                phase: Phase::parse(&row.get::<_, String>(2)?)
                    .ok_or("unknown phase")
                    .map_err(decode(2))?,
                created_at: row.get(3)?,
                started_at: row.get(4)?,
                finished_at: row.get(5)?,
                kill_at: row.get(6)?,
                exit: row
                    .get::<_, Option<String>>(7)?
                    .map(|json| serde_json::from_str(&json).map_err(decode(7)))
                    .transpose()?,
                spec: serde_json::from_str(&row.get::<_, String>(8)?).map_err(decode(8))?,
                oom_kills: row.get(9)?,
                updated: row
                    .get::<_, Option<String>>(10)?
                    .map(|json| serde_json::from_str(&json).map_err(decode(10)))
                    .transpose()?,
                wanted: row
                    .get::<_, Option<String>>(11)?
                    .map(|json| serde_json::from_str(&json).map_err(decode(11)))
                    .transpose()?,
                held: row.get(12)?,
            })
        })?;
        rows.collect()
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
             SET phase = ?1, started_at = ?2, finished_at = ?3, kill_at = ?4, exit = ?5,
                 oom_kills = ?6, resources = ?7, wanted = ?8, held = ?9, spec = ?10
             WHERE id = ?11 AND phase = ?12",
            params![
                self.phase.as_str(),
                self.started_at,
                self.finished_at,
                self.kill_at,
                self.exit.as_ref().map(encode).transpose()?,
                self.oom_kills,
                self.updated.as_ref().map(encode).transpose()?,
                self.wanted.as_ref().map(encode).transpose()?,
                self.held,
                encode(&self.spec)?,
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
