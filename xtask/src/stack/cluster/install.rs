//! Installs our kinds, our policies and the rights of our programs, from `deploy/`.
//!
//! Invariant: what is applied is what operators apply; only the workloads are left out, since they
//! run as processes here. One kubectl does all of it: each one first reads what the API server has.
//! Failure: kubectl's own message, or a kustomization that does more than to list files.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;

use super::{Node, commands};
use crate::{run, workspace};

/// Folders whose kustomizations list what belongs to them.
const LISTS: [&str; 2] = ["crds", "admission"];

/// What follows.
const FILES: [&str; 5] = [
    "namespace.yaml",
    "users.yaml",
    "controller/serviceaccount.yaml",
    "agent/serviceaccount.yaml",
    "agent/node-limits.yaml",
];

/// A kustomization that changes nothing of what it lists.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kustomization {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    resources: Vec<String>,
}

/// Applies all of it.
pub(super) fn kinds_and_rights(node: &Node) -> Result<()> {
    let mut kubectl = commands::kubectl(node);
    kubectl.args(["apply", "--server-side"]);
    for file in files(&workspace::root().join("deploy"))? {
        kubectl.arg("--filename").arg(file);
    }
    run::output(&mut kubectl)
        .map(drop)
        .context("install kinds, policies and rights")
}

fn files(deploy: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for list in LISTS {
        let folder = deploy.join(list);
        let path = folder.join("kustomization.yaml");
        let read = || format!("read {}", path.display());
        let text = fs::read_to_string(&path).with_context(read)?;
        let list: Kustomization = serde_saphyr::from_str(&text).with_context(read)?;
        files.extend(list.resources.iter().map(|name| folder.join(name)));
    }
    files.extend(FILES.iter().map(|name| deploy.join(name)));
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_manifest_of_the_listed_folders_is_applied() {
        let deploy = workspace::root().join("deploy");
        let found = files(&deploy).unwrap();
        for folder in LISTS {
            for entry in fs::read_dir(deploy.join(folder)).unwrap() {
                let path = entry.unwrap().path();
                assert!(
                    path.ends_with("kustomization.yaml") || found.contains(&path),
                    "{path:?}"
                );
            }
        }
        assert!(found.iter().all(|file| file.is_file()), "{found:?}");
    }

    #[test]
    fn a_kustomization_that_changes_objects_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        for folder in LISTS {
            let folder = dir.path().join(folder);
            fs::create_dir(&folder).unwrap();
            let text = "apiVersion: v1\nkind: Kustomization\nresources: [a.yaml]\nnamePrefix: x\n";
            fs::write(folder.join("kustomization.yaml"), text).unwrap();
        }
        assert!(files(dir.path()).is_err());
    }
}
