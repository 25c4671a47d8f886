//! Reads IDs, states and names from list and status replies, and cuts entries out of lists.
//!
//! Invariant: an entry is never taken apart further than these fields need; a list without an entry
//! keeps the bytes of all the others.
//! Failure: [`Malformed`]; an entry without a usable id has none and is skipped by those who learn.

use super::Kind;
use super::wire::{bytes_of, integer_of, put_bytes, text_of};
use crate::wire::{Malformed, fields};

/// Longest id or name that is learned, in bytes.
pub(super) const MAX_NAME: usize = 1024;

/// Number of the repeated field of every list answer, and of the status of every status answer.
pub(super) const ITEM: u32 = 1;

/// Number of the id in every entry and status.
pub(super) const ID: u32 = 1;

/// What matters of one entry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Entry {
    /// Its id, as the backend wrote it.
    pub(super) id: String,
    /// Its state; 0 where images have none.
    pub(super) state: u64,
    /// Uid of the pod, for sandboxes.
    pub(super) uid: Option<String>,
    /// Tags and digests, for images.
    pub(super) names: Vec<String>,
}

/// The number of the state field in list entries.
pub(super) const fn list_state(kind: Kind) -> Option<u32> {
    match kind {
        Kind::Sandbox => Some(3),
        Kind::Container => Some(6),
        Kind::Image => None,
    }
}

/// The number of the state field in statuses of sandboxes and containers.
pub(super) const STATUS_STATE: u32 = 3;

/// Every entry of a list answer.
pub(super) fn of_list(kind: Kind, response: &[u8]) -> Result<Vec<Entry>, Malformed> {
    let mut entries = Vec::new();
    for field in fields(response) {
        if let Some(item) = bytes_of(&field?, ITEM) {
            entries.push(entry(kind, list_state(kind), item)?);
        }
    }
    Ok(entries)
}

/// The object of a status answer; `None` when the answer has no status or that has no id.
pub(super) fn of_status(kind: Kind, response: &[u8]) -> Result<Option<Entry>, Malformed> {
    let mut status = Vec::new();
    for field in fields(response) {
        if let Some(part) = bytes_of(&field?, ITEM) {
            status.extend_from_slice(part);
        }
    }
    let entry = entry(kind, Some(STATUS_STATE), &status)?;
    Ok((!entry.id.is_empty()).then_some(entry))
}

/// How many entries a list answer has.
pub(super) fn count(response: &[u8]) -> usize {
    let entries = fields(response).map_while(Result::ok);
    entries.filter(|field| field.number == ITEM).count()
}

/// Whether a list answer has an entry of that id.
pub(super) fn mentions(response: &[u8], id: &str) -> bool {
    let is = |item| id_of(item).is_ok_and(|found| found == Some(id));
    fields(response).any(|field| field.is_ok_and(|field| bytes_of(&field, ITEM).is_some_and(is)))
}

/// The list answer without the entries of that id.
pub(super) fn without(response: &[u8], id: &str) -> Result<Vec<u8>, Malformed> {
    let mut kept = Vec::with_capacity(response.len());
    for field in fields(response) {
        let field = field?;
        let same = match bytes_of(&field, ITEM) {
            Some(item) => id_of(item)? == Some(id),
            None => false,
        };
        if !same {
            kept.extend_from_slice(field.raw);
        }
    }
    Ok(kept)
}

/// A list answer of one entry.
pub(super) fn list_of(item: &[u8]) -> Vec<u8> {
    let mut list = Vec::with_capacity(item.len() + 8);
    put_bytes(ITEM, item, &mut list);
    list
}

fn id_of(item: &[u8]) -> Result<Option<&str>, Malformed> {
    let mut id = None;
    for field in fields(item) {
        id = text_of(&field?, ID).or(id);
    }
    Ok(id)
}

fn entry(kind: Kind, state: Option<u32>, item: &[u8]) -> Result<Entry, Malformed> {
    let mut entry = Entry::default();
    for field in fields(item) {
        let field = field?;
        match (field.number, field.content) {
            (ID, Some(_)) => entry.id = text_of(&field, ID).and_then(usable).unwrap_or_default(),
            (2, Some(metadata)) if kind == Kind::Sandbox => entry.uid = uid(metadata)?,
            (number @ (2 | 3), Some(_)) if kind == Kind::Image => {
                entry.names.extend(text_of(&field, number).and_then(usable));
            }
            (number, None) if Some(number) == state => {
                entry.state = integer_of(&field, number).unwrap_or(entry.state);
            }
            _ => {}
        }
    }
    Ok(entry)
}

fn uid(metadata: &[u8]) -> Result<Option<String>, Malformed> {
    let mut uid = None;
    for field in fields(metadata) {
        uid = text_of(&field?, 2).and_then(usable).or(uid);
    }
    Ok(uid)
}

fn usable(name: &str) -> Option<String> {
    (!name.is_empty() && name.len() <= MAX_NAME).then(|| name.to_owned())
}
