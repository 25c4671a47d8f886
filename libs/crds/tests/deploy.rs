//! `deploy/crds/` is what the types say.
//!
//! Invariant: nobody edits these files by hand.
//! Failure: the names of files that differ; `cargo xtask crds` writes them anew.

#[path = "../examples/crds/render.rs"]
mod render;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

#[test]
fn the_manifests_of_the_kinds_are_up_to_date() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/crds");
    let found: BTreeMap<String, String> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name, fs::read_to_string(path).unwrap())
        })
        .collect();
    let wanted = render::files().unwrap();
    let names = found.keys().chain(wanted.keys());
    let stale: Vec<&String> = names
        .filter(|name| found.get(*name) != wanted.get(*name))
        .collect();
    assert!(stale.is_empty(), "run `cargo xtask crds`: {stale:?}");
}
