//! Reads the images that this program writes: the tar of an OCI layout with one image of one layer.
//!
//! Invariant: nothing is unpacked to disk.
//! Failure: names what the archive does not have.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use ruzstd::decoding::StreamingDecoder;
use serde_json::Value;

/// An image in an archive.
#[derive(Debug)]
pub(crate) struct Archived {
    file: PathBuf,
    /// The reference of the image, with its tag.
    pub(crate) reference: String,
    /// Of its manifest, `sha256:…`.
    pub(crate) digest: String,
    layer: String,
}

impl Archived {
    /// The image in `file`.
    pub(crate) fn open(file: &Path) -> Result<Self> {
        Self::read(file).with_context(|| format!("read the image {}", file.display()))
    }

    fn read(file: &Path) -> Result<Self> {
        let index = document(file, "index.json")?;
        let entry = index.pointer("/manifests/0").context("no manifest")?;
        let digest = text(entry, "/digest")?;
        let manifest = document(file, &place(&digest))?;
        Ok(Self {
            file: file.to_owned(),
            reference: text(entry, "/annotations/io.containerd.image.name")?,
            digest,
            layer: text(&manifest, "/layers/0/digest")?,
        })
    }

    /// The reference without its tag.
    pub(crate) fn name(&self) -> &str {
        let parts = self.reference.rsplit_once(':');
        parts.map_or(self.reference.as_str(), |(name, _)| name)
    }

    /// Files of the image in this folder, by their name.
    pub(crate) fn folder(&self, folder: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
        within(&self.file, &place(&self.layer), |layer| {
            files(layer, folder)
        })
        .with_context(|| format!("read the layer of {}", self.file.display()))
    }
}

/// Files of a packed layer in this folder.
fn files(layer: &mut dyn Read, folder: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let layer = StreamingDecoder::new(layer).context("unpack the layer")?;
    let mut found = BTreeMap::new();
    for entry in tar::Archive::new(layer).entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        let name = path.file_name().and_then(|name| name.to_str());
        let is_in_it = entry.header().entry_type().is_file() && path.parent() == Some(folder);
        if let Some(name) = name.filter(|_| is_in_it) {
            let mut content = Vec::new();
            entry.read_to_end(&mut content)?;
            found.insert(name.to_owned(), content);
        }
    }
    Ok(found)
}

fn place(digest: &str) -> String {
    format!("blobs/{}", digest.replace(':', "/"))
}

fn text(document: &Value, pointer: &str) -> Result<String> {
    let found = document.pointer(pointer).and_then(Value::as_str);
    found
        .map(str::to_owned)
        .with_context(|| format!("no {pointer}"))
}

fn document(file: &Path, name: &str) -> Result<Value> {
    serde_json::from_slice(&bytes(file, name)?).with_context(|| format!("read {name}"))
}

fn bytes(file: &Path, name: &str) -> Result<Vec<u8>> {
    within(file, name, |entry| {
        let mut content = Vec::new();
        entry.read_to_end(&mut content)?;
        Ok(content)
    })
}

/// Reads an entry of the archive.
fn within<T>(file: &Path, name: &str, read: impl FnOnce(&mut dyn Read) -> Result<T>) -> Result<T> {
    let mut archive = tar::Archive::new(File::open(file)?);
    for entry in archive.entries_with_seek()? {
        let mut entry = entry?;
        if entry.path()? == Path::new(name) {
            return read(&mut entry);
        }
    }
    bail!("no {name}")
}
