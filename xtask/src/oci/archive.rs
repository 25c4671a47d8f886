//! One image with one layer, as the tar of an OCI layout.
//!
//! Invariant: the archive appears by one rename; nothing in it depends on the time or the machine.
//! Failure: names the step.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::blob::Blob;
use super::tree::Tree;
use crate::run;

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(super) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(super) const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+zstd";

/// What becomes an image.
#[derive(Debug)]
pub(crate) struct Image<'a> {
    /// The full reference under which a runtime stores it, such as `localhost/pause:1`.
    pub(crate) name: &'a str,
    /// Its files.
    pub(crate) tree: &'a Tree,
    /// The part `config` of an image configuration: `Entrypoint`, `Env`, …
    pub(crate) config: Value,
    /// How hard `zstd` tries to make its layer small: 1 to 19.
    pub(crate) level: u8,
}

/// Writes `image` to `file` and returns the digest of its manifest, 64 hexadecimal digits.
pub(crate) fn write(image: &Image<'_>, file: &Path) -> Result<String> {
    let scratch = Scratch::beside(file)?;
    let layer = Blob::write(&scratch.path("layer"), |out| image.tree.write(out))?;
    let packed = zstd(&layer, image.level)?;
    let config = Blob::json(
        &scratch.path("config"),
        &json!({
            "architecture": "amd64",
            "os": "linux",
            "config": image.config,
            "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", layer.digest)] },
        }),
    )?;
    let manifest = Blob::json(
        &scratch.path("manifest"),
        &json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config.descriptor(CONFIG),
            "layers": [packed.descriptor(LAYER)],
        }),
    )?;
    let archive = scratch.path("archive");
    pack(
        &archive,
        &index(image.name, &manifest),
        &[&config, &manifest, &packed],
    )
    .with_context(|| format!("write {}", archive.display()))?;
    fs::rename(&archive, file).with_context(|| format!("rename to {}", file.display()))?;
    Ok(manifest.digest)
}

fn zstd(layer: &Blob, level: u8) -> Result<Blob> {
    let packed = layer.file.with_extension("zst");
    let mut zstd = run::command("zstd");
    // One thread: the number of threads would change the bytes.
    zstd.args(["--quiet", "--force", "--single-thread"]);
    zstd.arg(format!("-{level}")).arg("-o").arg(&packed);
    run::output(zstd.arg(&layer.file)).context("compress the layer")?;
    Blob::from_file(&packed)
}

fn index(name: &str, manifest: &Blob) -> Value {
    let mut entry = manifest.descriptor(MANIFEST);
    let tag = name.rsplit_once(':').map_or("latest", |(_, tag)| tag);
    entry["platform"] = json!({ "architecture": "amd64", "os": "linux" });
    entry["annotations"] = json!({
        "io.containerd.image.name": name,
        "org.opencontainers.image.ref.name": tag,
    });
    json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": [entry] })
}

fn pack(archive: &Path, index: &Value, blobs: &[&Blob]) -> Result<()> {
    let mut tree = Tree::new();
    tree.bytes("oci-layout", 0o644, r#"{"imageLayoutVersion":"1.0.0"}"#)?;
    tree.bytes("index.json", 0o644, serde_json::to_vec(index)?)?;
    for blob in blobs {
        tree.copy(format!("blobs/sha256/{}", blob.digest), 0o644, &blob.file)?;
    }
    tree.write(&mut File::create(archive)?)
}

/// A folder for half-made files, on the same file system as the product.
struct Scratch(PathBuf);

impl Scratch {
    fn beside(file: &Path) -> Result<Self> {
        let folder = file.with_extension("new");
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| format!("empty {}", folder.display()))?;
        }
        fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
        Ok(Self(folder))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is left here is emptied by the next build.
        let _ = fs::remove_dir_all(&self.0);
    }
}
