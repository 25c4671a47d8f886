//! The messages of all log events are in `docs/observability.md`, and no others.
//!
//! Invariant: the sources are read, not the programs' output, so that rare events count, too.
//! Failure: the test names the messages that differ.

use std::collections::BTreeSet;
use std::path::Path;

use crate::workspace::root;

/// Folders with the sources of programs and libraries.
const SOURCES: [&str; 6] = [
    "src",
    "agent/src",
    "controller/src",
    "criproxy/src",
    "libs",
    "tapmanager/src",
];

const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

#[test]
fn every_log_message_is_documented() {
    let mut used = BTreeSet::new();
    for folder in SOURCES {
        collect(&root().join(folder), &mut used);
    }
    let page = std::fs::read_to_string(root().join("docs/observability.md")).unwrap();
    let rows = page.split("\n### ").skip(1).flat_map(str::lines);
    let first = |row: &str| Some(row.strip_prefix("| ")?.split(" | ").next()?.to_owned());
    let mut documented: BTreeSet<_> = rows.filter_map(first).collect();
    documented.retain(|message| message != "message" && message != "---");
    let missing: Vec<_> = used.difference(&documented).collect();
    let stale: Vec<_> = documented.difference(&used).collect();
    assert!(
        missing.is_empty() && stale.is_empty(),
        "not in docs/observability.md: {missing:?}; only there: {stale:?}"
    );
}

fn collect(path: &Path, found: &mut BTreeSet<String>) {
    let name = path
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    if path.is_dir() && name != "tests" {
        for entry in std::fs::read_dir(path).unwrap() {
            collect(&entry.unwrap().path(), found);
        }
    } else if name.ends_with(".rs") && name != "tests.rs" {
        let text = std::fs::read_to_string(path).unwrap();
        let text = text
            .split("#[cfg(test)]\nmod tests {")
            .next()
            .unwrap_or_default();
        for level in LEVELS {
            let macro_name = format!("tracing::{level}!(");
            found.extend(text.split(&macro_name).skip(1).filter_map(message));
        }
    }
}

/// The last string literal of a macro call that begins with `arguments`.
fn message(arguments: &str) -> Option<String> {
    let mut depth = 1_u32;
    let mut last = None;
    let mut literal = None::<String>;
    let mut characters = arguments.chars();
    while let Some(c) = characters.next() {
        match (&mut literal, c) {
            (Some(text), '\\') => text.extend(characters.next()),
            (Some(_), '"') => last = literal.take(),
            (Some(text), c) => text.push(c),
            (None, '"') => literal = Some(String::new()),
            (None, '(') => depth += 1,
            (None, ')') => depth -= 1,
            (None, _) => {}
        }
        if depth == 0 {
            return last;
        }
    }
    None
}
