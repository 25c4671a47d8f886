//! A release: everything that an installation needs under one version, in one folder.
//!
//! Invariant: the same parts and commit give the same bytes. The folder appears by one rename, when it is complete
//! and every image that chart and manifests name is in it.
//! Failure: names the part; an earlier release in the folder stays.

mod archive;
pub(crate) mod changelog;
mod pinned;
mod references;
mod sbom;
mod signature;
mod source;
mod sums;
mod tools;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Serialize;

pub(crate) use self::source::{Commit, Version};
pub(crate) use self::sums::compare;

use self::references::Other;
use self::sbom::Document;
use self::sums::Sums;
use self::tools::Build;
use crate::node_image::Lock;
use crate::oci::Archived;

/// What was used for the build.
const BUILD: &str = "build.json";
/// The Debian packages of the image.
const PACKAGES: &str = "debian-packages.lock";
const IMAGES: &str = "images.json";
const NOTES: &str = "RELEASE-NOTES.md";
const SBOM: &str = "sbom.cdx.json";

/// The finished parts of a release.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) version: Version,
    pub(crate) commit: Commit,
    /// What is new, in Markdown.
    pub(crate) notes: String,
    /// Whether programs have crash points.
    pub(crate) debug: bool,
    /// The archives of the images; the first is the node image.
    pub(crate) images: Vec<PathBuf>,
    /// The packages in the images.
    pub(crate) packages: Lock,
    /// Debian packages of our programs.
    pub(crate) debs: Vec<PathBuf>,
    /// Static programs.
    pub(crate) programs: Vec<PathBuf>,
}

/// The list of images.
#[derive(Debug, Serialize)]
struct Images {
    images: Vec<Image>,
    /// What optional parts name, and the release does not have.
    others: [Other; 2],
}

#[derive(Debug, Serialize)]
struct Image {
    reference: String,
    digest: String,
    file: String,
}

impl Parts {
    /// Writes the release; signs its digests with a key of the caller.
    pub(crate) fn write(&self, folder: &Path, key: Option<&Path>) -> Result<()> {
        if folder.exists() {
            ensure!(
                is_release(folder),
                "{} exists and is no release: choose another folder, or remove it",
                folder.display()
            );
        }
        let unfinished = folder.with_added_extension("new");
        if unfinished.exists() {
            fs::remove_dir_all(&unfinished)
                .with_context(|| format!("remove {}", unfinished.display()))?;
        }
        self.fill(&unfinished)?;
        Sums::measure(&unfinished)?.write(&unfinished)?;
        if let Some(key) = key {
            signature::write(key, &unfinished)?;
        }
        if folder.exists() {
            fs::remove_dir_all(folder).with_context(|| format!("remove {}", folder.display()))?;
        }
        fs::rename(&unfinished, folder).with_context(|| format!("rename to {}", folder.display()))
    }

    fn fill(&self, folder: &Path) -> Result<()> {
        let version = &self.version;
        for below in ["images", "packages", "programs"] {
            let folder = folder.join(below);
            fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
        }
        let archived = self.images.iter().map(|image| Archived::open(image));
        let archived = archived.collect::<Result<Vec<_>>>()?;
        let images = archived.iter().zip(&self.images);
        let images = images.map(|(image, archive)| self.add_image(image, archive, folder));
        let images = images.collect::<Result<Vec<_>>>()?;
        let digest = |image: &Archived| (image.name().to_owned(), image.digest.clone());
        let digests = archived.iter().map(digest).collect();
        let chart = pinned::chart(version, &digests)?;
        let manifests = pinned::manifests(&digests)?;
        references::check(&chart, &manifests, &digests)?;
        let time = self.commit.time;
        let place = folder.join(format!("vmlet-{version}.tgz"));
        archive::write(&chart, "vmlet", time, &place)?;
        let manifests_folder = format!("vmlet-manifests-{version}");
        let place = folder.join(format!("{manifests_folder}.tgz"));
        archive::write(&manifests, &manifests_folder, time, &place)?;

        for deb in &self.debs {
            copy(deb, &folder.join("packages").join(file_name(deb)), 0o644)?;
        }
        for program in &self.programs {
            let name = format!("{}-linux-amd64", file_name(program));
            copy(program, &folder.join("programs").join(name), 0o755)?;
        }
        let images = Images {
            images,
            others: references::OTHERS,
        };
        write_json(&folder.join(IMAGES), &images)?;
        let distribution = &self.packages.distribution;
        let document = Document::read(version, &self.commit, &archived, distribution)?;
        write_json(&folder.join(SBOM), &document)?;
        let build = Build::read(version, &self.commit, self.debug)?;
        write_json(&folder.join(BUILD), &build)?;
        let notes = format!("# Vmlet {version}\n\n{}\n", self.notes);
        write(&folder.join(NOTES), &notes)?;
        write(&folder.join(PACKAGES), &self.packages.to_string())
    }

    /// Copies an image into the release.
    fn add_image(&self, image: &Archived, archive: &Path, folder: &Path) -> Result<Image> {
        let short = image.name().rsplit('/').next().unwrap_or_default();
        let file = format!("images/{short}-{}.tar", self.version);
        copy(archive, &folder.join(&file), 0o644)?;
        Ok(Image {
            reference: image.reference.clone(),
            digest: image.digest.clone(),
            file,
        })
    }
}

/// Whether a folder has a release in it.
pub(crate) fn is_release(folder: &Path) -> bool {
    folder.join(sums::FILE).exists()
}

fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn copy(from: &Path, to: &Path, mode: u32) -> Result<()> {
    fs::copy(from, to).with_context(|| format!("copy {}", from.display()))?;
    let mode = fs::Permissions::from_mode(mode);
    fs::set_permissions(to, mode).with_context(|| format!("set the mode of {}", to.display()))
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("write {}", file.display()))
}

fn write_json(file: &Path, value: &impl Serialize) -> Result<()> {
    write(file, &(serde_json::to_string_pretty(value)? + "\n"))
}

#[cfg(test)]
mod tests;
