//! The searches for leaks know every folder of the daemon's state.
//!
//! Invariant: a folder that the daemon makes below its state directory is searched after each test, or
//! outlives pods for a reason that is named here.
//! Failure: the folders that nothing searches.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use crate::sources::sources;
use crate::workspace::root;

/// How the daemon's sources name what is directly below its state directory.
const STATE: [&str; 2] = ["state.join(\"", "state_dir.join(\""];

/// What belongs to no pod, and why.
const STAYS: [(&str, &str); 4] = [
    (
        "exports",
        "copies for clients, which the next start removes",
    ),
    (
        "images",
        "files of images, which the cache keeps; downloads are searched",
    ),
    ("lock", "the lock of the running daemon"),
    ("vmlet.db", "the database, whose rows are counted"),
];

/// Disks are those of virtual machines, which outlive their nodes' stacks in some tests.
const OF_MACHINES: &str = "disks";

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap()
}

/// The names directly below the state directory.
fn names() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut files = BTreeSet::new();
    sources(&root().join("src"), &mut files);
    let is_of_tests = |path: &PathBuf| {
        let path = path.to_string_lossy();
        path.contains("tests") || path.contains("testkit")
    };
    files.retain(|file| !is_of_tests(file));
    for source in files {
        let source = fs::read_to_string(source).unwrap();
        for call in STATE {
            let found = source.split(call).skip(1);
            names.extend(found.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())));
        }
    }
    names
}

#[test]
fn every_folder_of_the_state_directory_is_searched_for_leaks() {
    let live = read("tests/e2e/src/leftovers.rs");
    let down = read("xtask/src/stack/leaks/files.rs");
    let names = names();
    assert!(names.len() >= 9, "{names:?}");
    let stays = STAYS.map(|(name, _)| name);
    for name in names.iter().filter(|name| !stays.contains(&name.as_str())) {
        let searched = format!("\"state/{name}\"");
        assert!(live.contains(&searched), "{name}");
        assert!(name == OF_MACHINES || down.contains(&searched), "{name}");
    }
    // One that was renamed is searched in vain.
    for name in stays {
        assert!(names.contains(name), "{name} is gone");
    }
    for list in [&live, &down] {
        for (_, rest) in list
            .match_indices("\"state/")
            .map(|(at, _)| list.split_at(at + 7))
        {
            let name = rest.split(['"', '/']).next().unwrap();
            // The tapmanager's journal, whose place its configuration names.
            let known = name == "network" || names.contains(name);
            assert!(known, "the daemon has no {name}");
        }
    }
}

/// Downloads are in a folder of their own below the images, and two searches know how they are named.
#[test]
fn downloads_have_the_names_that_the_searches_know() {
    let store = read("src/images/store.rs");
    let partial = read("src/images/partial.rs");
    let folder = between(&store, "partial: dir.join(\"", "\"");
    let part = between(&partial, "const PART: &str = \"", "\"");
    let note = between(&partial, "const NOTE: &str = \"", "\"");
    for search in [
        "tests/e2e/src/leftovers.rs",
        "xtask/src/stack/leaks/files.rs",
    ] {
        let search = read(search);
        for line in [
            format!("const DOWNLOADS: &str = \"state/images/{folder}\";"),
            format!("const PART: &str = \"{part}\";"),
            format!("const NOTE: &str = \"{note}\";"),
        ] {
            assert!(search.contains(&line), "{line}");
        }
    }
}

fn between<'a>(text: &'a str, begin: &str, end: &str) -> &'a str {
    let rest = text.split_once(begin).expect(begin).1;
    rest.split_once(end).expect(end).0
}
