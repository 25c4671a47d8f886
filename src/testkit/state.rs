//! Nodes as other versions left them: `tests/fixtures/state` has one of each.
//!
//! Invariant: what the functions of [`records`] return is what the writer has written with the
//! stores of its version, and what is to be read; values that differ between two runs of the writer
//! are in no record that is compared.
//! Failure: a record of an earlier version that this one reads otherwise, loses, or acts on.

mod garbled;
mod read;
mod records;
mod write;

use std::fs;
use std::path::{Path, PathBuf};

use records::*;

/// The fixtures of all versions.
fn versions() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/state");
    let all = fs::read_dir(root).unwrap();
    let all = all.map(|entry| entry.unwrap().path().join("node"));
    let all: Vec<_> = all.filter(|path| path.is_dir()).collect();
    assert!(!all.is_empty());
    all
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let place = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &place);
        } else if path.is_file() {
            fs::copy(&path, &place).unwrap();
        }
    }
}

/// Everything below a directory but the database and what is no file, with its content.
fn tree(root: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    let mut left = vec![root.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                left.push(path);
            } else if path.is_file() && !path.to_string_lossy().contains("vmlet.db") {
                let content = fs::read(&path).unwrap();
                all.push((path, content));
            }
        }
    }
    all.sort();
    all
}
