//! Block devices of the node that machines have as disks.
//!
//! ```text
//!   written by us     ┌─ 1 MiB: marker ─┬─ the guest's disk: the image's content, then what the guest wrote ─┐
//!   anybody else's    ┌─ the guest's disk, from the first byte ──────────────────────────────────────────────┐
//! ```
//!
//! Invariant: a device has one container at most, whatever path it is named by, or several that only read it; only QEMU's
//! user gets at it, by a node below our own directory that goes with the container's domain. The marker says that an image is whole only after all
//! of it has reached the device, and says beforehand that one is being written.
//! Failure: [`Error`]; a copy cut short is begun anew, content that is not ours is never written over.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use podspec::ContainerId;
use tokio_util::sync::CancellationToken;

mod copy;
mod error;
mod hold;
mod marker;
mod model;
mod plan;
#[cfg(test)]
mod tests;

pub use error::{Error, Result};
pub use model::{Extent, Held, Number, Wish};

use crate::metadata::{self, Db, Ledger};

/// The block devices that containers have.
#[derive(Debug)]
pub struct Blocks {
    ledger: Ledger<Held>,
    root: PathBuf,
    uid: u32,
    gid: u32,
    /// Held while a container takes or leaves a device: the record and our node change together.
    turns: tokio::sync::Mutex<()>,
    /// What ends the copies under way.
    copies: Mutex<HashMap<ContainerId, CancellationToken>>,
}

impl Blocks {
    /// Reads what is recorded; `root` is the directory of our nodes, which must exist; user and group are QEMU's.
    pub async fn open(db: Db, root: PathBuf, uid: u32, gid: u32) -> metadata::Result<Self> {
        Ok(Self {
            ledger: Ledger::load(db).await?,
            root,
            uid,
            gid,
            turns: tokio::sync::Mutex::default(),
            copies: Mutex::default(),
        })
    }

    /// The directory below a state directory.
    pub fn directory_of(state: &Path) -> PathBuf {
        state.join("devices")
    }

    /// Our node of a device. One device has one node, so that the locks of emulators meet on it.
    pub fn node(&self, device: Number) -> PathBuf {
        self.root.join(device.to_string())
    }

    /// The part of the device that is the disk of this container; `None` when it has not got the device, or when the
    /// device is not prepared.
    pub fn extent(&self, device: Number, container: &ContainerId) -> Option<Extent> {
        let held = self.ledger.get(&device)?;
        held.is_of(container).then_some(held.extent)?
    }

    /// Ends a copy for this container, if there is one.
    pub fn cancel(&self, container: &ContainerId) {
        let copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(copy) = copies.get(container) {
            copy.cancel();
        }
    }
}
