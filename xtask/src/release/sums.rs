//! `SHA256SUMS`: the digests of a release's files, as `sha256sum --check` reads them.
//!
//! Invariant: all files of the folder are in it, by their path, but the list itself and its signature.
//! Failure: names the file that cannot be read or written.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::{oci, text_files};

/// The name of the list in a release.
pub(crate) const FILE: &str = "SHA256SUMS";
/// The signature of the list.
pub(crate) const SIGNATURE: &str = "SHA256SUMS.sig";
/// Files whose lines say why others differ: what was used for the build.
const INPUTS: [&str; 2] = [super::BUILD, super::PACKAGES];

/// Digests by path.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Sums(BTreeMap<PathBuf, String>);

impl Sums {
    /// The sums of the files that are in a folder now.
    pub(crate) fn measure(folder: &Path) -> Result<Self> {
        let paths = text_files::paths(folder)?.into_iter();
        let of_others =
            paths.filter(|path| ![FILE, SIGNATURE].iter().any(|name| path == Path::new(name)));
        let measured = of_others.map(|path| {
            let digest = oci::sha256(&folder.join(&path))?;
            Ok((path, digest))
        });
        measured.collect::<Result<_>>().map(Self)
    }

    /// Writes the list into the folder.
    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        let lines = self.0.iter();
        let lines: String = lines
            .map(|(path, digest)| format!("{digest}  {}\n", path.display()))
            .collect();
        let file = folder.join(FILE);
        fs::write(&file, lines).with_context(|| format!("write {}", file.display()))
    }

    fn differences(&self, other: &Self) -> Vec<String> {
        let mut found = Vec::new();
        for (path, digest) in &self.0 {
            match other.0.get(path) {
                None => found.push(format!("{}: only in the first", path.display())),
                Some(other) if other == digest => {}
                Some(_) => found.push(format!("{}: differs", path.display())),
            }
        }
        let further = other.0.keys().filter(|path| !self.0.contains_key(*path));
        found.extend(further.map(|path| format!("{}: only in the second", path.display())));
        found
    }
}

/// What differs between the files of two builds, a line each; of inputs also which ones.
pub(crate) fn compare(first: &Path, second: &Path) -> Result<Vec<String>> {
    let mut found = Sums::measure(first)?.differences(&Sums::measure(second)?);
    for name in INPUTS {
        // The list above names a file that one of them does not have.
        let read = |folder: &Path| fs::read_to_string(folder.join(name)).unwrap_or_default();
        let of_first = read(first);
        let of_second = read(second);
        let only = lines_of_one(&of_first, &of_second);
        found.extend(only.map(|line| format!("{name}: first:  {line}")));
        let only = lines_of_one(&of_second, &of_first);
        found.extend(only.map(|line| format!("{name}: second: {line}")));
    }
    Ok(found)
}

fn lines_of_one<'a>(one: &'a str, other: &'a str) -> impl Iterator<Item = &'a str> {
    let is_shared = move |line: &str| other.lines().any(|other| other == line);
    let lines = one.lines().filter(move |line| !is_shared(line));
    lines.map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    #[test]
    fn the_list_is_what_sha256sum_checks() {
        let dir = folder(&[("b/c.deb", "c"), ("a", "a"), (SIGNATURE, "s")]);
        Sums::measure(dir.path())
            .unwrap()
            .write(dir.path())
            .unwrap();
        let text = fs::read_to_string(dir.path().join(FILE)).unwrap();
        assert_eq!(text.lines().count(), 2, "{text}");
        let check = || {
            let mut program = run::command("sha256sum");
            program.args(["--check", "--strict", FILE]);
            run::output(program.current_dir(dir.path()))
        };
        assert_eq!(check().unwrap(), "a: OK\nb/c.deb: OK\n");
        fs::write(dir.path().join("a"), "b").unwrap();
        assert!(check().is_err());
    }

    #[test]
    fn a_comparison_names_files_and_the_lines_of_inputs() {
        let build =
            |rustc: &str| format!("{{\n  \"commit\": \"1\",\n  \"rustc\": \"{rustc}\"\n}}\n");
        let first = folder(&[
            ("a", "a"),
            ("b", "b"),
            (super::super::BUILD, &build("1.95")),
        ]);
        let second = folder(&[
            ("a", "a"),
            ("c", "c"),
            (super::super::BUILD, &build("1.96")),
        ]);
        assert!(compare(first.path(), first.path()).unwrap().is_empty());
        let found = compare(first.path(), second.path()).unwrap();
        assert_eq!(
            found,
            [
                "b: only in the first",
                "build.json: differs",
                "c: only in the second",
                "build.json: first:  \"rustc\": \"1.95\"",
                "build.json: second: \"rustc\": \"1.96\"",
            ]
        );
    }
}
