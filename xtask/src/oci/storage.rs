//! Writes images into the storage of a registry, as the program `docker-registry` keeps them in a
//! file system.
//!
//! Invariant: a registry that is started on the storage afterwards serves every image by its tag and
//! by its digest.
//! Failure: names the file that cannot be read or written.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::archive::{CONFIG, MANIFEST};
use super::blob::Blob;
use super::tree::Tree;

/// A layer that is not compressed.
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
/// The configuration of an artifact, which has none.
const EMPTY: &str = "application/vnd.oci.empty.v1+json";
/// A file of no particular kind.
const FILE: &str = "application/octet-stream";

/// The storage of a registry.
#[derive(Debug)]
pub(crate) struct Storage {
    dir: PathBuf,
    scratch: PathBuf,
}

impl Storage {
    /// A new storage in `dir`.
    pub(crate) fn create(dir: &Path) -> Result<Self> {
        let storage = Self {
            dir: dir.join("docker/registry/v2"),
            scratch: dir.join("scratch"),
        };
        for folder in [&storage.dir, &storage.scratch] {
            fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
        }
        Ok(storage)
    }

    /// Adds an image with one layer, whose configuration names `user`.
    pub(crate) fn image(&self, name: &str, tag: &str, tree: &Tree, user: &str) -> Result<()> {
        let layer = Blob::write(&self.scratch.join("layer"), |out| tree.write(out))?;
        let config = self.json(&json!({
            "architecture": "amd64",
            "os": "linux",
            "config": { "User": user },
            "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", layer.digest)] },
        }))?;
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config.descriptor(CONFIG),
            "layers": [layer.descriptor(LAYER)],
        });
        self.publish(name, tag, &manifest, &[layer, config])
    }

    /// Adds an artifact whose only file is `file`.
    pub(crate) fn artifact(&self, name: &str, tag: &str, file: &Path) -> Result<()> {
        let copy = self.scratch.join("file");
        fs::copy(file, &copy).with_context(|| format!("copy {}", file.display()))?;
        let blob = Blob::from_file(&copy)?;
        let config = self.json(&json!({}))?;
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": "application/vnd.vmlet.test.disk",
            "config": config.descriptor(EMPTY),
            "layers": [blob.descriptor(FILE)],
        });
        self.publish(name, tag, &manifest, &[blob, config])
    }

    /// Ends the work on the storage.
    pub(crate) fn finish(self) -> Result<()> {
        let scratch = &self.scratch;
        fs::remove_dir_all(scratch).with_context(|| format!("remove {}", scratch.display()))
    }

    fn json(&self, document: &Value) -> Result<Blob> {
        Blob::json(&self.scratch.join("document"), document).and_then(|blob| {
            // Each document has a file of its own until it is placed.
            let file = self.scratch.join(&blob.digest);
            fs::rename(&blob.file, &file).with_context(|| format!("write {}", file.display()))?;
            Ok(Blob { file, ..blob })
        })
    }

    fn publish(&self, name: &str, tag: &str, manifest: &Value, blobs: &[Blob]) -> Result<()> {
        let manifest = self.json(manifest)?;
        let repository = self.dir.join("repositories").join(name);
        for blob in blobs {
            self.place(blob)?;
            link(&repository.join("_layers/sha256"), &blob.digest)?;
        }
        self.place(&manifest)?;
        let digest = &manifest.digest;
        let manifests = repository.join("_manifests");
        link(&manifests.join("revisions/sha256"), digest)?;
        let tag = manifests.join("tags").join(tag);
        link(&tag.join("index/sha256"), digest)?;
        write_link(&tag.join("current"), digest)
    }

    fn place(&self, blob: &Blob) -> Result<()> {
        let digest = &blob.digest;
        let prefix = digest.get(..2).unwrap_or_default();
        let folder = self.dir.join("blobs/sha256").join(prefix).join(digest);
        fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
        let data = folder.join("data");
        fs::rename(&blob.file, &data).with_context(|| format!("write {}", data.display()))
    }
}

/// A link to a blob in a folder of links by digest.
fn link(folder: &Path, digest: &str) -> Result<()> {
    write_link(&folder.join(digest), digest)
}

fn write_link(folder: &Path, digest: &str) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    let file = folder.join("link");
    let text = format!("sha256:{digest}");
    fs::write(&file, text).with_context(|| format!("write {}", file.display()))
}
