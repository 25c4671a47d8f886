//! Makes the layers of a disk with snapshots, and merges them.
//!
//! Invariant: every file below a layer is named here; what headers say of other files is not followed.
//! A merge writes all that the child has to its parent and leaves the child as it was, so that it
//! can be repeated from any point of it; what it has written is on the device when it succeeds. The disk
//! counts the sizes of all its layers.
//! Failure: [`Failed`]; a new layer is removed, and both layers of a merge show the content of the child.

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    Access, BLOCK, Base, Failed, Guard, Lent, OVERLAY, QemuImg, Time, is_too_much, lent::look,
    open_to_write, run, tables,
};
use crate::foreign::Open;
use crate::helper::path_of;
use crate::images::{Format, has_data_file, head_of};
use crate::metadata;

/// A layer that is to be made.
#[derive(Debug)]
pub struct NewLayer<'a> {
    /// Its file.
    pub path: &'a Path,
    /// The file of the layer below it, which is not read.
    pub parent: &'a Path,
    /// How many bytes its guest sees.
    pub size: u64,
    /// The directory of the disk.
    pub disk: &'a Path,
    /// What all layers of the disk count together with it.
    pub counted: u64,
}

/// Two layers that become one.
#[derive(Debug)]
pub struct Merge<'a> {
    /// What is merged.
    pub child: &'a Path,
    /// What it is merged into, the next one first, and what is below that.
    pub layers: &'a [PathBuf],
    /// The image under the last one.
    pub base: Option<Base<'a>>,
    /// How many bytes the guest sees.
    pub size: u64,
    /// How the program gets the right to read what is below the two.
    pub access: Access,
    /// What keeps others from the disk; dropped when the program no longer has it.
    pub guard: Guard,
}

impl QemuImg {
    /// Makes an empty layer. The caller counts the disk again after an error.
    pub async fn layer(&self, new: NewLayer<'_>) -> Result<(), Failed> {
        let made = async {
            let room = self.budget.room(new.path).await?;
            self.budget.count_layers(new.disk, new.counted).await?;
            let this = self.for_run()?;
            let disk = this.create(new.path).await?;
            let file = disk.inherited()?;
            let name = path_of(&file);
            let time = Time::short(OVERLAY);
            let mut program = this.program(vec![file], tables(new.size).min(room), time);
            program.args(["create", "-q", "-u", "-f", "qcow2", "-F", "qcow2", "-b"]);
            program.arg(new.parent).arg(name).arg(new.size.to_string());
            let made = run(program, &disk, time, |_| {}).await;
            disk.take_back().await;
            made
        };
        let Err(reason) = made.await else {
            return Ok(());
        };
        // A part of a layer is worth nothing; the error is what counts.
        let _ = tokio::fs::remove_file(new.path).await;
        let path = new.path.to_owned();
        Err(Failed { path, reason })
    }

    /// Makes the active layer of a disk larger; all layers count `counted` bytes together then.
    pub async fn grow_layer(
        &self,
        path: &Path,
        size: u64,
        disk: &Path,
        counted: u64,
    ) -> Result<(), Failed> {
        let grown = async {
            self.budget.room(path).await?;
            self.budget.count_layers(disk, counted).await?;
            self.make_larger(path, size).await
        };
        let path = path.to_owned();
        grown.await.map_err(|reason| Failed { path, reason })
    }

    /// Counts the layers of a disk again.
    pub async fn recount_layers(&self, disk: &Path, counted: u64) -> metadata::Result<()> {
        self.budget.recount(disk, counted).await
    }

    /// Writes all that a layer has to the one below it; `progress` gets percents.
    pub async fn merge(
        &self,
        merge: Merge<'_>,
        progress: impl FnMut(u8) + Send,
    ) -> Result<(), Failed> {
        let path = merge.child.to_owned();
        let merged = self.write_down(merge, progress).await;
        merged.map_err(|reason| Failed { path, reason })
    }

    async fn write_down(
        &self,
        merge: Merge<'_>,
        progress: impl FnMut(u8) + Send,
    ) -> Result<(), String> {
        let size = merge.size;
        let this = self.for_run()?;
        let mut layers = Vec::new();
        let mut bytes = Vec::new();
        let child = std::iter::once(merge.child);
        for path in child.chain(merge.layers.iter().map(PathBuf::as_path)) {
            // Behind the child and its layer.
            let access = match layers.len() {
                0 | 1 => Access::Lent,
                _ => merge.access,
            };
            let layer = self.open_layer(path, access).await?;
            bytes.push(look(&layer, "measure it", |file: &File| size_of(file)).await?);
            let guard = Some(Arc::clone(&merge.guard));
            let lent = match access {
                Access::Lent => this.lend_with(&layer, guard).await?,
                Access::Shared => this.share(&layer, guard).await?,
            };
            layers.push((lent, layer));
        }
        let image = match &merge.base {
            Some(base) => Some(self.open_image(base.path).await?),
            None => None,
        };
        let [of_child, of_parent, ..] = bytes[..] else {
            return Err("it has no layer below it".to_owned());
        };
        let (parent, target) = &layers[1];
        // Each cluster of the child takes space once, where the parent has none of its own: a full file
        // system may suffice.
        let new = of_child.allocated.min(size).saturating_add(tables(size));
        let most = of_parent.allocated.saturating_add(new);
        let claim = self.budget.claim(&merge.layers[0], 0, most).await?;
        let room = claim.bytes().saturating_sub(of_parent.allocated);

        let mut under = image.as_ref().zip(merge.base).map(|(image, base)| {
            let mut under = json!({"driver": base.format.as_str(), "file": file(image)});
            if base.format == Format::Qcow2 {
                under["backing"] = json!(null);
            }
            under
        });
        let mut files: Vec<_> = image.into_iter().collect();
        for (lent, _) in layers.iter().rev() {
            let inherited = lent.inherited()?;
            let name = file(&inherited);
            under = Some(json!({"driver": "qcow2", "file": name, "backing": under}));
            files.push(inherited);
        }
        let whole = under.unwrap_or_default();
        let limit = of_parent.length.saturating_add(room);
        let mut program = this.program(files, limit, Time::long(size));
        // The child keeps what it has.
        program.args(["commit", "-p", "-d", "-t", "writeback"]);
        program.arg(format!("json:{whole}"));
        let written = run(program, parent, Time::long(size), progress).await;
        let written = written.map_err(|reason| {
            if is_too_much(&reason) {
                return format!(
                    "No space left on device: the layer takes more than the {room} bytes that are free \
                     beside the reserve (images.reserve)"
                );
            }
            reason
        });
        let synced = match written {
            // A long copy may take its time to reach the device.
            Ok(()) => target.run(|file: &File| file.sync_all()).await,
            Err(reason) => {
                take_back(layers).await;
                return Err(reason);
            }
        };
        let synced = synced.map_err(|e| crate::one_line(&e))?;
        take_back(layers).await;
        synced.map_err(|e| format!("write it to the device: {e}"))
    }

    /// Opens a layer, which an emulator that its guest has taken over may have written.
    async fn open_layer(&self, path: &Path, access: Access) -> Result<Open<File>, String> {
        let step = format!("open the layer {}", path.display());
        let open = move |path: &Path| match access {
            Access::Lent => open_to_write(path),
            Access::Shared => File::open(path),
        };
        let layer = self.open(path, &step, open).await?;
        let head = look(&layer, "read its header", |file: &File| head_of(file)).await?;
        if has_data_file(&head) {
            let path = path.display();
            return Err(format!("the header of {path} names an external data file"));
        }
        Ok(layer)
    }
}

/// What a file takes.
#[derive(Debug, Clone, Copy)]
struct Bytes {
    length: u64,
    allocated: u64,
}

fn size_of(file: &File) -> std::io::Result<Bytes> {
    let is = file.metadata()?;
    Ok(Bytes {
        length: is.len(),
        allocated: is.blocks() * BLOCK,
    })
}

async fn take_back(layers: Vec<(Lent, Open<File>)>) {
    for (lent, _) in layers {
        lent.take_back().await;
    }
}

fn file(file: &impl std::os::fd::AsRawFd) -> Value {
    json!({"driver": "file", "filename": path_of(file)})
}
