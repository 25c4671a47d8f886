//! Rows that this version cannot read.
//!
//! Invariant: such a row stays in its table, byte for byte, so that the version that wrote it, or a
//! repair, finds it again; no other row takes its key. What it may account for is never taken for
//! something without an owner: where even its key cannot be read, that is everything of its kind.
//! Failure: none; each start reports every such row, with its table, key and reason.

use std::fmt;
use std::str::FromStr;

/// Longest key and reason in messages, in bytes: both may quote the row.
const LONGEST: usize = 256;

/// What a table held.
#[derive(Debug)]
pub struct Loaded<R, T = ()> {
    /// The rows that can be read.
    pub rows: Vec<R>,
    /// The others.
    pub aside: Vec<Unread<T>>,
}

/// A row that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unread<T = ()> {
    /// Its key as it is stored.
    pub key: String,
    /// Whether the key can be read.
    pub is_named: bool,
    /// Why it cannot be read.
    pub reason: String,
    /// What could be made out all the same.
    pub trace: T,
}

/// Why a record is left as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "record {key:?} of table {table} cannot be read by this version and is left as it is, with all \
     that belongs to it: {reason}; start the version that wrote it, or see \"Unreadable records\" in \
     docs/operations.md"
)]
pub struct Unreadable {
    /// The table.
    pub table: &'static str,
    /// The row's key.
    pub key: String,
    /// Why it cannot be read.
    pub reason: String,
}

/// The rows of one table that cannot be read.
#[derive(Debug)]
pub struct Aside<T = ()> {
    table: &'static str,
    rows: Vec<Unread<T>>,
}

impl<T> Unread<T> {
    /// A row with this key, and why it cannot be read.
    pub fn new(key: &str, is_named: bool, reason: &impl fmt::Display, trace: T) -> Self {
        Self {
            key: shortened(key),
            is_named,
            reason: service::telemetry::bounded(&shortened(&reason.to_string())),
            trace,
        }
    }
}

impl<T> Default for Aside<T> {
    fn default() -> Self {
        Self {
            table: "",
            rows: Vec::new(),
        }
    }
}

impl<T> Aside<T> {
    /// Those of `table`, reported.
    pub(super) fn report(table: &'static str, rows: Vec<Unread<T>>) -> Self {
        for row in &rows {
            tracing::error!(table, key = ?row.key, error = row.reason, "unreadable record left as it is");
        }
        Self { table, rows }
    }

    /// All of them.
    pub fn rows(&self) -> &[Unread<T>] {
        &self.rows
    }

    /// The row with this key.
    pub fn get(&self, key: &str) -> Option<&Unread<T>> {
        self.rows.iter().find(|row| row.key == key)
    }

    /// Whether something with this key may belong to one of the rows.
    pub fn may_have(&self, key: &str) -> bool {
        self.get(key).is_some() || self.is_anonymous()
    }

    /// Whether there is a row whose key cannot be read: it may account for anything.
    pub fn is_anonymous(&self) -> bool {
        self.rows.iter().any(|row| !row.is_named)
    }

    /// The one whose key begins with `prefix`.
    pub(super) fn find(&self, prefix: &str) -> Option<&Unread<T>> {
        let mut rows = self.rows.iter();
        rows.find(|row| !prefix.is_empty() && row.key.starts_with(prefix))
    }

    /// Refuses what needs the row with this key, which is not among those that can be read: it may
    /// be one whose key cannot be read.
    pub fn refuse_missing(&self, key: &str) -> Result<(), Unreadable> {
        self.refuse(key)?;
        let mut rows = self.rows.iter();
        let anonymous = rows.find(|row| !row.is_named);
        anonymous.map_or(Ok(()), |row| Err(self.error(row)))
    }

    /// Refuses what needs the row with this key.
    pub fn refuse(&self, key: &str) -> Result<(), Unreadable> {
        self.get(key).map_or(Ok(()), |row| Err(self.error(row)))
    }

    /// The refusal of what needs this row.
    pub fn error(&self, row: &Unread<T>) -> Unreadable {
        Unreadable {
            table: self.table,
            key: row.key.clone(),
            reason: row.reason.clone(),
        }
    }
}

fn shortened(text: &str) -> String {
    text[..text.floor_char_boundary(LONGEST)].to_owned()
}

/// Reads each row with `read`. One that it refuses is set aside under the text of its first column,
/// with what `trace` makes out; `is_named` judges whether that text names it.
pub fn sort<R, T>(
    found: &mut rusqlite::Rows<'_>,
    is_named: impl Fn(&rusqlite::Row<'_>) -> bool,
    read: impl Fn(&rusqlite::Row<'_>) -> rusqlite::Result<R>,
    trace: impl Fn(&rusqlite::Row<'_>) -> T,
) -> rusqlite::Result<Loaded<R, T>> {
    let mut rows = Vec::new();
    let mut aside = Vec::new();
    while let Some(row) = found.next()? {
        match read(row) {
            Ok(one) => rows.push(one),
            Err(error) => {
                let trace = trace(row);
                aside.push(Unread::new(&text(row, 0), is_named(row), &error, trace));
            }
        }
    }
    Ok(Loaded { rows, aside })
}

/// Whether the first column holds a key of this kind.
pub fn has_key<K: FromStr>(row: &rusqlite::Row<'_>) -> bool {
    text(row, 0).parse::<K>().is_ok()
}

/// A column as text, whatever it holds.
pub fn text(row: &rusqlite::Row<'_>, column: usize) -> String {
    let value = row.get_ref(column).ok();
    let bytes = value.and_then(|value| value.as_bytes_or_null().ok().flatten());
    bytes.map_or_else(String::new, |bytes| {
        String::from_utf8_lossy(bytes).into_owned()
    })
}
