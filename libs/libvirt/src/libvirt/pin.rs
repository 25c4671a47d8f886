//! Which CPUs of the node a machine may use.
//!
//! Invariant: after success every virtual CPU and the emulator's main thread have the same mask.
//! Failure: libvirt's error; some threads may have the new mask already, so the call is to be
//! repeated.

use virt::domain::Domain;
use virt::error::Error;
use virt::sys;

/// Sets the mask of virtual CPUs and main thread of a running domain.
pub(super) fn machine(domain: &Domain, cpus: &[u32]) -> Result<(), Error> {
    let map = bits(cpus);
    let live = sys::VIR_DOMAIN_AFFECT_LIVE;
    let vcpus = domain.vcpus_flags(sys::VIR_DOMAIN_VCPU_LIVE)?;
    for vcpu in 0..vcpus {
        domain.pin_vcpu_flags(vcpu, &map, live)?;
    }
    domain.pin_emulator(&map, live)
}

/// One bit per CPU, as libvirt wants them.
fn bits(cpus: &[u32]) -> Vec<u8> {
    let mut map = Vec::new();
    for &cpu in cpus {
        let byte = cpu as usize / 8;
        let bit = cpu % 8;
        if map.len() <= byte {
            map.resize(byte + 1, 0);
        }
        map[byte] |= 1 << bit;
    }
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_is_a_bit() {
        assert_eq!(bits(&[0, 3, 9]), [0b1001, 0b10]);
        assert!(bits(&[]).is_empty());
    }
}
