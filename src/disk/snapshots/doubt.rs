//! The file of a layer that a late request may still make active.
//!
//! ```text
//! record      file       emulator
//! change N    N.qcow2    says that it writes to A; a request of an earlier daemon may wait in libvirtd
//! change N    N.doubt    cannot open N: what it says from now on stays true
//! change N    N.qcow2    says that it writes to N: the request had begun
//! ```
//!
//! Invariant: a layer that was handed to an emulator is discarded only after its file had another name, and the
//! emulator has reported again what it writes to. A file has its own name, and that is on the device, before
//! a record names it as a layer.
//! Failure: the file has one of the two names, and what ends the change looks for both.

use std::fs::File;
use std::path::{Path, PathBuf};

use podspec::VmUid;

use crate::disk::error::Result;
use crate::disk::{Change, Disks};
use crate::files;

/// The extension of the file.
pub(super) const DOUBT: &str = "doubt";

impl Disks {
    /// The file of a new layer under the name that no emulator opens.
    pub(in crate::disk) fn doubtful_layer(&self, vm: VmUid, layer: u32) -> PathBuf {
        self.layer_file(vm, layer).with_extension(DOUBT)
    }

    /// Takes its name from the file of the layer that is being made, so that no emulator goes over to it from now
    /// on; one that has, has it open. False when no file had the name.
    pub async fn doubt_layer(&self, vm: VmUid, change: Change) -> Result<bool> {
        let from = self.layer_file(vm, change.layer);
        let to = self.doubtful_layer(vm, change.layer);
        if !change.step.makes_layer() || !is_there(&from).await? {
            return Ok(false);
        }
        let renamed = tokio::fs::rename(&from, to).await;
        renamed.map_err(files::failed("rename", &from))?;
        faultpoint::point("node.snapshot.doubted");
        Ok(true)
    }

    /// Gives the file of the layer that is being made its name again, for good; false when there is no such
    /// file, under either name.
    pub async fn restore_layer(&self, vm: VmUid, change: Change) -> Result<bool> {
        let to = self.layer_file(vm, change.layer);
        let from = self.doubtful_layer(vm, change.layer);
        if !change.step.makes_layer() {
            return Ok(false);
        }
        if !is_there(&from).await? {
            return is_there(&to).await;
        }
        let directory = self.layers_directory(vm);
        let path = from.clone();
        let name = move || {
            std::fs::rename(from, to)?;
            File::open(directory)?.sync_all()
        };
        let named = tokio::task::spawn_blocking(name).await;
        let named = named.unwrap_or_else(|e| Err(std::io::Error::other(e)));
        named.map_err(files::failed("rename", &path))?;
        Ok(true)
    }
}

async fn is_there(file: &Path) -> Result<bool> {
    let found = tokio::fs::try_exists(file).await;
    Ok(found.map_err(files::failed("look for", file))?)
}
