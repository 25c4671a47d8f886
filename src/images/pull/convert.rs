//! Converts the disk of a complete download to qcow2.
//!
//! Invariant: the result passes the check of every disk and has the size that the check of the
//! original found. Room and space for it are claimed before it is written; it is written to a
//! partial without a note, which the next start removes.
//! Failure: the result is discarded; the download stays, unless no attempt can succeed.

use super::super::Inner;
use super::super::catalog::Facts;
use super::super::conversion::{Conversion, Unconverted};
use super::super::convertible::Convertible;
use super::super::error::{Error, Result};
use super::super::format::{Accepted, Disk, Format};
use super::super::partial::Handle;
use super::super::qcow2::tables;
use super::commit::{Download, Unpacked, facts_of};

impl Inner {
    /// A qcow2 disk with the content of `source`, a disk of so many bytes.
    pub(super) async fn convert(
        &self,
        download: &Download,
        source: &Handle,
        from: Convertible,
        virtual_size: u64,
    ) -> Result<(Unpacked, Facts)> {
        let disk = self.partial(&format!("{}-converted", download.key)).await?;
        let made = async {
            let conversion = (from, virtual_size);
            self.convert_to(download, source, &disk, conversion).await?;
            let digest = disk.work(|p| p.take_in().and_then(|()| p.finish())).await?;
            faultpoint::point("images.pull.unpacked");
            let expected = Disk {
                format: Format::Qcow2,
                virtual_size,
            };
            match self.judge(download, &disk).await? {
                Accepted::Disk(made) if made == expected => Ok((digest, made)),
                _ => Err(download.unconverted("qemu-img made another disk of it")),
            }
        };
        match made.await {
            Ok((digest, made)) => {
                let name = &download.name;
                let location = &download.location;
                tracing::info!(%name, location, format = from.as_str(), "image converted");
                let facts = facts_of(&disk, made).await;
                let file = disk;
                Ok((Unpacked { file, digest }, facts))
            }
            Err(error) => {
                disk.discard().await?;
                Err(error)
            }
        }
    }

    async fn convert_to(
        &self,
        download: &Download,
        source: &Handle,
        disk: &Handle,
        (from, virtual_size): (Convertible, u64),
    ) -> Result<()> {
        let Some(converter) = &self.converter else {
            return Err(download.unconverted("the node has no qemu-img"));
        };
        let whole = virtual_size.saturating_add(tables(virtual_size));
        let limit = self.downloader.max_bytes();
        let most = whole.min(limit);
        let least = source.read(|p| p.received()).await.min(most);
        let (room, space) = self.downloader.claim(disk, least, most).await?;
        let work = Conversion {
            source: source.read(|p| p.path().to_owned()).await,
            from,
            target: disk.read(|p| p.path().to_owned()).await,
            most: most.min(room.bytes()).min(space.bytes()),
        };
        let converted = tokio::select! {
            biased;
            () = self.stopping.cancelled() => return Err(Error::Stopping),
            converted = converter.convert(&work) => converted,
        };
        converted.map_err(|failed| match failed {
            Unconverted::TooLarge if work.most == limit => Error::TooLarge {
                location: download.location.clone(),
                limit: work.most,
            },
            Unconverted::TooLarge if work.most == whole => {
                download.unconverted("its content is larger than its header says")
            }
            Unconverted::TooLarge if work.most == room.bytes() => self.downloader.crowded(),
            Unconverted::TooLarge => Error::NoSpace {
                dir: disk.dir().to_path_buf(),
                because: String::new(),
                required: most,
            },
            Unconverted::Failed(reason) if reason.contains(NO_SPACE) => Error::NoSpace {
                dir: disk.dir().to_path_buf(),
                because: String::new(),
                required: 0,
            },
            Unconverted::Failed(reason) => download.unconverted(&reason),
        })
    }
}

/// How programs report that the disk is full.
const NO_SPACE: &str = "No space left on device";

impl Download {
    fn unconverted(&self, reason: &str) -> Error {
        Error::convert(&self.location, reason)
    }
}
