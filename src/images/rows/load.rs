//! Reads the whole catalog, for the start of the daemon.
//!
//! Invariant: a row that cannot be read is no image, name or source; its file stays.
//! Failure: the database's error.

use std::collections::HashMap;

use rusqlite::{Row, Transaction};

use crate::images::access::{Identity, Key};
use crate::images::catalog::{Entry, Facts, Pin, Rows};
use crate::images::digest::Digest;
use crate::images::error::Result;
use crate::images::partial::Validators;
use crate::images::share::Arrived;
use crate::metadata::aside::{self, Loaded};
use crate::metadata::{Db, decode};

/// Everything, for the start. A row that cannot be read is no image, name or source; the file that it
/// may be about stays, and as long as it is unknown which one that is, every file.
pub(in crate::images) async fn load(db: &Db) -> Result<Rows> {
    let read = |t: &Transaction<'_>| {
        Ok(Read {
            images: images(t)?,
            names: names(t)?,
            pins: pins(t)?,
            sources: sources(t)?,
            access: access(t)?,
            key: key(t)?,
        })
    };
    let Read {
        images,
        names,
        pins,
        sources,
        access,
        key,
    } = db.write(read).await?;
    let images_aside = db.report("images", images.aside);
    let digests = images_aside.rows().iter().map(|row| row.key.parse().ok());
    let mut rows = Rows {
        entries: images.rows.into_iter().collect(),
        pins: pins.rows.into_iter().collect(),
        sources: sources.rows.into_iter().collect(),
        kept: digests.flatten().collect(),
        keeps_all: images_aside.is_anonymous() || !pins.aside.is_empty(),
        pins_aside: db.report("image_pins", pins.aside),
        names: HashMap::new(),
        key,
    };
    drop(db.report("image_access", access.aside));
    drop(db.report("image_names", names.aside));
    drop(db.report("image_sources", sources.aside));
    for (name, digest) in names.rows {
        if let Some(entry) = rows.entries.get_mut(&digest) {
            entry.names.insert(name.clone());
            rows.names.insert(name, digest);
        }
    }
    for (digest, identity) in access.rows {
        rows.admit(digest, Some(identity));
    }
    Ok(rows)
}

/// The tables.
struct Read {
    images: Loaded<(Digest, Entry)>,
    names: Loaded<(String, Digest)>,
    pins: Loaded<(String, Pin)>,
    sources: Loaded<(String, (Arrived, Validators))>,
    access: Loaded<(Digest, Identity)>,
    key: Key,
}

fn images(t: &Transaction<'_>) -> rusqlite::Result<Loaded<(Digest, Entry)>> {
    let mut select =
        t.prepare("SELECT digest, size, virtual_size, format, removed, config_user, pulled_at, used_at FROM images")?;
    let read = |row: &Row<'_>| {
        let facts = facts(row.get(1)?, row.get(2)?, &row.get::<_, String>(3)?);
        let facts = facts.ok_or("no such size or format").map_err(decode(1))?;
        let entry = Entry {
            removed: row.get(4)?,
            user: row.get(5)?,
            pulled_at: row.get(6)?,
            used_at: row.get(7)?,
            ..Entry::new(facts)
        };
        Ok((digest(row, 0)?, entry))
    };
    let is_named = aside::has_key::<Digest>;
    aside::sort(&mut select.query([])?, is_named, read, |_| ())
}

fn names(t: &Transaction<'_>) -> rusqlite::Result<Loaded<(String, Digest)>> {
    let mut select = t.prepare("SELECT name, digest FROM image_names")?;
    let read = |row: &Row<'_>| Ok((row.get(0)?, digest(row, 1)?));
    aside::sort(&mut select.query([])?, |_| true, read, |_| ())
}

fn pins(t: &Transaction<'_>) -> rusqlite::Result<Loaded<(String, Pin)>> {
    let mut select = t.prepare("SELECT owner, digest, text FROM image_pins")?;
    let read = |row: &Row<'_>| {
        let digest = digest(row, 1)?;
        let text = row.get(2)?;
        Ok((row.get(0)?, Pin { digest, text }))
    };
    aside::sort(&mut select.query([])?, |_| true, read, |_| ())
}

fn sources(t: &Transaction<'_>) -> rusqlite::Result<Loaded<(String, (Arrived, Validators))>> {
    let mut select =
        t.prepare("SELECT source, digest, etag, modified, content FROM image_sources")?;
    let read = |row: &Row<'_>| {
        let validators = Validators {
            etag: row.get(2)?,
            modified: row.get(3)?,
        };
        let digest = digest(row, 1)?;
        let content: Option<String> = row.get(4)?;
        let content = content.and_then(|text| text.parse().ok()).unwrap_or(digest);
        Ok((row.get(0)?, (Arrived { digest, content }, validators)))
    };
    aside::sort(&mut select.query([])?, |_| true, read, |_| ())
}

fn access(t: &Transaction<'_>) -> rusqlite::Result<Loaded<(Digest, Identity)>> {
    let mut select = t.prepare("SELECT digest, identity FROM image_access ORDER BY rowid")?;
    let read = |row: &Row<'_>| {
        let identity: String = row.get(1)?;
        Ok((digest(row, 0)?, identity.parse().map_err(decode(1))?))
    };
    aside::sort(&mut select.query([])?, |_| true, read, |_| ())
}

/// The key of this node; a new one if it was lost, with which every server is asked again.
fn key(t: &Transaction<'_>) -> rusqlite::Result<Key> {
    t.execute(
        "INSERT INTO image_access_key (key) SELECT randomblob(32) \
         WHERE NOT EXISTS (SELECT 1 FROM image_access_key)",
        [],
    )?;
    let select = "SELECT key FROM image_access_key ORDER BY rowid LIMIT 1";
    let bytes: Vec<u8> = t.query_row(select, [], |row| row.get(0))?;
    Ok(Key::new(&bytes))
}

pub(super) fn digest(row: &Row<'_>, column: usize) -> rusqlite::Result<Digest> {
    row.get::<_, String>(column)?
        .parse()
        .map_err(decode(column))
}

fn facts(size: i64, virtual_size: i64, format: &str) -> Option<Facts> {
    Some(Facts {
        size: size.try_into().ok()?,
        virtual_size: virtual_size.try_into().ok()?,
        format: format.parse().ok()?,
    })
}
