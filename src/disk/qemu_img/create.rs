//! Makes disks from images: overlays and copies.
//!
//! Invariant: a disk is counted in the budget before it is made, and until it is known to be gone. A copy claims
//! what it may take first, also where it shares the blocks of its image: what its machine writes later takes
//! space. A new file has no name of an earlier attempt, whose program may still write.
//! Failure: [`Failed`]; what was written is removed.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use super::{
    BLOCK, Base, Failed, Lent, OVERLAY, QemuImg, Time, blocks, is_too_much, look, path_of, run,
    sizes, tables,
};

impl QemuImg {
    /// Makes a disk of `size` bytes that holds only differences from `base`, which is not read.
    pub async fn overlay(&self, path: &Path, base: Base<'_>, size: u64) -> Result<(), Failed> {
        let made = async {
            let room = self.budget.room(path).await?;
            self.budget.count(path, size).await?;
            let this = self.for_run()?;
            let disk = this.create(path).await?;
            let file = disk.inherited()?;
            let name = path_of(&file);
            let time = Time::short(OVERLAY);
            let most = tables(size).min(room);
            let mut program = this.program(vec![file], most, time);
            program.args(["create", "-q", "-u", "-f", "qcow2", "-F"]);
            program.arg(base.format.as_str()).arg("-b").arg(base.path);
            program.arg(name).arg(size.to_string());
            let made = run(program, &disk, time, |_| {}).await;
            disk.take_back().await;
            made
        };
        self.settle(path, made.await).await
    }

    /// Creates a disk of `size` bytes, at least the image's, that holds all of `base`; `progress`
    /// gets percents.
    pub async fn copy(
        &self,
        path: &Path,
        base: Base<'_>,
        size: u64,
        progress: impl FnMut(u8),
    ) -> Result<(), Failed> {
        let made = async {
            let image = self.open_image(base.path).await?;
            let least = look(&image, "measure the image", File::metadata).await?;
            let least = least.blocks() * BLOCK;
            let most = size.saturating_add(tables(size));
            let claim = self.budget.claim(path, least, most).await?;
            let room = claim.bytes();
            self.budget.count(path, size).await?;
            let this = self.for_run()?;
            let disk = this.create(path).await?;
            let file = disk.inherited()?;
            let names = [path_of(&image), path_of(&file)];
            let time = Time::long(size);
            let is_shared = disk.can_share_blocks_of(&image).await?;
            let mut program = this.program(vec![image, file], most.min(room), time);
            program.args(["convert", "-p", "-O", "qcow2", "-f", base.format.as_str()]);
            program.args(is_shared.then_some(blocks::SHARE)).args(names);
            let converted = run(program, &disk, time, progress).await;
            converted.map_err(|reason| {
                if is_too_much(&reason) && room < most {
                    return format!(
                        "No space left on device: the disk takes more than the {room} bytes that are \
                         free beside the reserve (images.reserve)"
                    );
                }
                reason
            })?;
            let resized = this.resize(&disk, size, room).await;
            disk.take_back().await;
            resized
        };
        self.settle(path, made.await).await
    }

    /// A new file in the place of one of an earlier attempt, whose program may still have that
    /// open and locked.
    pub(super) async fn create(&self, path: &Path) -> Result<Lent, String> {
        let create = |path: &Path| {
            match std::fs::remove_file(path) {
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
                _ => {}
            }
            let mut options = File::options();
            options.read(true).write(true).create_new(true).mode(0o600);
            options.open(path)
        };
        let file = self.open(path, "create it", create).await?;
        self.lend(&file).await
    }

    async fn settle(&self, path: &Path, outcome: Result<(), String>) -> Result<(), Failed> {
        let Err(reason) = outcome else {
            return Ok(());
        };
        // A part of a disk is worth nothing; the error is what counts.
        let removed = tokio::fs::remove_file(path).await;
        let is_gone = removed.map_or_else(|e| e.kind() == ErrorKind::NotFound, |()| true);
        // One that stays counts until the next attempt, or the next start.
        if let Some(directory) = path.parent().filter(|_| is_gone) {
            let forgotten = if sizes::is_beside_another(path).await {
                self.count_kept(directory).await
            } else {
                self.forget(directory).await
            };
            if let Err(error) = forgotten {
                let error = crate::one_line(&error);
                tracing::warn!(path = %path.display(), error, "size of root disk not forgotten");
            }
        }
        let path = path.to_owned();
        Err(Failed { path, reason })
    }
}
