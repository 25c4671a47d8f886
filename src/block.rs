//! Block devices of the node that machines use as disks.
//!
//! ```text
//!   written by us     ┌─ 1 MiB: marker ─┬─ the guest's disk: the image's content, then what the guest wrote ─┐
//!   another user's    ┌─ the guest's disk, from the first byte ──────────────────────────────────────────────┐
//! ```
//!
//! Invariant: a device has one container at most, whatever path it is named by, or several that
//! only read it; only QEMU's user gets at it, by a node below our own directory that is removed
//! with the container's domain. The marker shows that an image is complete only after all of it has
//! reached the device, and says beforehand that one is being written.
//! Failure: [`Error`]; a copy cut short is begun again, content that is not ours is never written
//! over.

use std::path::{Path, PathBuf};

use podspec::ContainerId;

mod copy;
mod error;
mod hold;
mod marker;
mod model;
mod plan;

pub use error::{Error, Result};
pub use model::{DesiredContent, Extent, Held, Number};

use crate::disk::qemu_img::QemuImg;
use crate::foreign::Foreign;
use crate::metadata::{self, Aside, Db, RecordStore};

/// The block devices that containers have.
#[derive(Debug)]
pub struct Blocks {
    records: RecordStore<Held>,
    root: PathBuf,
    qemu_img: QemuImg,
    /// Held while a container takes or leaves a device: the record and our node change together.
    turns: tokio::sync::Mutex<()>,
    /// Threads that read and write devices.
    foreign: Foreign,
}

impl Blocks {
    /// Reads what is recorded; `root` is the directory of our nodes, which must exist.
    pub async fn open(db: Db, root: PathBuf, qemu_img: QemuImg) -> metadata::Result<Self> {
        Ok(Self {
            records: RecordStore::load(db).await?,
            root,
            qemu_img,
            turns: tokio::sync::Mutex::default(),
            foreign: Foreign::default(),
        })
    }

    /// The records of devices that cannot be read.
    pub const fn aside(&self) -> &Aside {
        self.records.aside()
    }

    /// The directory below a state directory.
    pub fn directory_of(state: &Path) -> PathBuf {
        state.join("devices")
    }

    /// Our node of a device. One device has one node, so that the locks of emulators meet on it.
    pub fn node(&self, device: Number) -> PathBuf {
        self.root.join(device.to_string())
    }

    /// The part of the device that is the disk of this container; `None` when it has not got the
    /// device, or when the device is not prepared.
    pub fn extent(&self, device: Number, container: &ContainerId) -> Option<Extent> {
        let held = self.records.get(&device)?;
        held.is_of(container).then_some(held.extent)?
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::error::Error;
    use super::marker::Marker;
    use super::model::{DesiredContent, Extent, Number};
    use super::plan::{Content, Plan, decide};
    use crate::images::{Digest, Format, Image};

    const MIB: u64 = 1 << 20;
    const DEVICE: Number = Number { major: 7, minor: 0 };
    const SLICE: Extent = Extent {
        offset: MIB,
        size: 63 * MIB,
    };
    const WHOLE: Extent = Extent {
        offset: 0,
        size: 64 * MIB,
    };

    fn digest(byte: u8) -> Digest {
        Digest::from_bytes([byte; 32])
    }

    fn image(byte: u8, virtual_size: u64) -> Option<Image> {
        Some(Image {
            digest: digest(byte),
            size: 1,
            virtual_size,
            format: Format::Qcow2,
            path: "/image".into(),
            tags: Vec::new(),
            digests: Vec::new(),
            user: String::new(),
        })
    }

    fn desired(image: Option<Image>, is_kept: bool) -> DesiredContent {
        DesiredContent {
            image,
            is_kept,
            replaces: false,
        }
    }

    const fn writing(byte: u8) -> Content {
        Content::Marked(Marker::Writing(Digest::from_bytes([byte; 32])))
    }

    const fn written(byte: u8) -> Content {
        Content::Marked(Marker::Whole(Digest::from_bytes([byte; 32])))
    }

    #[rstest]
    #[case::first(Content::Blank, false, Plan::Write(digest(1), SLICE))]
    #[case::first_of_a_machine(Content::Blank, true, Plan::Write(digest(1), SLICE))]
    #[case::again(written(1), false, Plan::Boot(SLICE))]
    #[case::again_of_a_machine(written(1), true, Plan::Boot(SLICE))]
    #[case::another_image(written(2), false, Plan::BootOther(digest(2), SLICE))]
    #[case::a_part_of_another_image(writing(2), false, Plan::Write(digest(1), SLICE))]
    #[case::another_image_of_a_machine(written(2), true, Plan::Boot(SLICE))]
    #[case::cut_short(writing(1), false, Plan::Write(digest(1), SLICE))]
    #[case::cut_short_of_a_machine(writing(2), true, Plan::Write(digest(1), SLICE))]
    fn an_image_is_written_once(#[case] content: Content, #[case] kept: bool, #[case] plan: Plan) {
        let desired = desired(image(1, 63 * MIB), kept);
        assert_eq!(decide(DEVICE, 64 * MIB, content, &desired).unwrap(), plan);
    }

    #[rstest]
    #[case::another_image(written(2), false, Plan::Write(digest(1), SLICE))]
    #[case::the_same(written(1), false, Plan::Boot(SLICE))]
    #[case::of_a_machine(written(2), true, Plan::Boot(SLICE))]
    fn an_image_replaces_another_only_where_the_pod_says_so(
        #[case] content: Content,
        #[case] kept: bool,
        #[case] plan: Plan,
    ) {
        let desired = DesiredContent {
            replaces: true,
            ..desired(image(1, 63 * MIB), kept)
        };
        assert_eq!(decide(DEVICE, 64 * MIB, content, &desired).unwrap(), plan);
        let foreign = decide(DEVICE, 64 * MIB, Content::Foreign, &desired);
        assert!(matches!(foreign, Err(Error::Foreign(_))), "{foreign:?}");
    }

    #[rstest]
    #[case(Content::Foreign, Plan::Boot(WHOLE))]
    #[case(written(1), Plan::Boot(SLICE))]
    fn without_an_image_a_device_is_as_it_is(#[case] content: Content, #[case] plan: Plan) {
        let found = decide(DEVICE, 64 * MIB, content, &desired(None, true)).unwrap();
        assert_eq!(found, plan);
    }

    #[test]
    fn unusable_images_are_refused_with_a_clear_error() {
        let refused = |content, image| {
            let decided = decide(DEVICE, 64 * MIB, content, &desired(image, false));
            decided.unwrap_err().to_string()
        };
        assert!(refused(Content::Blank, None).contains("empty"));
        assert!(refused(writing(1), None).contains("name the image"));
        assert!(refused(Content::Foreign, image(1, MIB)).contains("clear its first and last MiB"));
        for image in [None, image(1, MIB)] {
            assert!(refused(Content::Marked(Marker::Later), image).contains("later version"));
        }
    }

    #[test]
    fn a_device_that_is_too_small_is_refused_with_both_sizes() {
        let too_large = DesiredContent {
            replaces: true,
            ..desired(image(1, 63 * MIB + 1), false)
        };
        for content in [Content::Blank, written(2), writing(1)] {
            let error = decide(DEVICE, 64 * MIB, content, &too_large).unwrap_err();
            assert!(matches!(error, Error::TooSmall { .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains("67108864 bytes"), "{text}");
            assert!(text.contains("needs 67109376 "), "{text}");
        }
        let tiny = decide(DEVICE, 512, Content::Blank, &too_large);
        assert!(matches!(tiny, Err(Error::TooSmall { .. })));
        // One that holds the image already is not measured again.
        assert!(decide(DEVICE, 64 * MIB, written(1), &too_large).is_ok());
    }
}
