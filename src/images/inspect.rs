//! Inspects an image from its first bytes on the server.
//!
//! Invariant: what is refused here is refused by a pull; what is accepted here is accepted by a pull, as
//! far as its beginning and its length say; nothing is stored. Of a file that shows its disk late,
//! more and more is read, up to a limit; beyond that a pull shows it. Of a qcow2 file more is read
//! once, since the boot sector of its disk is behind its tables. A digest in the name specifies
//! nothing about a beginning, so it is not checked; a file of checksums says which one the whole has.
//! Failure: as of a pull.

use std::fs::File;
use std::io;

use serde::{Deserialize, Serialize};

use super::boot::{Boot, boot_in, boot_of};
use super::checksum::Checksum;
use super::digest::Digest;
use super::download::{Head, Target};
use super::error::{Error, Result};
use super::format::{Accepted, Disk, Format, HEAD};
use super::locator::Locator;
use super::pull::{NO_DISK, is_uploaded};
use super::reference::Name;
use super::registry::Wanted;
use super::translate::{Place, Source};
use super::unpack::{Shape, head_in};
use super::{Inner, qcow2, registry};

/// How much of a file is read, one after the other: compressed files show their first bytes late,
/// and layers have other files before the disk.
const DEPTHS: [u64; 3] = [HEAD, 1 << 20, 8 << 20];

/// How much of a qcow2 file is read for the boot sector of its disk: `qemu-img` writes it within the
/// first half of it.
const BOOT_DEPTH: u64 = 1 << 20;

const LISTED_IN_REGISTRY: &str = "is in a registry by a translation rule of the node, and has a file of checksums, which \
    is for web servers; follow a tag of the registry";

/// What the first bytes of an image say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inspected {
    /// How the disk is written; qcow2 also if a pull converts it to that. `None`: a pull shows it.
    pub format: Option<Format>,
    /// Size of the disk that a guest would see, in bytes; 0: the server does not say how long a raw
    /// file is, or the first bytes of a disk that a pull converts do not show it.
    pub virtual_bytes: u64,
    /// Size of the file, in bytes; 0: the server does not say.
    pub file_bytes: u64,
    /// Whether a BIOS boots from the disk; true where that is not known.
    pub bootable: bool,
    /// What boots from the disk, where that is known.
    #[serde(default)]
    pub firmware: Option<Firmware>,
    /// Digest of the manifest or index that the name means in a registry, or of the file by a file of checksums;
    /// `None`: there is neither, or the row is of an older version.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "digest_text")]
    pub digest: Option<Checksum>,
}

/// What starts a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Firmware {
    /// Code in the boot sector.
    Bios,
    /// UEFI alone.
    Efi,
}

impl Firmware {
    /// The name in the node API: `bios` or `efi`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Bios => "bios",
            Self::Efi => "efi",
        }
    }

    const fn for_boot(boot: Boot) -> Option<Self> {
        match boot {
            Boot::Bios => Some(Self::Bios),
            Boot::Efi => Some(Self::Efi),
            Boot::Cd | Boot::NoCode | Boot::Nothing => None,
        }
    }
}

/// What the beginning of a file shows.
enum Look {
    /// The disk in it.
    Disk(Head),
    /// More is to be read.
    More,
    /// All of it was read, and there is no disk.
    Nothing,
}

/// What a file has been found to be.
struct Seen {
    /// Host and path.
    location: String,
    /// `None`: a pull shows it.
    head: Option<Head>,
    /// Size of the file.
    bytes: Option<u64>,
    /// Of its manifest.
    digest: Option<Digest>,
}

impl Inner {
    pub(super) async fn inspect(&self, locator: Locator<'_>) -> Result<Inspected> {
        let (name, origin) = locator.parse()?;
        if is_uploaded(&name) {
            return self.inspect_uploaded(&name).await;
        }
        let place = self.place(&name, origin.clone(), locator.tls()).await?;
        let listed = match (locator.listed()?, &place) {
            (None, _) => None,
            (Some(list), Place::File(_)) => {
                Some(self.listed((&name, &origin), list, locator.tls()).await?)
            }
            (Some(_), Place::Registry(_)) => {
                return Err(Error::InvalidName {
                    name: name.repository().to_owned(),
                    reason: LISTED_IN_REGISTRY.into(),
                });
            }
        };
        let seen = match place {
            Place::File(source) => self.peek_file(source).await?,
            Place::Registry(place) => self.peek_registry(&place).await?,
        };
        let Seen {
            location,
            head,
            bytes,
            digest,
        } = seen;
        let digest = listed.or(digest.map(Checksum::from));
        let file_bytes = bytes.unwrap_or_default();
        let Some(head) = head else {
            tracing::info!(%name, location, "image inspected: a pull shows what it is");
            return Ok(Inspected {
                format: None,
                virtual_bytes: 0,
                file_bytes,
                bootable: true,
                firmware: None,
                digest,
            });
        };
        let judged = self.downloader.rules().judge(head.judged(), head.length);
        let accepted = judged.map_err(|reason| Error::Format {
            location: location.clone(),
            reason,
        })?;
        let disk = match accepted {
            Accepted::Disk(disk) => disk,
            // What a pull makes of it.
            Accepted::Convertible { virtual_size, .. } => Disk {
                format: Format::Qcow2,
                virtual_size,
            },
        };
        // A compressed beginning is unpacked.
        let boot = tokio::task::spawn_blocking(move || boot_in(&head, disk.format)).await?;
        tracing::info!(%name, location, format = disk.format.as_str(), "image inspected");
        Ok(Inspected {
            format: Some(disk.format),
            virtual_bytes: disk.virtual_size,
            file_bytes,
            bootable: boot.is_none_or(Boot::is_bootable),
            firmware: boot.and_then(Firmware::for_boot),
            digest,
        })
    }

    /// The same of an uploaded image, whose file is here.
    async fn inspect_uploaded(&self, name: &Name) -> Result<Inspected> {
        let image = self.stored(name)?;
        let path = image.path.clone();
        let look = move || boot_of(&File::open(path)?, image.format);
        let boot = tokio::task::spawn_blocking(look).await?;
        let boot = boot.map_err(Error::io("read", image.path))?;
        Ok(Inspected {
            format: Some(image.format),
            virtual_bytes: image.virtual_size,
            file_bytes: image.size,
            bootable: boot.is_none_or(Boot::is_bootable),
            firmware: boot.and_then(Firmware::for_boot),
            digest: None,
        })
    }

    async fn peek_file(&self, source: Source) -> Result<Seen> {
        let location = source.location();
        let target = Target::for_source(source);
        let mut bytes = None;
        for depth in DEPTHS {
            let head = self.downloader.peek(&target, depth).await?;
            bytes = head.length;
            let head = match look(head, Shape::Disk).await? {
                Look::Disk(head) => head,
                Look::More => continue,
                Look::Nothing => {
                    return Err(Error::content(&location, "it cannot be unpacked"));
                }
            };
            let head = self.deepened(head, depth, Shape::Disk, &target).await?;
            return Ok(Seen {
                location,
                head: Some(head),
                bytes,
                digest: None,
            });
        }
        Ok(Seen {
            location,
            head: None,
            bytes,
            digest: None,
        })
    }

    /// The head of the first blob that shows one, and the size of that blob.
    async fn peek_registry(&self, place: &registry::Place) -> Result<Seen> {
        let wanted = Wanted {
            place,
            credentials: None,
        };
        let resolved = self.registries.resolve(&self.downloader, wanted).await?;
        let location = place.to_string();
        let mut is_unknown = false;
        for blob in &resolved.candidates {
            let (mut servers, mut target) = resolved.servers(&self.downloader, wanted, blob)?;
            let mut looked = Look::More;
            let mut reached = 0;
            for depth in DEPTHS {
                reached = depth;
                let peeked = loop {
                    match self.downloader.peek(&target, depth).await {
                        Ok(head) => break head,
                        Err(error) => target = servers.after(error).await?,
                    }
                };
                looked = look(peeked, blob.shape).await?;
                if !matches!(looked, Look::More) {
                    break;
                }
            }
            match looked {
                Look::Disk(head) => {
                    let head = self.deepened(head, reached, blob.shape, &target).await?;
                    return Ok(Seen {
                        location,
                        head: Some(head),
                        bytes: Some(blob.size),
                        digest: Some(resolved.digest),
                    });
                }
                Look::More => is_unknown = true,
                Look::Nothing => {}
            }
        }
        if is_unknown {
            Ok(Seen {
                location,
                head: None,
                bytes: None,
                digest: Some(resolved.digest),
            })
        } else {
            Err(Error::content(&location, NO_DISK))
        }
    }

    /// The same head with more behind it, where the boot sector of its disk may be there. `depth` was
    /// read of the file so far.
    async fn deepened(
        &self,
        head: Head,
        depth: u64,
        shape: Shape,
        target: &Target,
    ) -> Result<Head> {
        if depth >= BOOT_DEPTH || !self.is_begun_qcow2(&head) {
            return Ok(head);
        }
        let look_at = move || match qcow2::begin_in(&head.bytes, head.length) {
            Some(_) => Err(head),
            None => Ok(head),
        };
        let head = match tokio::task::spawn_blocking(look_at).await? {
            // Its boot sector is there.
            Err(head) => return Ok(head),
            Ok(head) => head,
        };
        let deeper = async {
            let peeked = self.downloader.peek(target, BOOT_DEPTH).await?;
            look(peeked, shape).await
        };
        match deeper.await {
            Ok(Look::Disk(deeper)) if deeper.bytes.starts_with(&head.bytes) => Ok(deeper),
            // What is known already is enough to judge the disk.
            _ => Ok(head),
        }
    }

    /// Whether it is the beginning of a qcow2 file that is accepted.
    fn is_begun_qcow2(&self, head: &Head) -> bool {
        head.bytes.starts_with(qcow2::MAGIC)
            && !head.is_all()
            && self
                .downloader
                .rules()
                .judge(head.judged(), head.length)
                .is_ok()
    }
}

/// A digest in a row, as text.
mod digest_text {
    use serde::{Deserialize, Deserializer, Serializer};

    use super::Checksum;

    #[expect(clippy::ref_option, reason = "the signature that serde calls")]
    pub(super) fn serialize<S: Serializer>(
        digest: &Option<Checksum>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&digest.map(|digest| digest.to_string()).unwrap_or_default())
    }

    /// A text that is no digest counts as none: the row is of another version.
    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Checksum>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        Ok(text.and_then(|text| text.parse().ok()))
    }
}

/// Looks for the disk in a file that begins so.
async fn look(head: Head, shape: Shape) -> Result<Look> {
    if !shape.is_packed(&head.bytes) {
        return Ok(Look::Disk(head));
    }
    // It is unpacked, which takes a processor a while.
    let looked = tokio::task::spawn_blocking(move || look_into(&head, shape)).await?;
    looked.map_err(|e| Error::decoder("the beginning of the image", &e.to_string()))
}

fn look_into(head: &Head, shape: Shape) -> io::Result<Look> {
    let is_all = head.is_all();
    Ok(match head_in(&head.bytes, shape)? {
        Some(found) if found.is_enough() || is_all => Look::Disk(Head {
            bytes: found.head,
            // Of a compressed disk it is not known how much follows.
            length: found.length,
        }),
        _ if is_all => Look::Nothing,
        _ => Look::More,
    })
}
