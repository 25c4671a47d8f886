//! What firmware finds on a disk to boot from, by the disk's first bytes.
//!
//! Invariant: a BIOS starts only code in the boot sector of a root disk, which is a hard disk: no partition
//! table without it, and no CD's boot catalogue. A disk that only UEFI boots has its machine boot by UEFI.
//! Failure: none; code that is not understood counts as bootable, so that no disk is called bad
//! wrongly.

use std::fs::File;
use std::io;

use super::download::Head;
use super::format::{Format, head_of};
use super::qcow2;

/// End of a boot sector.
const SIGNATURE: (usize, &[u8]) = (510, &[0x55, 0xaa]);
/// Boot code is before the disk's own identifier and the partitions.
const CODE: usize = 440;
/// Partitions in a boot sector: where they begin, how long each is, how many there are.
const PARTITIONS: (usize, usize, usize) = (446, 16, 4);
/// A partition that the boot sector's code starts.
const ACTIVE: u8 = 0x80;
/// Types of partitions: the system partition of UEFI, and the one that stands for a whole GPT.
const EFI_SYSTEM: u8 = 0xef;
const PROTECTIVE: u8 = 0xee;
/// A GPT, for sectors of either size.
const GPT: [(usize, &[u8]); 2] = [(512, b"EFI PART"), (4096, b"EFI PART")];
/// ISO 9660.
const CD: (usize, &[u8]) = (0x8001, b"CD001");
/// Windows writes this code to every disk, a GPT included. It starts the active partition only.
const WINDOWS: &[u8] = &[
    0x33, 0xc0, 0x8e, 0xd0, 0xbc, 0x00, 0x7c, 0x8e, 0xc0, 0x8e, 0xd8, 0xbe, 0x00, 0x7c,
];

/// What starts from a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Boot {
    /// Code in the boot sector.
    Bios,
    /// A partition table that only UEFI boots from.
    Efi,
    /// What only a CD drive boots from.
    Cd,
    /// A boot signature, as every partition table has it, without code.
    NoCode,
    /// Nothing that firmware knows.
    Nothing,
}

impl Boot {
    /// What boots a raw disk that begins with `head`.
    pub fn detect(head: &[u8]) -> Self {
        let has = |(offset, magic): (usize, &[u8])| {
            let at = head.get(offset..).unwrap_or_default();
            at.starts_with(magic)
        };
        let code = head.get(..CODE).unwrap_or(head);
        let has_code = code.iter().any(|byte| *byte != 0);
        let is_gpt = GPT.into_iter().any(has);
        let is_signed = has(SIGNATURE);
        let (from, length, count) = PARTITIONS;
        let partitions = head.get(from..from + length * count).unwrap_or_default();
        let is_active = partitions.chunks(length).any(|one| one[0] == ACTIVE);
        let is_of_efi = |one: &[u8]| matches!(one[4], EFI_SYSTEM | PROTECTIVE);
        if is_signed && has_code && (!is_gpt || is_active || !code.starts_with(WINDOWS)) {
            Self::Bios
        } else if is_gpt || is_signed && partitions.chunks(length).any(is_of_efi) {
            Self::Efi
        } else if has(CD) {
            Self::Cd
        } else if is_signed {
            Self::NoCode
        } else {
            Self::Nothing
        }
    }

    /// Whether a machine with a BIOS starts from it.
    pub const fn is_bootable(self) -> bool {
        matches!(self, Self::Bios)
    }

    /// Why a machine with a BIOS does not start from an image of it.
    pub const fn problem(self) -> Option<&'static str> {
        match self {
            Self::Bios => None,
            Self::Efi => Some(
                "only UEFI boots the image, which has a partition table and no boot code, and the pod requests \
                 a BIOS by vmlet.dev/firmware: the guest will not boot; leave the annotation out, or use an \
                 image for BIOS",
            ),
            Self::Cd => Some(
                "the image is that of a CD (ISO 9660) without a boot sector, and machines have it as a \
                 hard disk: the guest will not boot; use a hybrid image, or that of an installed disk",
            ),
            Self::NoCode => Some(
                "the image has a boot signature and no boot code before it, as a disk that was only \
                 partitioned: the guest will not boot; install a boot loader in its first sector",
            ),
            Self::Nothing => Some(
                "the image is a raw disk without a boot signature or a partition table: the guest will \
                 not boot; is it a disk image?",
            ),
        }
    }
}

/// What starts from the image in a file; `None` where that is not known. Blocks.
pub fn boot_of(file: &File, format: Format) -> io::Result<Option<Boot>> {
    let head = head_of(file)?;
    Ok(match format {
        Format::Raw => Some(Boot::detect(&head)),
        Format::Qcow2 => of_qcow2(qcow2::begin(&head, file)),
    })
}

/// The same of a file of which only the beginning is known.
pub(super) fn boot_in(beginning: &Head, format: Format) -> Option<Boot> {
    let Head { bytes, length } = beginning;
    match format {
        Format::Raw => Some(Boot::detect(bytes)),
        Format::Qcow2 => of_qcow2(qcow2::begin_in(bytes, *length)),
    }
}

fn of_qcow2(begin: Option<Vec<u8>>) -> Option<Boot> {
    let boot = begin.map(|begin| Boot::detect(&begin));
    // An empty disk in this format is no mistake.
    boot.filter(|boot| *boot != Boot::Nothing)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const PARTITION: (usize, &[u8]) = (446, &[0x80, 0, 2, 0, 0x83]);
    const EFI_PARTITION: (usize, &[u8]) = (446 + 4, &[0xef]);
    const PROTECTED: (usize, &[u8]) = (446 + 4, &[0xee]);
    const GRUB: (usize, &[u8]) = (0, &[0xeb, 0x63, 0x90]);

    fn boot(parts: &[(usize, &[u8])]) -> Boot {
        let mut head = vec![0; 64 << 10];
        for (at, bytes) in parts {
            head[*at..*at + bytes.len()].copy_from_slice(bytes);
        }
        Boot::detect(&head)
    }

    #[rstest]
    #[case::nothing(&[], Boot::Nothing)]
    #[case::text(&[(0, &b"hello"[..])], Boot::Nothing)]
    #[case::code_without_signature(&[GRUB], Boot::Nothing)]
    #[case::boot_sector(&[GRUB, SIGNATURE], Boot::Bios)]
    #[case::signature_alone(&[SIGNATURE], Boot::NoCode)]
    #[case::partitions_alone(&[PARTITION, SIGNATURE], Boot::NoCode)]
    // As sfdisk and parted leave it: the disk has an identifier behind the place of the code.
    #[case::labelled(&[(440, &[1, 2, 3, 4][..]), PARTITION, SIGNATURE], Boot::NoCode)]
    #[case::cd_with_partitions(&[PARTITION, SIGNATURE, CD], Boot::Cd)]
    // As the Debian cloud images: GRUB, a GPT with a BIOS boot partition and an ESP.
    #[case::hybrid(&[GRUB, PROTECTED, SIGNATURE, GPT[0]], Boot::Bios)]
    #[case::mkosi(&[PROTECTED, SIGNATURE, GPT[0]], Boot::Efi)]
    #[case::no_protective_record(&[GPT[0]], Boot::Efi)]
    #[case::large_sectors(&[PROTECTED, SIGNATURE, GPT[1]], Boot::Efi)]
    #[case::efi_in_a_record(&[EFI_PARTITION, SIGNATURE], Boot::Efi)]
    #[case::windows(&[(0, WINDOWS), PROTECTED, SIGNATURE, GPT[0]], Boot::Efi)]
    #[case::windows_for_bios(&[(0, WINDOWS), (446, &[0x80]), SIGNATURE], Boot::Bios)]
    #[case::cd(&[CD], Boot::Cd)]
    #[case::hybrid_cd(&[GRUB, SIGNATURE, CD], Boot::Bios)]
    #[case::hybrid_cd_of_efi(&[GRUB, PROTECTED, SIGNATURE, GPT[0], CD], Boot::Bios)]
    fn a_disk_boots_by_its_boot_sector(#[case] parts: &[(usize, &[u8])], #[case] expected: Boot) {
        assert_eq!(boot(parts), expected);
        assert_eq!(expected.problem().is_none(), expected.is_bootable());
    }

    #[test]
    fn a_short_head_is_judged_by_what_is_there() {
        for length in [0, 3, 446, 450, 512, 520] {
            let mut head = vec![0; length];
            assert_eq!(Boot::detect(&head), Boot::Nothing, "{length}");
            head.fill(0x55);
            assert_eq!(Boot::detect(&head), Boot::Nothing, "{length}");
        }
    }
}
