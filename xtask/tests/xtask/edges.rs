//! The allowed dependencies among our own crates.
//!
//! Invariant: `tests/fixtures/edges.txt` lists every edge; a new one is a decision, not an
//! accident.
//! Failure: the test shows the edges that are not in the list and those that are only in the list.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde::Deserialize;

use crate::workspace::{metadata, root};

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
    path: Option<PathBuf>,
}

/// Lines such as `vmlet -> libvirt`, with the kind behind it for build and test dependencies.
fn edges(metadata: &Metadata) -> BTreeSet<String> {
    let mut edges = BTreeSet::new();
    for package in &metadata.packages {
        for dependency in package
            .dependencies
            .iter()
            .filter(|dependency| dependency.path.is_some())
        {
            let kind = dependency
                .kind
                .as_ref()
                .map(|kind| format!(" ({kind})"))
                .unwrap_or_default();
            edges.insert(format!("{} -> {}{kind}", package.name, dependency.name));
        }
    }
    edges
}

#[test]
fn our_crates_depend_on_each_other_only_as_listed() {
    let found = edges(&metadata());

    let list = std::fs::read_to_string(root().join("tests/fixtures/edges.txt")).unwrap();
    let listed: BTreeSet<String> = list
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(str::to_owned)
        .collect();

    let new: Vec<_> = found.difference(&listed).collect();
    let gone: Vec<_> = listed.difference(&found).collect();
    assert!(
        new.is_empty() && gone.is_empty(),
        "not in edges.txt: {new:?}; only in edges.txt: {gone:?}"
    );
}

#[test]
fn no_library_depends_on_a_program() {
    let list = std::fs::read_to_string(root().join("tests/fixtures/edges.txt")).unwrap();
    let programs = ["criproxy", "vmlet", "vmletctl", "vmwrapper", "xtask"];
    // A crate of tests, as the tests of a program are: nothing depends on it. It calls the readers
    // of strangers' bytes, which are in the programs' libraries.
    let tests = ["fuzzchecks"];
    for line in list.lines().filter(|line| !line.starts_with('#')) {
        let Some((from, to)) = line.split_once(" -> ") else {
            continue;
        };
        assert!(!tests.iter().any(|name| to.starts_with(name)), "{line}");
        if tests.contains(&from) {
            continue;
        }
        let to = to.split(' ').next().unwrap_or_default();
        assert!(!programs.contains(&to), "{line}");
    }
}
