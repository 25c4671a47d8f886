//! Facts about this installation and its node.
//!
//! Invariant: the installation's id never changes as long as the database lives; the boot that is
//! recorded is one whose consequences are all in the database.
//! Failure: the database's own.

use rusqlite::{OptionalExtension, Transaction};
use uuid::Uuid;

use super::db::{self, Db};

const INSTALLATION: &str = "installation";
const BOOT: &str = "boot";
const SETTINGS: &str = "settings of the cluster";

/// The ID that distinguishes our domains from those of another daemon on the same libvirt; made at
/// the first call.
pub async fn installation(db: &Db) -> db::Result<String> {
    db.write(|t| {
        if let Some(id) = get(t, INSTALLATION)? {
            return Ok(id);
        }
        let id = Uuid::new_v4().to_string();
        set(t, INSTALLATION, &id)?;
        Ok(id)
    })
    .await
}

/// The boot of the node that the rows were last true for; `None` before the first.
pub async fn boot(db: &Db) -> db::Result<Option<String>> {
    db.write(|t| get(t, BOOT)).await
}

/// Records that the rows are true for this boot.
pub async fn set_boot(db: &Db, id: String) -> db::Result<()> {
    db.write(move |t| set(t, BOOT, &id)).await
}

/// The settings that the cluster has given this node, as they were recorded last.
pub async fn settings(db: &Db) -> db::Result<Option<String>> {
    db.write(|t| get(t, SETTINGS)).await
}

/// Records them in the place of those before.
pub async fn set_settings(db: &Db, text: String) -> db::Result<()> {
    db.write(move |t| set(t, SETTINGS, &text)).await
}

fn get(t: &Transaction<'_>, key: &str) -> rusqlite::Result<Option<String>> {
    let select = "SELECT value FROM node WHERE key = ?1";
    t.query_row(select, [key], |row| row.get(0)).optional()
}

fn set(t: &Transaction<'_>, key: &str, value: &str) -> rusqlite::Result<()> {
    let upsert = "INSERT INTO node (key, value) VALUES (?1, ?2)
                  ON CONFLICT (key) DO UPDATE SET value = excluded.value";
    t.execute(upsert, [key, value]).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_installation_has_one_id_and_a_boot_is_remembered() {
        let db = Db::in_memory().unwrap();
        let id = installation(&db).await.unwrap();
        assert_eq!(installation(&db).await.unwrap(), id);
        assert_ne!(installation(&Db::in_memory().unwrap()).await.unwrap(), id);
        assert_eq!(boot(&db).await.unwrap(), None);
        for now in ["one", "two"] {
            set_boot(&db, now.to_owned()).await.unwrap();
            assert_eq!(boot(&db).await.unwrap().as_deref(), Some(now));
        }
    }
}
