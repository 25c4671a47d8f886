//! The space that an overlay takes when it gets all that it has of its image.
//!
//! Invariant: what the file of the image takes is what the overlay is expected to take in addition; the
//! content of a compressed one takes more, so that the room is checked again and again.
//! Failure: [`Failed`] when the file system has less.

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::lent::look;
use super::{BLOCK, Failed, QemuImg};
use crate::space::Claim;

impl QemuImg {
    /// Claims that space for `overlay` on `image`, until what is returned is dropped.
    pub(crate) async fn claim_copy(&self, overlay: &Path, image: &Path) -> Result<Claim, Failed> {
        let claimed = async {
            let mut bytes = 0_u64;
            for path in [overlay, image] {
                let file = self.open_image(path).await?;
                let is = look(&file, "measure it", File::metadata).await?;
                bytes = bytes.saturating_add(is.blocks() * BLOCK);
            }
            self.budget.claim(overlay, bytes, bytes).await
        };
        let path = overlay.to_owned();
        claimed.await.map_err(|reason| Failed { path, reason })
    }

    /// Refuses when only the reserve of a disk's file system is left.
    pub(crate) async fn check_room(&self, disk: &Path) -> Result<(), Failed> {
        let room = self.budget.room(disk).await;
        let path = disk.to_owned();
        room.map(drop).map_err(|reason| Failed { path, reason })
    }
}
