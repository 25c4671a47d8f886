//! What a disk of a package is, by its first bytes.
//!
//! Invariant: what no node takes is refused before it is sent; the node itself checks all the rest.
//! Failure: a sentence that says how to convert the disk.

use std::os::unix::fs::FileExt as _;

use anyhow::{Context as _, bail};

use super::package::Part;
use super::plan::Plan;
use super::report::Fate;
use super::shown;

/// First bytes of disks, and whether a node takes them.
const MAGICS: [(&[u8], Content); 8] = [
    (b"KDMV", Content::Converted("vmdk")),
    (b"vhdxfile", Content::Converted("vhdx")),
    (b"QFI\xfb", Content::Taken),
    (b"\x1f\x8b", Content::Packed),
    (b"\xfd7zXZ\0", Content::Packed),
    (b"\x28\xb5\x2f\xfd", Content::Packed),
    (
        b"# Disk DescriptorFile",
        Content::Refused("a VMDK descriptor whose content is in other files"),
    ),
    (b"conectix", Content::Refused("a VHD disk")),
];

/// A kind of disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    Taken,
    /// The node converts it if its settings list this format.
    Converted(&'static str),
    /// Its disk shows when it is unpacked.
    Packed,
    Refused(&'static str),
}

impl Content {
    fn detect(head: &[u8]) -> Self {
        let found = MAGICS.iter().find(|(magic, _)| head.starts_with(magic));
        found.map_or(Self::Taken, |(_, content)| *content)
    }
}

/// Refuses a disk that no node takes; says in the report what the node needs for it.
pub(super) fn check(part: &Part, plan: &mut Plan) -> anyhow::Result<()> {
    let name = shown(&part.name);
    let mut head = [0; 32];
    let most = usize::try_from(part.size).unwrap_or(head.len());
    let head = &mut head[..most.min(32)];
    let read = part.file.read_exact_at(head, part.offset);
    read.with_context(|| format!("read {name:?}"))?;
    let compression = plan.file.compression.as_deref();
    let content = Content::detect(head);
    if compression.is_some() && content != Content::Packed {
        let compression = shown(compression.unwrap_or_default());
        bail!(
            "{name:?} is compressed ({compression:?}), and not by gzip, xz or zstd, which nodes unpack: unpack it first"
        );
    }
    let part = format!("disk {name}");
    match content {
        Content::Refused(what) => bail!(
            "{name:?} is {what}: convert it first (qemu-img convert -O qcow2), and name the result in the descriptor"
        ),
        Content::Converted(format) => {
            let text =
                format!("the node converts it to qcow2: its images.convert must list {format:?}");
            plan.report.add(Fate::Changed, &part, text);
        }
        Content::Packed => {
            let text = "the node unpacks it; images.convert must list the format if it is not qcow2 or raw";
            plan.report.add(Fate::Note, &part, text);
        }
        Content::Taken => {}
    }
    Ok(())
}
