//! The SQL statements of the catalog.
//!
//! Invariant: each function is one transaction, repeatable safely.
//! Failure: the database's error; nothing changed.

use rusqlite::{Transaction, params};

use super::access::{self, Identity};
use super::catalog::{Facts, Pin};
use super::digest::Digest;
use super::error::Result;
use super::partial::Validators;
use super::share::Arrived;
use crate::metadata::Db;
use load::digest;

mod load;

pub(super) use load::load;

/// Matches the digests of pins that can be read.
const READABLE: &str = "digest GLOB 'sha256:' || replace(hex(zeroblob(32)), '0', '[0-9a-f]')";

/// An image that came from a source.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) arrived: Arrived,
    pub(super) facts: Facts,
    /// The key of the source.
    pub(super) source: String,
    /// By which credentials it came, where there is a server that knows some.
    pub(super) identity: Option<Identity>,
    pub(super) validators: Validators,
    pub(super) user: String,
    pub(super) names: Vec<String>,
    /// Nanoseconds since the epoch.
    pub(super) at: i64,
}

/// Records an image that came from a source, or that a removed one is back.
pub(super) async fn arrived(db: &Db, arrival: Arrival) -> Result<()> {
    // Both were lengths of files or checked against a limit; SQLite's integers are as large as
    // those.
    let facts = arrival.facts;
    let size = i64::try_from(facts.size).unwrap_or(i64::MAX);
    let virtual_size = i64::try_from(facts.virtual_size).unwrap_or(i64::MAX);
    // What a client has uploaded is nowhere else once the client has the reply.
    let written = db.write_through(move |t| {
        let Arrived { digest, content } = arrival.arrived;
        t.execute(
            "INSERT INTO images \
             (digest, size, virtual_size, format, pulled_at, used_at, config_user) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?5, ?6) \
             ON CONFLICT (digest) DO UPDATE SET removed = 0, pulled_at = excluded.pulled_at, \
             used_at = excluded.used_at, config_user = excluded.config_user, size = excluded.size, \
             virtual_size = excluded.virtual_size, format = excluded.format",
            params![
                digest.to_string(),
                size,
                virtual_size,
                facts.format.as_str(),
                arrival.at,
                arrival.user
            ],
        )?;
        t.execute(
            "INSERT OR REPLACE INTO image_sources (source, digest, etag, modified, content) \
             VALUES (?1, ?2, ?3, ?4, ?5)",
            params![
                arrival.source,
                digest.to_string(),
                arrival.validators.etag,
                arrival.validators.modified,
                content.to_string()
            ],
        )?;
        add_identity(t, digest, arrival.identity)?;
        add_names(t, digest, &arrival.names)
    });
    Ok(written.await?)
}

/// Adds names to a recorded image, listing it again if it was removed, and the credentials of the
/// pull.
pub(super) async fn named(
    db: &Db,
    digest: Digest,
    names: Vec<String>,
    identity: Option<Identity>,
    now: i64,
) -> Result<()> {
    let change = move |t: &Transaction<'_>| {
        t.execute(
            "UPDATE images SET removed = 0, used_at = ?2 WHERE digest = ?1",
            params![digest.to_string(), now],
        )?;
        add_identity(t, digest, identity)?;
        add_names(t, digest, &names)
    };
    let written = match identity {
        Some(_) => db.write(change).await,
        // A client has sent it, and has no other record of it once it has the reply.
        None => db.write_through(change).await,
    };
    Ok(written?)
}

/// As [`access::Access::add`].
fn add_identity(
    t: &Transaction<'_>,
    digest: Digest,
    identity: Option<Identity>,
) -> rusqlite::Result<()> {
    let Some(identity) = identity else {
        return Ok(());
    };
    let digest = digest.to_string();
    t.execute(
        "INSERT OR REPLACE INTO image_access (digest, identity) VALUES (?1, ?2)",
        [&digest, &identity.to_string()],
    )?;
    let anyone = Identity::Anyone.to_string();
    t.execute(
        "DELETE FROM image_access WHERE digest = ?1 AND identity <> ?2 AND EXISTS \
         (SELECT 1 FROM image_access WHERE digest = ?1 AND identity = ?2)",
        [&digest, &anyone],
    )?;
    let surplus = "DELETE FROM image_access WHERE digest = ?1 AND rowid NOT IN \
         (SELECT rowid FROM image_access WHERE digest = ?1 ORDER BY rowid DESC LIMIT ?2)";
    let most = i64::try_from(access::MOST).unwrap_or(i64::MAX);
    t.execute(surplus, params![digest, most]).map(drop)
}

/// Calls a source by another key.
pub(super) async fn resourced(db: &Db, from: String, to: String) -> Result<()> {
    let written = db.write(move |t| {
        let update = "UPDATE OR REPLACE image_sources SET source = ?2 WHERE source = ?1";
        t.execute(update, [from, to]).map(drop)
    });
    Ok(written.await?)
}

fn add_names(t: &Transaction<'_>, digest: Digest, names: &[String]) -> rusqlite::Result<()> {
    for name in names {
        t.execute(
            "INSERT OR REPLACE INTO image_names (name, digest) VALUES (?1, ?2)",
            [name.as_str(), &digest.to_string()],
        )?;
    }
    Ok(())
}

/// Takes an image from the lists; a pinned one keeps its row, its names by a SHA-512, and where its file came from.
pub(super) async fn removed(db: &Db, digest: Digest) -> Result<()> {
    let written = db.write(move |t| {
        let digest = [digest.to_string()];
        t.execute(
            "DELETE FROM image_names WHERE digest = ?1 AND instr(name, '@sha512:') = 0",
            digest.clone(),
        )?;
        t.execute(
            "UPDATE images SET removed = 1 WHERE digest = ?1",
            digest.clone(),
        )?;
        drop_unneeded(t, &digest)
    });
    Ok(written.await?)
}

/// Removes an image whose file is missing, with its names. Pins stay: their owners must learn of
/// the loss.
pub(super) async fn lost(db: &Db, digests: Vec<Digest>) -> Result<()> {
    let written = db.write(move |t| {
        for digest in digests {
            t.execute("DELETE FROM images WHERE digest = ?1", [digest.to_string()])?;
        }
        Ok(())
    });
    Ok(written.await?)
}

/// Pins an image unless `owner` has a pin already; returns what is pinned.
pub(super) async fn pinned(db: &Db, owner: String, pin: Pin, now: i64) -> Result<Pin> {
    let written = db.write(move |t| {
        used(t, pin.digest, now)?;
        t.execute(
            "INSERT INTO image_pins (owner, digest, text) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING",
            params![owner, pin.digest.to_string(), pin.text],
        )?;
        let select = "SELECT digest, text FROM image_pins WHERE owner = ?1";
        t.query_row(select, [owner], |row| {
            let digest = digest(row, 0)?;
            let text = row.get(1)?;
            Ok(Pin { digest, text })
        })
    });
    Ok(written.await?)
}

/// A pin that goes from one owner to another.
#[derive(Debug)]
pub(super) struct Move {
    pub(super) from: String,
    pub(super) owner: String,
    /// That of `owner` afterwards.
    pub(super) pin: Pin,
    /// The image that was pinned for `owner`.
    pub(super) old: Option<Digest>,
}

/// Moves a pin, and removes the row of a removed image that has no other pin than the one it had.
pub(super) async fn moved(db: &Db, change: Move, now: i64) -> Result<()> {
    let written = db.write(move |t| {
        let Move {
            from,
            owner,
            pin,
            old,
        } = change;
        t.execute("DELETE FROM image_pins WHERE owner = ?1", [from])?;
        t.execute(
            "INSERT INTO image_pins (owner, digest, text) VALUES (?1, ?2, ?3) \
             ON CONFLICT (owner) DO UPDATE SET digest = excluded.digest, text = excluded.text",
            params![owner, pin.digest.to_string(), pin.text],
        )?;
        if let Some(old) = old {
            used(t, old, now)?;
            drop_unneeded(t, &[old.to_string()])?;
        }
        Ok(())
    });
    Ok(written.await?)
}

/// Records how `owner` names the image that is pinned for it.
pub(super) async fn renamed(db: &Db, owner: String, text: String) -> Result<()> {
    let written = db.write(move |t| {
        let update = "UPDATE image_pins SET text = ?2 WHERE owner = ?1";
        t.execute(update, [owner, text]).map(drop)
    });
    Ok(written.await?)
}

/// Removes a pin, and the row of a removed image without any other pin.
pub(super) async fn unpinned(db: &Db, owner: String, digest: Digest, now: i64) -> Result<()> {
    let written = db.write(move |t| {
        used(t, digest, now)?;
        t.execute("DELETE FROM image_pins WHERE owner = ?1", [owner])?;
        drop_unneeded(t, &[digest.to_string()])
    });
    Ok(written.await?)
}

fn used(t: &Transaction<'_>, digest: Digest, now: i64) -> rusqlite::Result<()> {
    let update = "UPDATE images SET used_at = ?2 WHERE digest = ?1";
    t.execute(update, params![digest.to_string(), now])
        .map(drop)
}

/// Nothing is unneeded while a pin cannot be read.
fn drop_unneeded(t: &Transaction<'_>, digest: &[String; 1]) -> rusqlite::Result<()> {
    let delete = format!(
        "DELETE FROM images WHERE digest = ?1 AND removed = 1 \
         AND digest NOT IN (SELECT digest FROM image_pins) \
         AND NOT EXISTS (SELECT 1 FROM image_pins WHERE NOT ({READABLE}))"
    );
    t.execute(&delete, digest.clone()).map(drop)
}
