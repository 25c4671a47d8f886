//! What to do with a device, from its content and the desired content. Pure.
//!
//! Invariant: content without a marker of ours before it is never overwritten; the whole content of
//! an image is only where the pod says so, and what a kept machine wrote never.
//! Failure: [`Error`] states what is in the way.

use super::error::{Error, Result};
use super::marker::{Marker, OFFSET};
use super::model::{DesiredContent, Extent, Number};
use crate::images::Digest;

/// Sizes of disks are multiples of this.
const SECTOR: u64 = 512;

/// What is on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    /// Nothing, as far as one can see at both ends.
    Blank,
    /// A marker of ours.
    Marked(Marker),
    /// Something else.
    Foreign,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plan {
    /// The guest boots from what is there.
    Boot(Extent),
    /// The same; it is the content of this other image.
    BootOther(Digest, Extent),
    /// The image with this digest is written first.
    Write(Digest, Extent),
}

/// Decides. `size` is the device's, in bytes.
pub(super) fn decide(
    device: Number,
    size: u64,
    content: Content,
    desired: &DesiredContent,
) -> Result<Plan> {
    let marked = Extent {
        offset: OFFSET,
        size: size.saturating_sub(OFFSET) / SECTOR * SECTOR,
    };
    let Some(image) = &desired.image else {
        return match content {
            Content::Marked(Marker::Whole(_)) => Ok(Plan::Boot(marked)),
            Content::Marked(Marker::Writing(_)) => Err(Error::Incomplete(device)),
            Content::Marked(Marker::Later) => Err(Error::Later(device)),
            Content::Blank => Err(Error::Blank(device)),
            Content::Foreign => Ok(Plan::Boot(whole(size))),
        };
    };
    match content {
        Content::Marked(Marker::Whole(there)) if desired.is_kept || there == image.digest => {
            return Ok(Plan::Boot(marked));
        }
        Content::Marked(Marker::Whole(there)) if !desired.replaces => {
            return Ok(Plan::BootOther(there, marked));
        }
        Content::Marked(Marker::Whole(_) | Marker::Writing(_)) | Content::Blank => {}
        Content::Marked(Marker::Later) => return Err(Error::Later(device)),
        Content::Foreign => return Err(Error::Foreign(device)),
    }
    let image_size = image.virtual_size.next_multiple_of(SECTOR);
    if marked.size < image_size {
        return Err(Error::TooSmall {
            device,
            has: size,
            needs: image_size.saturating_add(OFFSET),
            image: image_size,
        });
    }
    Ok(Plan::Write(image.digest, marked))
}

/// All of a device.
pub(super) const fn whole(size: u64) -> Extent {
    Extent { offset: 0, size }
}
