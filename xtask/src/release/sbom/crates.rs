//! Crates in our programs, as cargo resolves them for a release.
//!
//! Invariant: a crate that a program links is required; one that only builds it is excluded. Crates of tests are
//! not there.
//! Failure: cargo's message.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::{Component, Kind, License, Parts, Scope, encoded};
use crate::commands::build;
use crate::{run, workspace};

/// What `cargo metadata` prints, of it what we use.
#[derive(Debug, Deserialize)]
pub(super) struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Debug, Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    source: Option<String>,
    license: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Node {
    id: String,
    deps: Vec<Edge>,
}

#[derive(Debug, Deserialize)]
struct Edge {
    pkg: String,
    dep_kinds: Vec<EdgeKind>,
}

#[derive(Debug, Deserialize)]
struct EdgeKind {
    /// `dev`, `build`, or nothing for what is linked.
    kind: Option<String>,
}

/// `Cargo.lock`, of it what we use.
#[derive(Debug, Deserialize)]
struct LockFile {
    package: Vec<Locked>,
}

#[derive(Debug, Deserialize)]
struct Locked {
    name: String,
    version: String,
    checksum: Option<String>,
}

impl Edge {
    fn links(&self) -> bool {
        self.dep_kinds.iter().any(|kind| kind.kind.is_none())
    }

    fn builds(&self) -> bool {
        let is_build = |kind: &EdgeKind| kind.kind.as_deref() == Some("build");
        self.links() || self.dep_kinds.iter().any(is_build)
    }
}

impl Package {
    fn component(&self, checksums: &BTreeMap<(String, String), String>) -> Component {
        let version = &self.version;
        let checksum = checksums.get(&(self.name.clone(), version.clone()));
        let mut component = match &self.source {
            Some(_) => {
                let purl = format!("pkg:cargo/{}@{}", self.name, encoded(version));
                Component::known(Kind::Library, purl, &self.name, version)
            }
            // Crates of ours are in no registry, where another one may have the name.
            None => {
                let reference = format!("vmlet:{}@{version}", self.name);
                Component::new(Kind::Library, reference, &self.name, version)
            }
        };
        let licenses = self.license.iter().map(|license| License {
            expression: license.replace('/', " OR "),
        });
        component.licenses.extend(licenses);
        component.with_sha256(checksum.map(String::as_str))
    }
}

impl Metadata {
    /// The crates of the workspace and of all that it needs.
    fn read() -> Result<Self> {
        let mut cargo = workspace::cargo();
        cargo.args(["metadata", "--locked", "--format-version", "1"]);
        cargo.args(["--filter-platform", "x86_64-unknown-linux-gnu"]);
        cargo.args(
            build::EVERYWHERE
                .iter()
                .flat_map(|name| ["--features", name]),
        );
        let printed = run::output(&mut cargo)?;
        serde_json::from_str(&printed).context("read what cargo metadata prints")
    }

    /// The crates that can be reached from these by dependencies of a kind.
    fn reached<'a>(&'a self, roots: &[&'a str], kind: fn(&Edge) -> bool) -> BTreeSet<&'a str> {
        let nodes = self.resolve.nodes.iter();
        let nodes: BTreeMap<_, _> = nodes.map(|node| (node.id.as_str(), node)).collect();
        let mut reached = BTreeSet::new();
        let mut ahead = roots.to_vec();
        while let Some(id) = ahead.pop() {
            if reached.insert(id) {
                let edges = nodes
                    .get(id)
                    .copied()
                    .into_iter()
                    .flat_map(|node| &node.deps);
                let edges = edges.filter(|edge| kind(edge));
                ahead.extend(edges.map(|edge| edge.pkg.as_str()));
            }
        }
        reached
    }

    /// Adds what the programs of these packages are made of; returns the references of the packages.
    pub(super) fn add(
        &self,
        programs: &[&str],
        checksums: &BTreeMap<(String, String), String>,
        parts: &mut Parts,
    ) -> Result<Vec<String>> {
        let ids = programs.iter().map(|name| {
            let is_it = |package: &&Package| package.name == *name && package.source.is_none();
            let package = self.packages.iter().find(is_it);
            let package = package.with_context(|| format!("no package {name}"))?;
            Ok(package.id.as_str())
        });
        let ids = ids.collect::<Result<Vec<_>>>()?;
        let linked = self.reached(&ids, Edge::links);
        let all = self.reached(&ids, Edge::builds);
        let packages = self.packages.iter();
        let packages = packages.filter(|package| all.contains(package.id.as_str()));
        let components: BTreeMap<&str, Component> = packages
            .map(|package| (package.id.as_str(), package.component(checksums)))
            .collect();
        let edges = self.resolve.nodes.iter();
        let edges: BTreeMap<&str, &Vec<Edge>> =
            edges.map(|node| (node.id.as_str(), &node.deps)).collect();
        let reference = |id: &str| components.get(id).map(|found| found.reference.clone());
        for (id, component) in &components {
            let mut component = component.clone();
            if ids.contains(id) {
                component.kind = Kind::Application;
            }
            component.scope = (!linked.contains(id)).then_some(Scope::Excluded);
            let needs = edges.get(id).into_iter().copied().flatten();
            let needs = needs.filter(|edge| edge.builds());
            parts.add(component, needs.filter_map(|edge| reference(&edge.pkg)));
        }
        Ok(ids.iter().filter_map(|id| reference(id)).collect())
    }
}

/// Adds the crates of all programs of a release; returns the references of the programs.
pub(super) fn add(parts: &mut Parts) -> Result<Vec<String>> {
    let lock = workspace::root().join("Cargo.lock");
    let text = fs::read_to_string(&lock).with_context(|| format!("read {}", lock.display()))?;
    Metadata::read()?.add(&build::released(), &checksums(&text)?, parts)
}

fn checksums(lock: &str) -> Result<BTreeMap<(String, String), String>> {
    let lock: LockFile = toml::from_str(lock).context("read Cargo.lock")?;
    let packages = lock.package.into_iter();
    let known = packages.filter_map(|package| {
        let checksum = package.checksum?;
        Some(((package.name, package.version), checksum))
    });
    Ok(known.collect())
}
