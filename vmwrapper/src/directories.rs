//! The directories in QEMU's command line that it serves to its guest by 9p.
//!
//! Invariant: QEMU reaches a directory by its descriptor only, which is open as long as QEMU runs:
//! what is mounted below ends with it. Directory `i` is function `i % 8` of slot [`FIRST_SLOT`]` + i / 8`
//! of the root complex: the slots after those of NICs.
//! Failure: none; what comes in was validated.

use std::os::fd::AsRawFd as _;

use crate::files::Directory;

/// Slot of the first eight directories on bus `pcie.0`.
const FIRST_SLOT: usize = 0x18;
/// Devices in a slot.
const FUNCTIONS: usize = 8;

/// Arguments that give QEMU the directories, in order.
pub(crate) fn arguments(directories: &[Directory]) -> Vec<String> {
    directories.iter().enumerate().flat_map(one).collect()
}

fn one((index, directory): (usize, &Directory)) -> [String; 4] {
    let fd = directory.file.as_raw_fd();
    let tag = &directory.tag;
    let read_only = if directory.read_only { "on" } else { "off" };
    let slot = FIRST_SLOT + index / FUNCTIONS;
    let function = index % FUNCTIONS;
    [
        "-fsdev".into(),
        // Owners that QEMU cannot set are no error, and files of several file systems no confusion.
        format!(
            "local,id=vmlet-fs{index},path=/proc/self/fd/{fd},security_model=none,multidevs=remap,readonly={read_only}"
        ),
        "-device".into(),
        format!(
            "virtio-9p-pci,fsdev=vmlet-fs{index},id=vmlet-9p{index},mount_tag={tag},bus=pcie.0,addr={slot:#x}.{function},multifunction=on"
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_directory_has_its_descriptor_and_its_place_on_the_board() {
        let directories: Vec<_> = (0..10)
            .map(|n| Directory {
                tag: format!("vmlet-{n}"),
                read_only: n == 9,
                file: std::fs::File::open("/dev/null").unwrap().into(),
            })
            .collect();
        let found = arguments(&directories);
        let fd = |n: usize| directories[n].file.as_raw_fd();
        let first = [
            "-fsdev".to_owned(),
            format!(
                "local,id=vmlet-fs0,path=/proc/self/fd/{},security_model=none,multidevs=remap,readonly=off",
                fd(0)
            ),
            "-device".to_owned(),
            "virtio-9p-pci,fsdev=vmlet-fs0,id=vmlet-9p0,mount_tag=vmlet-0,bus=pcie.0,addr=0x18.0,multifunction=on"
                .to_owned(),
        ];
        assert_eq!(found[..4], first);
        let last = format!(
            "local,id=vmlet-fs9,path=/proc/self/fd/{},security_model=none,multidevs=remap,readonly=on",
            fd(9)
        );
        assert_eq!(found[37], last);
        assert!(found[39].contains("mount_tag=vmlet-9,bus=pcie.0,addr=0x19.1"));
        assert!(arguments(&[]).is_empty());
    }
}
