//! The NICs in QEMU's command line, which libvirt does not know.
//!
//! Invariant: NIC `i` sits in slot [`FIRST_SLOT`]` + i` of the root complex, at each start again,
//! so that the guest finds its NICs under the same names. libvirt numbers its own root ports from
//! slot 1 up, and 0x1f is the chipset's; the daemon puts nothing into slots 0x10 to 0x17, and
//! directories follow in 0x18.
//! Failure: none; what comes in was validated.

use std::os::fd::AsRawFd;

use crate::handoff::Nic;

/// Slot of the first NIC on bus `pcie.0`.
const FIRST_SLOT: usize = 0x10;

/// What QEMU and guests take for granted when nothing is said.
const DEFAULT_MTU: u32 = 1500;

/// Arguments that give QEMU the NICs, in order.
pub(crate) fn network(nics: &[Nic]) -> Vec<String> {
    nics.iter()
        .enumerate()
        .flat_map(|(index, nic)| one(index, nic))
        .collect()
}

fn one(index: usize, nic: &Nic) -> [String; 4] {
    let fd = nic.tap.as_raw_fd();
    let mac = nic.mac;
    let slot = FIRST_SLOT + index;
    let mtu = match nic.mtu {
        DEFAULT_MTU => String::new(),
        mtu => format!(",host_mtu={mtu}"),
    };
    [
        "-netdev".into(),
        format!("tap,id=vmlet{index},fd={fd},vhost=off"),
        "-device".into(),
        format!(
            "virtio-net-pci,netdev=vmlet{index},id=vmlet-net{index},mac={mac}{mtu},bus=pcie.0,addr={slot:#x}"
        ),
    ]
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd, OwnedFd};

    use super::network;
    use crate::handoff::Nic;

    fn nic(mac: &str, mtu: u32) -> Nic {
        let tap: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
        Nic {
            tap,
            mac: mac.parse().unwrap(),
            mtu,
        }
    }

    #[test]
    fn each_nic_has_its_descriptor_its_slot_and_an_mtu_only_when_it_is_special() {
        let nics = [
            nic("0a:58:0a:01:00:05", 1500),
            nic("0a:58:0a:02:00:07", 8950),
        ];
        let a = nics[0].tap.as_raw_fd();
        let b = nics[1].tap.as_raw_fd();
        assert_eq!(
            network(&nics),
            [
                "-netdev".to_owned(),
                format!("tap,id=vmlet0,fd={a},vhost=off"),
                "-device".to_owned(),
                "virtio-net-pci,netdev=vmlet0,id=vmlet-net0,mac=0a:58:0a:01:00:05,bus=pcie.0,addr=0x10"
                    .to_owned(),
                "-netdev".to_owned(),
                format!("tap,id=vmlet1,fd={b},vhost=off"),
                "-device".to_owned(),
                "virtio-net-pci,netdev=vmlet1,id=vmlet-net1,mac=0a:58:0a:02:00:07,host_mtu=8950,bus=pcie.0,addr=0x11"
                    .to_owned(),
            ]
        );
        assert!(network(&[]).is_empty());
    }
}
