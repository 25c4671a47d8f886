//! Tap devices: made persistent, so that they outlive every descriptor, and opened by name.
//!
//! Invariant: the only `unsafe` of this crate is in this file: the ioctls of `/dev/net/tun`.
//! Descriptors are close-on-exec.
//! Failure: a tap that QEMU holds cannot be opened a second time ([`Error::Busy`]).
#![allow(unsafe_code)] // ioctl has no safe form; a comment at each call states why it is sound.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use nix::errno::Errno;
use nix::libc;

use crate::namespace::{self, Namespace};

/// What can go wrong with a tap device.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `/dev/net/tun` is missing or closed to us.
    #[error("open /dev/net/tun")]
    Device(#[source] io::Error),
    /// The name does not fit the kernel's 15 bytes.
    #[error("{0:?} is no name for a tap")]
    Name(String),
    /// There is no device of that name.
    #[error("tap {0} does not exist")]
    Missing(String),
    /// A process, such as a running QEMU, has the tap open.
    #[error("tap {0} is in use by another process")]
    Busy(String),
    /// The kernel refuses to attach to or make the tap.
    #[error("attach to tap {name}")]
    Attach {
        /// Name of the device.
        name: String,
        /// The kernel's reason.
        #[source]
        source: Errno,
    },
    /// The kernel refuses a setting.
    #[error("configure tap {name}")]
    Configure {
        /// Name of the device.
        name: String,
        /// The kernel's reason.
        #[source]
        source: Errno,
    },
    /// The namespace cannot be entered.
    #[error("enter the namespace of the tap")]
    Namespace(#[source] namespace::Error),
}

/// An open tap: one queue of Ethernet frames with virtio-net headers.
pub type Tap = OwnedFd;

/// Bytes of a virtio-net header without merged buffers, as a fresh tap has it.
const HEADER: libc::c_int = 10;

nix::ioctl_write_ptr_bad!(tun_set_iff, libc::TUNSETIFF, libc::ifreq);
nix::ioctl_write_int_bad!(tun_set_persist, libc::TUNSETPERSIST);
nix::ioctl_write_int_bad!(tun_set_offload, libc::TUNSETOFFLOAD);
nix::ioctl_write_ptr_bad!(tun_set_header, libc::TUNSETVNETHDRSZ, libc::c_int);

/// Opens the tap `name`, which must exist in the namespace and be free.
///
/// The descriptor starts without offloads and with the plain header, whatever an earlier user set.
///
/// # Errors
/// [`Error::Missing`], [`Error::Busy`], or the step that failed.
pub async fn open(ns: &Namespace, name: &str) -> Result<Tap, Error> {
    let name = name.to_owned();
    ns.run(move || {
        if nix::net::if_::if_nametoindex(name.as_str()).is_err() {
            return Err(Error::Missing(name));
        }
        let file = attach(&name)?;
        let configure = |source| Error::Configure {
            name: name.clone(),
            source,
        };
        // SAFETY: the descriptor is an attached tap; the argument is a plain number.
        unsafe { tun_set_offload(file.as_raw_fd(), 0) }.map_err(configure)?;
        // SAFETY: the descriptor is an attached tap; the pointer is to a live integer that the
        // kernel only reads.
        unsafe { tun_set_header(file.as_raw_fd(), &HEADER) }.map_err(configure)?;
        Ok(file.into())
    })
    .await
    .map_err(Error::Namespace)?
}

/// Makes the persistent tap `name` in the namespace of the calling thread, or leaves the one there
/// is.
pub(crate) fn create(name: &str) -> Result<(), Error> {
    let file = attach(name)?;
    // SAFETY: the descriptor is an attached tap; the argument is a plain number.
    unsafe { tun_set_persist(file.as_raw_fd(), 1) }
        .map(|_| ())
        .map_err(|source| Error::Configure {
            name: name.to_owned(),
            source,
        })
}

fn attach(name: &str) -> Result<File, Error> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open("/dev/net/tun")
        .map_err(Error::Device)?;
    let request = interface_request(name)?;
    // SAFETY: the descriptor is /dev/net/tun and the pointer is to a live `ifreq` with a terminated
    // name.
    match unsafe { tun_set_iff(file.as_raw_fd(), &request) } {
        Ok(_) => Ok(file),
        Err(Errno::EBUSY) => Err(Error::Busy(name.to_owned())),
        Err(source) => Err(Error::Attach {
            name: name.to_owned(),
            source,
        }),
    }
}

fn interface_request(name: &str) -> Result<libc::ifreq, Error> {
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    let bad_name = || Error::Name(name.to_owned());
    let mut request = libc::ifreq {
        ifr_name: [0; libc::IFNAMSIZ],
        ifr_ifru: libc::__c_anonymous_ifr_ifru {
            ifru_flags: libc::c_short::try_from(flags).map_err(|_| bad_name())?,
        },
    };
    // The last byte stays zero, and a '%' would make the kernel choose a name.
    if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains(['%', '\0', '/']) {
        return Err(bad_name());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    Ok(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_the_kernel_would_cut_or_expand_are_refused() {
        for name in ["", "sixteen-bytes-xx", "tap%d", "a/b"] {
            assert!(
                matches!(interface_request(name), Err(Error::Name(_))),
                "{name}"
            );
        }
        assert!(interface_request("fifteen-bytes-x").is_ok());
    }

    #[tokio::test]
    #[ignore = "needs root"]
    async fn a_tap_outlives_its_descriptors_and_has_one_user_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let ns = Namespace::create(dir.path(), "a").await.unwrap();
        assert!(matches!(open(&ns, "vmtap0").await, Err(Error::Missing(_))));
        ns.run(|| create("vmtap0")).await.unwrap().unwrap();
        let first = open(&ns, "vmtap0").await.unwrap();
        assert!(matches!(open(&ns, "vmtap0").await, Err(Error::Busy(_))));
        drop(first);
        // A process that another test starts has a copy of the descriptor until it executes.
        let free = async {
            loop {
                match open(&ns, "vmtap0").await {
                    Err(Error::Busy(_)) => tokio::task::yield_now().await,
                    opened => break opened.map(drop),
                }
            }
        };
        let opened = tokio::time::timeout(std::time::Duration::from_secs(10), free).await;
        opened.unwrap().unwrap();
        Namespace::delete(ns.path()).await.unwrap();
    }
}
