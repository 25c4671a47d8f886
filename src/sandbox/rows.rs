//! Sandboxes as rows of the database.
//!
//! Invariant: what is read back equals what was written.
//! Failure: a row that cannot be decoded is set aside, for guessing could lose a machine; the pod
//! that is made out of it gets no other sandbox.

use podspec::SandboxId;
use rusqlite::{Transaction, params};

use super::model::{PodMetadata, Sandbox};
use super::state::Phase;
use crate::metadata::aside::{self, Loaded};
use crate::metadata::{Row, decode, encode};

impl Row for Sandbox {
    type Kind = podspec::kind::Sandbox;
    type Phase = Phase;
    type Trace = Option<PodMetadata>;
    const TABLE: &'static str = "sandboxes";

    fn id(&self) -> &SandboxId {
        &self.id
    }

    fn phase(&self) -> Phase {
        self.phase
    }

    fn load(t: &Transaction<'_>) -> rusqlite::Result<Loaded<Self, Self::Trace>> {
        let mut statement =
            t.prepare("SELECT id, phase, created_at, config, network, identity FROM sandboxes")?;
        let read = |row: &rusqlite::Row<'_>| {
            Ok(Self {
                id: row.get::<_, String>(0)?.parse().map_err(decode(0))?,
                phase: Phase::parse(&row.get::<_, String>(1)?)
                    .ok_or("unknown phase")
                    .map_err(decode(1))?,
                created_at: row.get(2)?,
                config: serde_json::from_str(&row.get::<_, String>(3)?).map_err(decode(3))?,
                network: row
                    .get::<_, Option<String>>(4)?
                    .map(|json| serde_json::from_str(&json).map_err(decode(4)))
                    .transpose()?,
            })
        };
        let is_named = aside::has_key::<SandboxId>;
        let pod = |row: &rusqlite::Row<'_>| PodMetadata::of_identity(&aside::text(row, 5));
        aside::sort(&mut statement.query([])?, is_named, read, pod)
    }

    fn insert(&self, t: &Transaction<'_>) -> rusqlite::Result<()> {
        t.execute(
            "INSERT INTO sandboxes (id, identity, phase, created_at, config, network)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            params![
                self.id.as_str(),
                self.config.metadata.identity(),
                self.phase.as_str(),
                self.created_at,
                encode(&self.config)?,
                self.network.as_ref().map(encode).transpose()?,
            ],
        )?;
        Ok(())
    }

    fn update(&self, t: &Transaction<'_>, expected: Phase) -> rusqlite::Result<usize> {
        t.execute(
            "UPDATE sandboxes SET phase = ?1, network = ?2 WHERE id = ?3 AND phase = ?4",
            params![
                self.phase.as_str(),
                self.network.as_ref().map(encode).transpose()?,
                self.id.as_str(),
                expected.as_str(),
            ],
        )
    }

    fn delete(&self, t: &Transaction<'_>) -> rusqlite::Result<()> {
        t.execute("DELETE FROM sandboxes WHERE id = ?1", [self.id.as_str()])?;
        Ok(())
    }
}
