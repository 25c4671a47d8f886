//! Makes, fills and grows the files of disks.
//!
//! Invariant: the first content is written to an unfinished file, synced, then named. A file that
//! has its name only grows.
//! Failure: [`Error`]; the unfinished file is removed with the container. A volume whose server does
//! not answer is an error after a deadline; a stop of the sandbox ends all of it at once, but for
//! the growth of a disk, each step of which has a deadline.

use std::fs::File;

use super::FileDisk;
use super::error::{Error, Result};
use super::place::{Place, io};
use crate::disk::qemu_img::{Base, OpenDisk};
use crate::foreign::Open;
use crate::images::{Format, Image};
use crate::platform::Platform;
use crate::vm::error::Result as Outcome;
use crate::vm::model::Container;
use crate::vm::service::Containers;

/// Part of a copy after which the log has a line, in percent.
const STEP: u8 = 10;

impl<P: Platform> Containers<P> {
    /// Makes sure that the files of a container that is being made are there. `image` is written
    /// to the root disk where that is not there yet.
    pub(in crate::vm) async fn prepare_file_disks(
        &self,
        row: &Container,
        image: Option<&Image>,
    ) -> Outcome<()> {
        let stop = self.stops.watch(&row.sandbox);
        for disk in &row.spec.file_disks {
            let image = image.filter(|_| disk.is_root());
            let found = tokio::select! {
                found = self.find_or_make(row, disk, image) => found?,
                () = stop.requested() => return Err(Error::Cancelled(disk.shown()).into()),
            };
            // A disk with content is not left half grown.
            if let Some((file, size)) = found {
                self.enlarge(disk, file, size).await?;
            }
        }
        Ok(())
    }

    /// The file and the size of a disk that was there before.
    async fn find_or_make(
        &self,
        row: &Container,
        disk: &FileDisk,
        image: Option<&Image>,
    ) -> Result<Option<(Open<File>, u64)>> {
        let place = self.place(disk).await?;
        let write = !disk.read_only;
        let found = look(&place, disk, move |place| place.find(write));
        let found = found.await?;
        match found {
            Some((file, size)) => Ok(Some((place.keep(file), size))),
            None if disk.read_only => Err(Error::Missing(disk.shown())),
            None => {
                let size = first_size(disk, image)?;
                self.make_file(row, &place, disk, (image, size)).await?;
                Ok(None)
            }
        }
    }

    async fn make_file(
        &self,
        row: &Container,
        place: &Open<Place>,
        disk: &FileDisk,
        (image, size): (Option<&Image>, u64),
    ) -> Result<()> {
        let made = look(place, disk, Place::begin).await?;
        let made = place.keep(made);
        faultpoint::point("vm.file.begun");
        let qemu_img = self.parts.disks.qemu_img();
        let written = |reason| Error::Write {
            file: disk.shown(),
            reason,
        };
        // The program gets descriptors of its own.
        let file = made.local().file.try_clone().map_err(io(disk, "open"))?;
        let file = made.keep(file);
        match disk.format {
            Format::Raw => {
                let set = file.look(move |file| file.set_len(size)).await;
                set.map_err(foreign(disk))?.map_err(io(disk, "size"))?;
            }
            Format::Qcow2 => {
                let formatted = qemu_img.format_qcow2(file.clone(), size).await;
                formatted.map_err(written)?;
            }
        }
        if let Some(image) = image {
            let base = Base {
                path: &image.path,
                format: image.format,
            };
            tracing::info!(container = %row.id, disk = disk.shown(), image = %image.digest, bytes = image.virtual_size, "image copy to a file of a volume started");
            let mut reported = 0;
            let progress = |percent: u8| {
                if percent >= reported + STEP {
                    reported = percent / STEP * STEP;
                    tracing::info!(
                        container = %row.id,
                        disk = disk.shown(),
                        percent,
                        "image copy to a file of a volume in progress"
                    );
                }
            };
            let target = OpenDisk {
                file: file.clone(),
                format: disk.format,
            };
            let filled = qemu_img.fill(target, base, size, progress);
            filled.await.map_err(written)?;
        }
        faultpoint::point("vm.file.written");
        let finish = {
            let made = made.clone();
            move |place: &Place| place.finish(made.local())
        };
        // A large file takes its time to reach its server.
        let finished = place.run(finish).await;
        let is_named = finished.map_err(foreign(disk))??;
        if !is_named {
            return Err(Error::InUse(disk.shown()));
        }
        faultpoint::point("vm.file.named");
        tracing::info!(container = %row.id, disk = disk.shown(), bytes = size, "disk made in a volume");
        Ok(())
    }

    /// Grows a disk that is smaller than requested.
    async fn enlarge(&self, disk: &FileDisk, file: Open<File>, size: u64) -> Result<()> {
        let Some(wanted) = disk.size.filter(|wanted| *wanted > size && !disk.read_only) else {
            return Ok(());
        };
        match disk.format {
            Format::Raw => {
                let grown = file.look(move |file| file.set_len(wanted)).await;
                grown.map_err(foreign(disk))?.map_err(io(disk, "grow"))
            }
            Format::Qcow2 => {
                let grown = self.parts.disks.qemu_img().enlarge_qcow2(file, wanted);
                grown.await.map_err(|reason| Error::Write {
                    file: disk.shown(),
                    reason,
                })
            }
        }
    }

    /// Removes what a container that never came to be has begun.
    pub(in crate::vm) async fn undo_file_disks(&self, row: &Container) {
        for disk in row.spec.file_disks.iter().filter(|disk| !disk.read_only) {
            let undone = async {
                let place = self.place_of(disk).await?;
                look(&place, disk, Place::undo).await
            };
            // The volume may be gone, and is not ours: it keeps no container.
            if let Err(error) = undone.await {
                tracing::warn!(container = %row.id, disk = disk.shown(), error = crate::one_line(&error), "unfinished disk not removed from its volume");
            }
        }
    }

    /// The place of a disk that this node uses.
    pub(super) async fn place(&self, disk: &FileDisk) -> Result<Open<Place>> {
        self.permitted(disk)?;
        self.place_of(disk).await
    }

    async fn place_of(&self, disk: &FileDisk) -> Result<Open<Place>> {
        let root = self.settings.shares.root.clone();
        let wanted = disk.clone();
        let open = move || Place::open(&root, &wanted);
        let opened = self.foreign.look(&disk.directory, open).await;
        let place = opened.map_err(foreign(disk))??;
        Ok(self.foreign.keep(&disk.directory, place))
    }
}

/// Works at the place of a disk, within a deadline.
pub(super) async fn look<T: Send + 'static>(
    place: &Open<Place>,
    disk: &FileDisk,
    work: impl FnOnce(&Place) -> Result<T> + Send + 'static,
) -> Result<T> {
    let looked = place.look(work).await;
    looked.map_err(foreign(disk))?
}

/// The size in bytes of a disk that is not there yet.
fn first_size(disk: &FileDisk, image: Option<&Image>) -> Result<u64> {
    match (disk.size, image) {
        (_, None) if disk.is_root() => Err(Error::NothingToBoot(disk.shown())),
        (None, None) => Err(Error::NoSize(disk.shown())),
        (size, image) => {
            let least = image.map_or(0, |image| image.virtual_size);
            Ok(size.unwrap_or_default().max(least))
        }
    }
}

/// The error of a volume that does not answer.
fn foreign(disk: &FileDisk) -> impl FnOnce(crate::foreign::Error) -> Error {
    let file = disk.shown();
    move |source| Error::Foreign { file, source }
}
