//! The inputs in `fuzz/corpus`, as ordinary tests.
//!
//! Invariant: every check has a target and inputs, and there are no others.
//! Failure: the panic of a check, after the name of its input.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;
use std::path::Path;

fn names(folder: &str, suffix: &str) -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz")
        .join(folder);
    let entries = std::fs::read_dir(&folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names
        .map(|name| name.strip_suffix(suffix).unwrap().to_owned())
        .collect()
}

#[test]
fn every_input_of_the_corpus_passes_its_check() {
    let checks: BTreeSet<_> = fuzzchecks::CHECKS
        .iter()
        .map(|(name, _)| (*name).to_owned())
        .collect();
    assert_eq!(names("corpus", ""), checks);
    assert_eq!(names("targets", ".rs"), checks);
    for (name, check) in fuzzchecks::CHECKS {
        let folder = format!("corpus/{name}");
        let inputs = names(&folder, "");
        assert!(inputs.len() > 2, "{name} has few inputs");
        for input in inputs {
            let path = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("../../fuzz")
                .join(&folder);
            println!("{name}: {input}");
            check(&std::fs::read(path.join(input)).unwrap());
        }
    }
}
