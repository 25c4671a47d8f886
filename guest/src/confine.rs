//! What a command may not do: capabilities, privileges, system calls.
//!
//! Invariant: everything is prepared before the fork; after it only system calls are made. A command
//! runs with all of its limits or not at all. What the agent itself may not do, no command may.
//! Failure: [`Invalid`] before the fork; after it the [`Step`] that the kernel refuses.
#![allow(unsafe_code)] // capset and the filter have no safe form; a comment at each states why it is sound.

use std::io;

use guestapi::Confinement;
use nix::errno::Errno;
use nix::libc;
use nix::sys::prctl::{set_keepcaps, set_no_new_privs};

use crate::step::Step;

/// Length of an instruction of a filter in bytes.
const INSTRUCTION: usize = 8;

/// The kernel's limit of a filter.
const INSTRUCTIONS: usize = 4096;

/// `_LINUX_CAPABILITY_VERSION_3`
const CAPABILITY_VERSION: u32 = 0x2008_0522;

/// `CAP_SYS_ADMIN`: a filter without `no_new_privs` needs it.
const SYS_ADMIN: u64 = 1 << 21;

/// The limits of one command.
#[derive(Debug)]
pub(crate) struct Limits {
    /// The bounding set.
    capabilities: u64,
    ambient: u64,
    /// The agent's own.
    permitted: u64,
    no_new_privileges: bool,
    filter: Vec<libc::sock_filter>,
}

/// Limits that make no sense, or cannot be prepared.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Invalid {
    #[error(
        "the seccomp filter has {0} bytes: instructions have 8 bytes each, at most 4096 of them"
    )]
    Filter(usize),
    #[error("the ambient capability {0} is not among the capabilities")]
    Ambient(u32),
    #[error("read the capabilities of vmlet-guest: {0}")]
    Permitted(Errno),
}

impl Limits {
    /// Prepares the limits.
    pub(crate) fn new(confinement: &Confinement) -> Result<Self, Invalid> {
        let capabilities = &confinement.capabilities;
        let ambient = &confinement.ambient;
        if let Some(other) = ambient.iter().find(|one| !capabilities.contains(one)) {
            return Err(Invalid::Ambient(*other));
        }
        let bytes = &confinement.seccomp;
        let count = bytes.len() / INSTRUCTION;
        if !bytes.len().is_multiple_of(INSTRUCTION) || count > INSTRUCTIONS {
            return Err(Invalid::Filter(bytes.len()));
        }
        let (instructions, _) = bytes.as_chunks::<INSTRUCTION>();
        Ok(Self {
            capabilities: set(capabilities),
            ambient: set(ambient),
            permitted: permitted().map_err(Invalid::Permitted)?,
            no_new_privileges: confinement.no_new_privileges,
            filter: instructions.iter().map(instruction).collect(),
        })
    }

    /// Applies what needs all capabilities. `uid` is the user of the command.
    pub(crate) fn begin(&self, uid: u32) -> io::Result<()> {
        for number in 0..u64::BITS {
            if self.capabilities & 1 << number == 0 {
                match prctl(libc::PR_CAPBSET_DROP, number.into(), 0) {
                    // The kernel knows no more.
                    Err(Errno::EINVAL) => break,
                    dropped => dropped.map_err(Step::Bounding.failed())?,
                }
            }
        }
        if uid != 0 {
            // The change of the user leaves the permitted set; the execution clears the flag.
            set_keepcaps(true).map_err(Step::User.failed())?;
        }
        Ok(())
    }

    /// Applies the rest, as the user of the command.
    pub(crate) fn finish(&self, uid: u32) -> io::Result<()> {
        let capabilities = match uid {
            0 => self.capabilities & self.permitted,
            _ => self.ambient,
        };
        let set_to = |capabilities| {
            let done = set_capabilities(capabilities, self.ambient);
            done.map_err(Step::Capabilities.failed())
        };
        // An agent without the capability gets the kernel's answer below.
        let needs_capability = !self.no_new_privileges && self.permitted & SYS_ADMIN != 0;
        if needs_capability && !self.filter.is_empty() {
            set_to(capabilities | SYS_ADMIN)?;
            self.install_filter()?;
        }
        set_to(capabilities)?;
        for number in 0..u64::BITS {
            if self.ambient & 1 << number != 0 {
                let raise = libc::PR_CAP_AMBIENT_RAISE.cast_unsigned().into();
                match prctl(libc::PR_CAP_AMBIENT, raise, number.into()) {
                    // A capability that the kernel does not know.
                    Err(Errno::EINVAL) => {}
                    raised => raised.map_err(Step::Ambient.failed())?,
                }
            }
        }
        if self.no_new_privileges {
            set_no_new_privs().map_err(Step::NoNewPrivileges.failed())?;
        }
        if !needs_capability && !self.filter.is_empty() {
            self.install_filter()?;
        }
        Ok(())
    }

    fn install_filter(&self) -> io::Result<()> {
        let program = libc::sock_fprog {
            // At most 4096.
            len: u16::try_from(self.filter.len()).unwrap_or(u16::MAX),
            filter: self.filter.as_ptr().cast_mut(),
        };
        // SAFETY: the kernel reads the program and its instructions, which live until the call
        // returns, and their number is that of the vector.
        let result = unsafe {
            libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const program,
            )
        };
        let result = Errno::result(result).map(drop);
        result.map_err(Step::Filter.failed())
    }
}

/// Numbers as bits; no kernel has any beyond 63.
fn set(numbers: &[u32]) -> u64 {
    let bits = numbers
        .iter()
        .filter_map(|number| 1_u64.checked_shl(*number));
    bits.fold(0, |set, bit| set | bit)
}

fn instruction(bytes: &[u8; INSTRUCTION]) -> libc::sock_filter {
    let [c0, c1, jt, jf, k0, k1, k2, k3] = *bytes;
    libc::sock_filter {
        code: u16::from_ne_bytes([c0, c1]),
        jt,
        jf,
        k: u32::from_ne_bytes([k0, k1, k2, k3]),
    }
}

/// `struct __user_cap_header_struct`
#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: libc::c_int,
}

/// `struct __user_cap_data_struct`, once for each half of the numbers.
#[repr(C)]
#[derive(Default, Clone, Copy)]
struct CapabilityData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

impl CapabilityHeader {
    const OF_THIS_THREAD: Self = Self {
        version: CAPABILITY_VERSION,
        pid: 0,
    };
}

fn permitted() -> nix::Result<u64> {
    let mut header = CapabilityHeader::OF_THIS_THREAD;
    let mut data = [CapabilityData::default(); 2];
    // SAFETY: both have the layout of the kernel's structures, two for this version, and live until
    // the call returns.
    let result = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, data.as_mut_ptr()) };
    Errno::result(result)?;
    let [low, high] = data.map(|half| u64::from(half.permitted));
    Ok(high << 32 | low)
}

/// Sets the permitted and the effective set of this thread, which is the only one of a new process.
fn set_capabilities(capabilities: u64, inheritable: u64) -> nix::Result<()> {
    let half = |set: u64, shift: u32| {
        let [b0, b1, b2, b3, ..] = (set >> shift).to_le_bytes();
        u32::from_le_bytes([b0, b1, b2, b3])
    };
    let mut header = CapabilityHeader::OF_THIS_THREAD;
    let data = [0, 32].map(|shift| CapabilityData {
        effective: half(capabilities, shift),
        permitted: half(capabilities, shift),
        inheritable: half(inheritable, shift),
    });
    // SAFETY: as above.
    let result = unsafe { libc::syscall(libc::SYS_capset, &raw mut header, data.as_ptr()) };
    Errno::result(result).map(drop)
}

fn prctl(option: libc::c_int, first: libc::c_ulong, second: libc::c_ulong) -> nix::Result<()> {
    let unused: libc::c_ulong = 0;
    // SAFETY: the arguments of the options that are used here are numbers.
    let result = unsafe { libc::prctl(option, first, second, unused, unused) };
    Errno::result(result).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_make_no_sense_are_invalid() {
        let refused = |confinement: &Confinement| Limits::new(confinement).unwrap_err().to_string();
        let filter = |length| Confinement {
            seccomp: vec![0; length].into(),
            ..Confinement::default()
        };
        assert!(refused(&filter(12)).contains("12 bytes"));
        assert!(refused(&filter(8 * 4097)).contains("at most 4096"));
        assert_eq!(Limits::new(&filter(8 * 4096)).unwrap().filter.len(), 4096);
        let confinement = Confinement {
            capabilities: vec![1, 3],
            ambient: vec![3, 2],
            ..Confinement::default()
        };
        let message = "the ambient capability 2 is not among the capabilities";
        assert_eq!(refused(&confinement), message);
    }

    #[test]
    fn numbers_become_sets_and_bytes_instructions() {
        assert_eq!(set(&[0, 3, 40, 64, u32::MAX]), 1 | 8 | 1 << 40);
        let bytes = [
            0x1234_u16.to_ne_bytes().as_slice(),
            &[5, 6],
            &7_u32.to_ne_bytes(),
        ]
        .concat();
        let read = instruction(&bytes.try_into().unwrap());
        assert_eq!((read.code, read.jt, read.jf, read.k), (0x1234, 5, 6, 7));
    }
}
