//! `deploy/crds/` and the ends of `docs/kinds/*.md` are what the types say.
//!
//! Invariant: the files are generated and never edited by hand.
//! Failure: the names of files that differ; `cargo xtask crds` writes them again.

#[path = "../../examples/crds/pages.rs"]
mod pages;
#[path = "../../examples/crds/render.rs"]
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

#[test]
fn the_pages_of_the_kinds_show_all_fields() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/kinds");
    for (name, wanted) in pages::pages(&folder).unwrap() {
        let found = fs::read_to_string(folder.join(&name)).unwrap();
        assert!(found == wanted, "run `cargo xtask crds`: docs/kinds/{name}");
    }
}
