//! A container disk: an image whose one layer has the disk at `disk/disk.qcow2`.
//!
//! Invariant: the layer is an archive without compression, so that the length of the disk says where each byte of it is; no
//! time, host or user of this computer is in the image. The file belongs to the user and group by which KubeVirt reads
//! it.
//! Failure: none here; a manifest of another form is one of another image.

use oci_spec::image::ImageManifest;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tar::{EntryType, Header};

use super::registry::Blob;

/// User and group of QEMU in KubeVirt's containers.
const QEMU: u64 = 107;

/// Bytes of a block of an archive.
const BLOCK: u64 = 512;

/// Blocks at the end of an archive.
const END: usize = 2 * 512;

/// Media types.
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// A layer of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::commands) struct Layer {
    /// `sha256:…`, which is also that of its content.
    pub(in crate::commands) digest: String,
    pub(in crate::commands) size: u64,
}

/// The layer of a disk, of which the bytes go by.
#[derive(Debug)]
pub(in crate::commands) struct LayerSum {
    sum: Sha256,
    size: u64,
}

/// What an image has beside its layer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Image {
    pub(super) config: Blob,
    pub(super) manifest: Vec<u8>,
}

impl LayerSum {
    /// That of a disk of this size.
    pub(in crate::commands) fn begin(size: u64) -> Self {
        let head = head(size);
        Self {
            sum: Sha256::new_with_prefix(&head),
            size: head.len() as u64,
        }
    }

    /// Takes the next bytes of the disk.
    pub(in crate::commands) fn update(&mut self, bytes: &[u8]) {
        self.sum.update(bytes);
        self.size += bytes.len() as u64;
    }

    /// The layer behind the last byte of the disk.
    pub(in crate::commands) fn end(mut self) -> Layer {
        // What stands before the disk ends with a block.
        let tail = tail(self.size);
        self.update(&tail);
        Layer {
            digest: format!("sha256:{}", hex(&self.sum.finalize())),
            size: self.size,
        }
    }
}

/// What stands before a disk of this size in the archive.
pub(super) fn head(size: u64) -> Vec<u8> {
    let mut folder = header("disk/", EntryType::Directory, 0o555);
    folder.set_size(0);
    folder.set_cksum();
    let mut file = header("disk/disk.qcow2", EntryType::Regular, 0o440);
    file.set_size(size);
    file.set_cksum();
    [*folder.as_bytes(), *file.as_bytes()].concat()
}

/// What stands behind so many bytes in the archive.
pub(super) fn tail(size: u64) -> Vec<u8> {
    let padding = size.next_multiple_of(BLOCK) - size;
    vec![0; usize::try_from(padding).unwrap_or_default() + END]
}

fn header(path: &str, kind: EntryType, mode: u32) -> Header {
    let mut header = Header::new_gnu();
    // The names are short, and no paths of this computer.
    let _ = header.set_path(path);
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(QEMU);
    header.set_gid(QEMU);
    header.set_mtime(0);
    header
}

/// The image of a layer.
pub(super) fn image(layer: &Layer) -> Image {
    let config = json!({
        "architecture": "amd64",
        "config": {},
        "os": "linux",
        "rootfs": { "diff_ids": [layer.digest], "type": "layers" },
    });
    let config = Blob::new(config.to_string().into_bytes());
    let manifest = json!({
        "config": { "digest": config.digest, "mediaType": CONFIG, "size": config.bytes.len() },
        "layers": [{ "digest": layer.digest, "mediaType": LAYER, "size": layer.size }],
        "mediaType": MANIFEST,
        "schemaVersion": 2,
    });
    Image {
        config,
        manifest: manifest.to_string().into_bytes(),
    }
}

/// The layer of an image that has the form of ours.
pub(super) fn layer_in(manifest: &[u8]) -> Option<Layer> {
    let manifest: ImageManifest = serde_json::from_slice(manifest).ok()?;
    let [layer] = manifest.layers().as_slice() else {
        return None;
    };
    let is_ours = layer.media_type().to_string() == LAYER;
    is_ours.then(|| Layer {
        digest: layer.digest().to_string(),
        size: layer.size(),
    })
}

/// Hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn an_archive_has_the_disk_alone_as_kubevirt_reads_it() {
        for size in [5_u64, 9 << 30] {
            let mut archive = head(size);
            let content = b"disk!";
            archive.extend(content);
            let mut archive = tar::Archive::new(&archive[..]);
            let mut entries = archive.entries().unwrap();
            let folder = entries.next().unwrap().unwrap();
            assert_eq!(folder.path_bytes().as_ref(), b"disk/");
            let mut disk = entries.next().unwrap().unwrap();
            assert_eq!(disk.path_bytes().as_ref(), b"disk/disk.qcow2");
            let header = disk.header().clone();
            assert_eq!(header.size().unwrap(), size);
            assert_eq!((header.uid().unwrap(), header.gid().unwrap()), (107, 107));
            assert_eq!(
                (header.mode().unwrap(), header.mtime().unwrap()),
                (0o440, 0)
            );
            let mut read = Vec::new();
            let _ = disk.read_to_end(&mut read);
            assert_eq!(read, content);
        }
    }

    #[test]
    fn the_sum_of_a_layer_is_that_of_its_archive() {
        for size in [0, 1, 511, 512, 513] {
            let disk = vec![7; size];
            let whole = [head(size as u64), disk.clone(), tail(size as u64)].concat();
            let mut sum = LayerSum::begin(size as u64);
            disk.chunks(100).for_each(|piece| sum.update(piece));
            let layer = sum.end();
            assert_eq!(layer.size, whole.len() as u64);
            assert_eq!(layer.size % BLOCK, 0);
            assert_eq!(
                layer.digest,
                format!("sha256:{}", hex(&Sha256::digest(&whole)))
            );
        }
    }

    #[test]
    fn the_same_layer_makes_the_same_image() {
        let layer = Layer {
            digest: format!("sha256:{}", "0a".repeat(32)),
            size: 2048,
        };
        let one = image(&layer);
        assert_eq!(one, image(&layer.clone()));
        let manifest: serde_json::Value = serde_json::from_slice(&one.manifest).unwrap();
        assert_eq!(manifest["config"]["digest"], json!(one.config.digest));
        assert_eq!(manifest["layers"][0]["size"], 2048);
        assert_eq!(layer_in(&one.manifest), Some(layer.clone()));
        assert_eq!(layer_in(b"{}"), None);
        let config: serde_json::Value = serde_json::from_slice(&one.config.bytes).unwrap();
        assert_eq!(config["rootfs"]["diff_ids"][0], json!(layer.digest));
    }
}
