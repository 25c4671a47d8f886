//! The packages of the workspace and what they are built of.
//!
//! Invariant: what a package needs for its tests alone affects its tests, and nothing that is built of it.
//! Failure: cargo does not answer, or in another format.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::{run, workspace};

/// What the package in the top folder has; all others are below that folder.
const OF_TOP: [&str; 3] = ["src/", "benches/", "proptest-regressions/"];
/// Test programs of that package are files in this folder.
const TESTS_OF_TOP: &str = "tests/";

/// The packages.
#[derive(Debug)]
pub(super) struct Packages(Vec<Package>);

#[derive(Debug)]
struct Package {
    name: String,
    /// Relative to the top folder, with a slash at its end; empty for that itself.
    folder: String,
    /// Folders of packages that it is built of.
    built_of: BTreeSet<String>,
    /// Those that its tests need.
    tested_with: BTreeSet<String>,
}

/// What depends on a package.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Affected<'a> {
    /// What is built of it, itself included.
    pub(super) built: BTreeSet<&'a str>,
    /// What only has tests that need one of them.
    pub(super) tested: BTreeSet<&'a str>,
}

/// What cargo prints, of it what we use.
#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Described>,
    workspace_root: PathBuf,
}

#[derive(Debug, Deserialize)]
struct Described {
    name: String,
    manifest_path: PathBuf,
    dependencies: Vec<Dependency>,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    /// `dev`, `build`, or nothing for what is linked.
    kind: Option<String>,
    /// Of a package of ours.
    path: Option<PathBuf>,
}

impl Packages {
    /// Those of this workspace.
    pub(super) fn read() -> Result<Self> {
        let mut cargo = workspace::cargo();
        cargo.args(["metadata", "--no-deps", "--offline", "--format-version=1"]);
        Self::parse(&run::output(&mut cargo)?)
    }

    /// Those that `cargo metadata` has printed.
    pub(super) fn parse(printed: &str) -> Result<Self> {
        let metadata: Metadata =
            serde_json::from_str(printed).context("read what cargo metadata prints")?;
        let root = &metadata.workspace_root;
        let packages = metadata.packages.into_iter();
        Ok(Self(packages.map(|one| one.package(root)).collect()))
    }

    /// The package that a file is a part of.
    pub(super) fn owner(&self, file: &str) -> Option<&str> {
        let below = self.0.iter().filter(|package| package.has(file));
        let nearest = below.max_by_key(|package| package.folder.len());
        nearest.map(|package| package.name.as_str())
    }

    #[cfg(test)]
    pub(super) fn contains(&self, name: &str) -> bool {
        self.0.iter().any(|package| package.name == name)
    }

    /// What depends on a package.
    pub(super) fn affected<'a>(&'a self, package: &'a str) -> Affected<'a> {
        let mut built = BTreeSet::new();
        let mut ahead = vec![package];
        while let Some(name) = ahead.pop() {
            if built.insert(name) {
                ahead.extend(self.dependents(name, |package| &package.built_of));
            }
        }
        let tested = built.iter();
        let tested = tested.flat_map(|name| self.dependents(name, |package| &package.tested_with));
        let tested = tested.filter(|name| !built.contains(name)).collect();
        Affected { built, tested }
    }

    /// The packages that have this one among those.
    fn dependents<'a>(
        &'a self,
        name: &str,
        those: fn(&Package) -> &BTreeSet<String>,
    ) -> impl Iterator<Item = &'a str> {
        let found = self.0.iter().find(|package| package.name == name);
        let folder = found.map(|package| package.folder.clone());
        let all = self.0.iter();
        all.filter(move |package| {
            folder
                .as_ref()
                .is_some_and(|one| those(package).contains(one))
        })
        .map(|package| package.name.as_str())
    }
}

impl Package {
    fn has(&self, file: &str) -> bool {
        if !self.folder.is_empty() {
            return file.starts_with(&self.folder);
        }
        let test = file.strip_prefix(TESTS_OF_TOP);
        test.is_some_and(|name| name.ends_with(".rs") && !name.contains('/'))
            || OF_TOP.iter().any(|folder| file.starts_with(folder))
    }
}

impl Described {
    fn package(self, root: &Path) -> Package {
        let is_dev = |dependency: &&Dependency| dependency.kind.as_deref() == Some("dev");
        let folders = |dependency: &Dependency| Some(folder(dependency.path.as_deref()?, root));
        let all = &self.dependencies;
        Package {
            built_of: all
                .iter()
                .filter(|one| !is_dev(one))
                .filter_map(folders)
                .collect(),
            tested_with: all.iter().filter(is_dev).filter_map(folders).collect(),
            folder: folder(self.manifest_path.parent().unwrap_or(root), root),
            name: self.name,
        }
    }
}

fn folder(path: &Path, root: &Path) -> String {
    let relative = path.strip_prefix(root).unwrap_or(path).to_string_lossy();
    if relative.is_empty() {
        return String::new();
    }
    format!("{relative}/")
}
