//! Every source file is part of a program, and every listed test of a whole stack exists.
//!
//! Invariant: a file without its `mod` line, whose tests would run nowhere, is found.
//! Failure: the files, or the tests.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::workspace::root;

/// Folders that hold no sources of ours.
const ELSEWHERE: [&str; 3] = ["target", ".git", "node_modules"];
/// Folders whose files are programs.
const OF_PROGRAMS: [&str; 4] = ["benches", "bin", "examples", "targets"];
/// Files that cargo finds by their names.
const ROOTS: [&str; 3] = ["build.rs", "lib.rs", "main.rs"];

/// The sources below a folder.
pub(crate) fn sources(folder: &Path, files: &mut BTreeSet<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && !path.is_symlink() && !ELSEWHERE.contains(&name) {
            sources(&path, files);
        } else if name.ends_with(".rs") {
            files.insert(path);
        }
    }
}

/// Whether cargo makes a program or a library of a file.
fn is_root(file: &Path) -> bool {
    let folder = file.parent().unwrap();
    let is_in = |name: &str| folder.file_name().is_some_and(|folder| folder == name);
    let has_manifest = folder.parent().unwrap().join("Cargo.toml").exists();
    ROOTS.iter().any(|root| file.ends_with(root))
        || OF_PROGRAMS.iter().any(|name| is_in(name))
        || is_in("tests") && has_manifest
}

/// The files that may declare the module of a file.
fn parents(file: &Path) -> Vec<PathBuf> {
    let mut folder = file.parent().unwrap();
    if file.ends_with("mod.rs") {
        folder = folder.parent().unwrap();
    }
    let inside = ["lib.rs", "main.rs", "mod.rs"].map(|name| folder.join(name));
    let mut parents = inside.to_vec();
    parents.push(folder.with_extension("rs"));
    parents
}

/// Whether a source declares a module whose content is in a file of its own.
fn declares(source: &str, module: &str) -> bool {
    source.lines().any(|line| {
        let line = line.trim_start();
        let line = match line.strip_prefix("pub") {
            Some(rest) if rest.starts_with('(') => rest.split_once(") ").map_or("", |(_, r)| r),
            Some(rest) => rest.trim_start(),
            None => line,
        };
        line.strip_prefix("mod ")
            .and_then(|rest| rest.split_once(';'))
            .is_some_and(|(name, _)| name == module)
    })
}

#[test]
fn every_source_file_is_a_module_of_some_program() {
    let mut files = BTreeSet::new();
    sources(&root(), &mut files);
    assert!(
        files.len() > 1_000,
        "only {} sources are found",
        files.len()
    );
    let is_orphan = |file: &&PathBuf| {
        let stem = if file.ends_with("mod.rs") {
            file.parent().unwrap().file_name()
        } else {
            file.file_stem()
        };
        let module = stem.unwrap().to_str().unwrap();
        let is_declared = |parent: &PathBuf| {
            let source = fs::read_to_string(parent).unwrap_or_default();
            declares(&source, module)
        };
        !is_root(file) && !parents(file).iter().any(is_declared)
    };
    let orphans: Vec<_> = files.iter().filter(is_orphan).collect();
    assert_eq!(orphans, Vec::<&PathBuf>::new(), "no `mod` line names them");
}

#[test]
fn comments_and_longer_names_declare_no_module() {
    for code in [
        "mod place;",
        "    pub mod place;",
        "#[cfg(test)]\npub(crate) mod place;",
        "pub(in crate::x) mod place; // why",
    ] {
        assert!(declares(code, "place"), "{code}");
    }
    for code in ["// mod place;", "mod places;", "mod place {", "use place;"] {
        assert!(!declares(code, "place"), "{code}");
    }
}

/// Before anything is built: a test that was renamed or removed is one of the list no more.
#[test]
fn every_listed_test_of_a_whole_stack_is_in_the_sources() {
    let list = fs::read_to_string(root().join("tests/manifest.tsv")).unwrap();
    let mut files = BTreeSet::new();
    sources(&root().join("tests/e2e/tests"), &mut files);
    let sources: String = files
        .iter()
        .map(|file| fs::read_to_string(file).unwrap())
        .collect();
    let listed = list.lines().filter_map(|line| line.split_once('\t'));
    let of_stacks = listed.filter(|(name, _)| {
        let program = name.split_once("::").map(|(program, _)| program);
        program.is_some_and(|program| ["stacks", "api", "clusters"].contains(&program))
    });
    let names: Vec<_> = of_stacks.map(|(name, _)| name).collect();
    assert!(names.len() > 100, "{names:?}");
    for name in names {
        let function = name.rsplit("::").next().unwrap();
        let is_there = sources.contains(&format!("fn {function}("));
        assert!(is_there, "{name}: run `cargo xtask manifest`");
    }
}
