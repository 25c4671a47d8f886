//! Disks on virtio-blk, named in the order of the list, and a CD-ROM.
//!
//! Invariant: the root disk is `vda` and the only one to boot from. The base of an overlay is
//! described to the end of its chain, so that libvirt follows no name that an image file contains.
//! Failure: a path that is not UTF-8.

use std::path::PathBuf;

use serde::Serialize;

use super::{Result, Switch, text};
use crate::block::Extent;
use crate::vm::domain::{Disk as Spec, DiskDevice, DiskFormat, DiskSource};

const LETTERS: usize = 26;

#[derive(Debug, Serialize)]
pub(super) struct Disk {
    #[serde(rename = "@type")]
    kind: &'static str,
    #[serde(rename = "@device")]
    device: &'static str,
    driver: Driver,
    source: Source,
    #[serde(rename = "backingStore", skip_serializing_if = "Option::is_none")]
    backing: Option<Backing>,
    target: Target,
    #[serde(skip_serializing_if = "Option::is_none")]
    readonly: Option<Switch>,
    #[serde(skip_serializing_if = "Option::is_none")]
    serial: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    boot: Option<Boot>,
}

#[derive(Debug, Serialize)]
struct Driver {
    #[serde(rename = "@name")]
    name: &'static str,
    #[serde(rename = "@type")]
    format: &'static str,
    #[serde(rename = "@cache", skip_serializing_if = "Option::is_none")]
    cache: Option<&'static str>,
    #[serde(rename = "@io", skip_serializing_if = "Option::is_none")]
    io: Option<&'static str>,
    #[serde(rename = "@discard")]
    discard: &'static str,
}

#[derive(Debug, Default, Serialize)]
struct Source {
    #[serde(rename = "@file", skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(rename = "@dev", skip_serializing_if = "Option::is_none")]
    dev: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seclabel: Option<SecLabel>,
    #[serde(skip_serializing_if = "Option::is_none")]
    slices: Option<Slices>,
}

#[derive(Debug, Serialize)]
struct Slices {
    slice: Slice,
}

/// The part of the source that is the disk, in bytes.
#[derive(Debug, Serialize)]
struct Slice {
    #[serde(rename = "@type")]
    kind: &'static str,
    #[serde(rename = "@offset")]
    offset: u64,
    #[serde(rename = "@size")]
    size: u64,
}

#[derive(Debug, Serialize)]
struct SecLabel {
    #[serde(rename = "@model")]
    model: &'static str,
    #[serde(rename = "@relabel")]
    relabel: &'static str,
}

#[derive(Debug, Default, Serialize)]
struct Backing {
    #[serde(rename = "@type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    format: Option<Format>,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<Source>,
    /// An empty element ends the chain.
    #[serde(rename = "backingStore", skip_serializing_if = "Option::is_none")]
    next: Option<Box<Backing>>,
}

#[derive(Debug, Serialize)]
struct Format {
    #[serde(rename = "@type")]
    kind: &'static str,
}

#[derive(Debug, Serialize)]
struct Target {
    #[serde(rename = "@dev")]
    dev: String,
    #[serde(rename = "@bus")]
    bus: &'static str,
}

#[derive(Debug, Serialize)]
struct Boot {
    #[serde(rename = "@order")]
    order: u8,
}

/// The root disk and the others.
pub(super) fn all(root: &Spec, others: &[Spec]) -> Result<Vec<Disk>> {
    std::iter::once(root)
        .chain(others)
        .enumerate()
        .map(|(index, spec)| Disk::new(spec, index))
        .collect()
}

impl Disk {
    fn new(spec: &Spec, index: usize) -> Result<Self> {
        let (kind, source, backing) = match &spec.source {
            DiskSource::File(path) => ("file", Source::file(text(path)?), Backing::default()),
            DiskSource::Block { path, part } => {
                let source = Source::dev(text(path)?, *part);
                ("block", source, Backing::default())
            }
            DiskSource::Overlay {
                path,
                base,
                base_format,
            } => (
                "file",
                Source::file(text(path)?),
                Backing::file(text(base)?, *base_format),
            ),
            DiskSource::Layers { path, below, base } => (
                "file",
                Source::file(text(path)?),
                Backing::chain(below, base.as_ref())?,
            ),
        };
        // A guest's completed writes are on the device, and nothing is cached twice.
        let is_device = kind == "block";
        let (device, target) = match spec.device {
            DiskDevice::Virtio => ("disk", Target::new(name(index), "virtio")),
            DiskDevice::CdRom => ("cdrom", Target::new("sda".to_owned(), "sata")),
        };
        Ok(Self {
            kind,
            device,
            driver: Driver {
                name: "qemu",
                format: spec.format.name(),
                cache: is_device.then_some("none"),
                io: is_device.then_some("native"),
                discard: if spec.discard { "unmap" } else { "ignore" },
            },
            source,
            backing: Some(backing),
            target,
            readonly: spec.read_only.then(Switch::default),
            serial: spec.serial.clone(),
            boot: (index == 0).then_some(Boot { order: 1 }),
        })
    }
}

impl Target {
    const fn new(dev: String, bus: &'static str) -> Self {
        Self { dev, bus }
    }
}

impl Source {
    fn file(path: String) -> Self {
        Self {
            file: Some(path),
            ..Self::default()
        }
    }

    fn dev(path: String, part: Option<Extent>) -> Self {
        let slice = |part: Extent| Slice {
            kind: "storage",
            offset: part.offset,
            size: part.size,
        };
        Self {
            dev: Some(path),
            slices: part.map(slice).map(|slice| Slices { slice }),
            ..Self::default()
        }
    }
}

impl Backing {
    fn file(path: String, format: DiskFormat) -> Self {
        Self {
            kind: Some("file"),
            format: Some(Format {
                kind: format.name(),
            }),
            source: Some(Source {
                // Many guests read one base: its owner must not follow the last of them.
                seclabel: Some(SecLabel {
                    model: "dac",
                    relabel: "no",
                }),
                ..Source::file(path)
            }),
            next: Some(Box::default()),
        }
    }

    /// A layer that belongs to the machine: libvirt hands it to QEMU's user.
    fn layer(path: String, next: Self) -> Self {
        Self {
            kind: Some("file"),
            format: Some(Format {
                kind: DiskFormat::Qcow2.name(),
            }),
            source: Some(Source::file(path)),
            next: Some(Box::new(next)),
        }
    }

    /// Layers, the upper one first, and what is under the last one.
    fn chain(layers: &[PathBuf], base: Option<&(PathBuf, DiskFormat)>) -> Result<Self> {
        let last = match base {
            Some((path, format)) => Self::file(text(path)?, *format),
            None => Self::default(),
        };
        let mut layers = layers.iter().rev();
        layers.try_fold(last, |next, layer| Ok(Self::layer(text(layer)?, next)))
    }
}

impl DiskFormat {
    const fn name(self) -> &'static str {
        match self {
            Self::Qcow2 => "qcow2",
            Self::Raw => "raw",
        }
    }
}

/// `vda` … `vdz`, `vdaa` …, as the guest's kernel counts.
fn name(index: usize) -> String {
    let mut letters = Vec::new();
    let mut rest = index + 1;
    while rest > 0 {
        rest -= 1;
        let letter = u8::try_from(rest % LETTERS).unwrap_or_default();
        letters.push(char::from(b'a' + letter));
        rest /= LETTERS;
    }
    "vd".chars().chain(letters.into_iter().rev()).collect()
}

#[cfg(test)]
mod tests {
    use super::name;

    #[test]
    fn disks_are_named_as_the_kernel_counts() {
        let names = [0, 1, 25, 26, 27, 51, 52, 701, 702].map(name);
        let expected = [
            "vda", "vdb", "vdz", "vdaa", "vdab", "vdaz", "vdba", "vdzz", "vdaaa",
        ];
        assert_eq!(names, expected);
    }
}
