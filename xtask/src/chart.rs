//! What the Helm chart takes from the manifests of `deploy/`: copies, since a chart reads only files
//! in its own folder.
//!
//! Invariant: a copy has the bytes of its manifest. What `deploy/kustomization.yaml` lists is in the
//! chart; folders of copies have nothing else.
//! Failure: names the file that cannot be read or written.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::text_files::{self, TextFiles};
use crate::workspace;

/// Folders of the chart that have copies only.
const FOLDERS: [&str; 2] = ["crds", "files"];
/// Manifests that an installation has by its own decision, by their path in `deploy/`.
const OPTIONS: [&str; 5] = [
    "agent/sources.yaml",
    "prometheus/podmonitor.yaml",
    "prometheus/scrape/daemonset.yaml",
    "prometheus/scrape/serviceaccount.yaml",
    "prometheus/vmlet-rules.yaml",
];
/// Helm creates the namespace, or finds it.
const NAMESPACE: &str = "namespace.yaml";
/// Helm creates them before all else, and never deletes them.
const KINDS: &str = "crds";

/// Files by their path in the chart.
type Files = TextFiles;

/// The folder of the chart.
pub(crate) fn folder() -> PathBuf {
    deploy().join("chart")
}

/// Writes the copies, and removes what is none.
pub(crate) fn write() -> Result<()> {
    let wanted = copies()?;
    for path in present()?.into_keys() {
        if !wanted.contains_key(&path) {
            let path = folder().join(path);
            fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?;
        }
    }
    for (path, text) in wanted {
        let path = folder().join(path);
        let parent = path.parent().unwrap_or(&path);
        fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))?;
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

/// What the folders of copies contain when they are up to date.
fn copies() -> Result<Files> {
    let mut files = Files::new();
    let kustomization = read("kustomization.yaml")?;
    for name in listed(&kustomization, "resources:", "  - ") {
        match name {
            NAMESPACE => {}
            KINDS => add_folder(&mut files, KINDS, Path::new(KINDS))?,
            folder if deploy().join(folder).is_dir() => {
                add_folder(&mut files, folder, &Path::new("files/base").join(folder))?;
            }
            file => add(&mut files, "files/base", file)?,
        }
    }
    for name in listed(&kustomization, "configMapGenerator:", "      - ") {
        add(&mut files, "files/settings", name)?;
    }
    for name in OPTIONS {
        add(&mut files, "files/options", name)?;
    }
    Ok(files)
}

fn add(files: &mut Files, folder: &str, name: &str) -> Result<()> {
    files.insert(Path::new(folder).join(name), read(name)?);
    Ok(())
}

/// Adds what the kustomization of a folder of `deploy/` lists.
fn add_folder(files: &mut Files, folder: &str, place: &Path) -> Result<()> {
    let kustomization = read(&format!("{folder}/kustomization.yaml"))?;
    for name in listed(&kustomization, "resources:", "  - ") {
        files.insert(place.join(name), read(&format!("{folder}/{name}"))?);
    }
    Ok(())
}

/// Items with this indentation below a key of the top level.
fn listed<'a>(text: &'a str, key: &str, indentation: &str) -> Vec<&'a str> {
    let below = text.lines().skip_while(|line| *line != key).skip(1);
    let below = below.take_while(|line| line.starts_with(' '));
    below
        .filter_map(|line| line.strip_prefix(indentation))
        .collect()
}

/// What the folders of copies contain now.
fn present() -> Result<Files> {
    let mut files = Files::new();
    for name in FOLDERS {
        let found = text_files::below(&folder().join(name))?;
        let found = found.into_iter();
        files.extend(found.map(|(path, text)| (Path::new(name).join(path), text)));
    }
    Ok(files)
}

fn read(name: &str) -> Result<String> {
    let path = deploy().join(name);
    fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
}

/// The folder of the manifests.
pub(crate) fn deploy() -> PathBuf {
    workspace::root().join("deploy")
}

#[cfg(test)]
mod tests;
