//! What `image pull` writes to `spec.prePull`.
//!
//! Invariant: a request replaces the previous one as a whole; it is written to the object that was
//! read, never to another one of its name.
//! Failure: a selector that is no list of labels, before any request.

use std::collections::BTreeMap;

use crds::PrePull;
use serde_json::{Value, json};

const LABEL: usize = 63;
const PREFIX: usize = 253;

/// Labels of nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Selector(pub(super) BTreeMap<String, String>);

/// What is requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Request {
    Pull(PrePull),
    Stop,
}

impl Request {
    /// Without labels all nodes are meant.
    pub(super) fn for_nodes(nodes: Option<&Selector>, stop: bool) -> Self {
        if stop {
            return Self::Stop;
        }
        let node_selector = nodes.map(|nodes| nodes.0.clone());
        Self::Pull(PrePull {
            node_selector: node_selector.unwrap_or_default(),
        })
    }

    /// As a JSON patch of the image with this UID; none when there is nothing to do.
    pub(super) fn patch(&self, uid: &str, present: Option<&PrePull>) -> Option<Value> {
        let operation = match self {
            Self::Pull(wanted) if present == Some(wanted) => return None,
            Self::Pull(wanted) => json!({ "op": "add", "path": "/spec/prePull", "value": wanted }),
            Self::Stop => {
                present?;
                json!({ "op": "remove", "path": "/spec/prePull" })
            }
        };
        let test = json!({ "op": "test", "path": "/metadata/uid", "value": uid });
        Some(json!([test, operation]))
    }
}

/// A selector of the form `key=value[,key=value]`.
pub(super) fn selector(text: &str) -> Result<Selector, String> {
    let mut labels = BTreeMap::new();
    for part in text.split(',') {
        let (key, value) = part.split_once('=').ok_or_else(|| {
            format!(
                "{part:?} is not a label: a selector such as pool=db or pool=db,zone=a is needed"
            )
        })?;
        if !is_key(key) {
            return Err(format!("{key:?} is not the key of a label"));
        }
        if !value.is_empty() && !is_word(value) {
            return Err(format!("{value:?} is not the value of a label"));
        }
        if labels.insert(key.to_owned(), value.to_owned()).is_some() {
            return Err(format!("the label {key} is in the selector twice"));
        }
    }
    Ok(Selector(labels))
}

fn is_key(text: &str) -> bool {
    match text.split_once('/') {
        Some((prefix, name)) => {
            let is_prefix =
                |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b".-".contains(&b);
            let is_bounded = (1..=PREFIX).contains(&prefix.len());
            is_bounded && prefix.bytes().all(is_prefix) && is_word(name)
        }
        None => is_word(text),
    }
}

fn is_word(text: &str) -> bool {
    let ends = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    let mut all = bytes.iter();
    bytes.len() <= LABEL
        && ends(bytes.first())
        && ends(bytes.last())
        && all.all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b))
}
