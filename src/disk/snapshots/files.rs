//! The files of the layers of a disk, and their names.
//!
//! ```text
//! root.qcow2              layer 0
//! layers/N.qcow2          layer N; while `doubt` is about it: layers/N.doubt
//! layers/N.new            layer N before it is complete
//! ```
//!
//! Invariant: a record alone says which of these names are layers of the disk.
//! Failure: an error of the file system with its path. What cannot be measured counts as 0 bytes.

use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use podspec::VmUid;

use crate::disk::Disks;
use crate::disk::error::Result;
use crate::disk::layers::{Change, Layers};
use crate::files;

/// The directory of layers beside the first one.
const LAYERS: &str = "layers";

/// The files of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files {
    /// The one that the guest writes to.
    pub active: PathBuf,
    /// Those below it, the next one first.
    pub below: Vec<PathBuf>,
}

impl Disks {
    /// The file of a layer.
    pub(in crate::disk) fn layer_file(&self, vm: VmUid, layer: u32) -> PathBuf {
        match layer {
            0 => self.folder(vm).join("root.qcow2"),
            layer => self.layers_directory(vm).join(format!("{layer}.qcow2")),
        }
    }

    /// The names that the file of a layer may have.
    pub(in crate::disk) fn names(&self, vm: VmUid, layer: u32) -> [PathBuf; 2] {
        [self.layer_file(vm, layer), self.doubtful_layer(vm, layer)]
    }

    /// The directory of the layers of a disk.
    pub fn layers_directory(&self, vm: VmUid) -> PathBuf {
        self.folder(vm).join(LAYERS)
    }

    /// Makes the directory of the layers of a disk.
    pub async fn prepare_layers(&self, vm: VmUid) -> Result<()> {
        let directory = self.layers_directory(vm);
        let path = directory.clone();
        let made = move || {
            match std::fs::create_dir(&path) {
                Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(e),
                _ => {}
            }
            // QEMU's user may traverse it, no user may list it.
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o711))
        };
        let made = tokio::task::spawn_blocking(made).await;
        let made = made.unwrap_or_else(|e| Err(std::io::Error::other(e)));
        Ok(made.map_err(files::failed("make", &directory))?)
    }

    /// The files of a disk.
    pub fn files(&self, vm: VmUid) -> Files {
        let disk = self.get(vm);
        let layers = disk.as_ref().and_then(|disk| disk.layers.as_ref());
        let active = layers.map_or(0, Layers::active);
        let below = layers.map(|layers| layers.below(active));
        let below = below.unwrap_or_default().into_iter();
        Files {
            active: self.layer_file(vm, active),
            below: below.map(|layer| self.layer_file(vm, layer)).collect(),
        }
    }

    /// The files of a disk that an emulator may write to.
    pub(in crate::disk) async fn writable_files(&self, vm: VmUid) -> Result<Vec<PathBuf>> {
        let mut writable = vec![self.file(vm)];
        let change = self.change(vm).into_iter();
        let names = change.flat_map(|change| self.names(vm, change.layer));
        for file in names {
            let is_there = tokio::fs::try_exists(&file).await;
            if is_there.map_err(files::failed("look for", &file))? {
                writable.push(file);
            }
        }
        Ok(writable)
    }

    /// Bytes that the disk takes on the node; 0 when there is none. Blocks for a moment.
    pub fn allocated(&self, vm: VmUid) -> u64 {
        let layers = std::fs::read_dir(self.layers_directory(vm));
        let layers = layers.into_iter().flatten().flatten();
        let layers = layers.map(|entry| bytes_of(&entry.path()));
        let store = bytes_of(&self.store_file(vm));
        let all = layers.chain([self.memory_allocated(vm), store]);
        all.fold(bytes_of(&self.layer_file(vm, 0)), u64::saturating_add)
    }

    /// The file of the layer of a change.
    pub fn new_layer(&self, vm: VmUid, change: Change) -> PathBuf {
        self.layer_file(vm, change.layer)
    }
}

/// Bytes that a file takes; 0 when there is none.
pub(super) fn bytes_of(file: &Path) -> u64 {
    std::fs::metadata(file).map_or(0, |file| file.blocks() * 512)
}
