//! System calls: one function each, errno out, nothing decided here.
//!
//! Invariant: a descriptor number from the kernel becomes an `OwnedFd` inside the function that got
//! it.
//! Failure: errno as it is, except that an interrupted call is repeated.

// Raw numbers become owned descriptors here and nowhere else (`own`), and owned descriptors are
// handed to tokio's reactor (`register`).
#![allow(unsafe_code)]

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::libc;
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, accept4, recvmsg,
    sendmsg, socket,
};

use crate::MAX_DESCRIPTORS;

/// What one `recvmsg` brought.
pub(crate) struct Received {
    pub(crate) bytes: Vec<u8>,
    pub(crate) fds: Vec<OwnedFd>,
    /// The message was longer than the buffer.
    pub(crate) truncated: bool,
    /// The kernel could not deliver every descriptor.
    pub(crate) descriptors_lost: bool,
}

/// Takes ownership of a number that the kernel has just handed to this process.
fn own(raw: RawFd) -> OwnedFd {
    // SAFETY: both callers pass a number straight out of a successful accept4 or recvmsg, before
    // anything else has seen it, and pass each number once; so it is open and we are its only
    // owner.
    unsafe { OwnedFd::from_raw_fd(raw) }
}

/// A new unconnected socket, close-on-exec.
pub(crate) fn seqpacket(flags: SockFlag) -> Result<OwnedFd, Errno> {
    socket(
        AddressFamily::Unix,
        SockType::SeqPacket,
        flags | SockFlag::SOCK_CLOEXEC,
        None,
    )
}

pub(crate) fn connect(fd: BorrowedFd<'_>, address: &UnixAddr) -> Result<(), Errno> {
    uninterrupted(|| nix::sys::socket::connect(fd.as_raw_fd(), address))
}

pub(crate) fn accept(fd: BorrowedFd<'_>, flags: SockFlag) -> Result<OwnedFd, Errno> {
    uninterrupted(|| accept4(fd.as_raw_fd(), flags | SockFlag::SOCK_CLOEXEC)).map(own)
}

pub(crate) fn send(
    fd: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    let raw: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control: &[ControlMessage<'_>] = if raw.is_empty() { &[] } else { &rights };
    let iov = [IoSlice::new(bytes)];
    uninterrupted(|| {
        sendmsg::<()>(fd.as_raw_fd(), &iov, control, MsgFlags::MSG_NOSIGNAL, None).map(drop)
    })
}

pub(crate) fn receive(fd: BorrowedFd<'_>, max: usize) -> Result<Received, Errno> {
    let mut bytes = vec![0; max];
    // Zeroed, and of the kernel's own maximum: what the kernel does not write stays an empty
    // header.
    let mut control = nix::cmsg_space!([RawFd; MAX_DESCRIPTORS]);
    let (length, flags) = uninterrupted(|| {
        let mut iov = [IoSliceMut::new(&mut bytes)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        recvmsg::<()>(fd.as_raw_fd(), &mut iov, Some(&mut control), flags)
            .map(|message| (message.bytes, message.flags))
    })?;
    bytes.truncate(length);
    Ok(Received {
        bytes,
        fds: descriptor_numbers(&control).map(own).collect(),
        truncated: flags.contains(MsgFlags::MSG_TRUNC),
        descriptors_lost: flags.contains(MsgFlags::MSG_CTRUNC),
    })
}

/// The numbers in an SCM_RIGHTS header at the start of `control`.
///
/// nix refuses to show any of them once the kernel has set MSG_CTRUNC, although those that did
/// arrive are open by then and would leak. An unix socket without SO_PASSCRED delivers no other
/// header.
fn descriptor_numbers(control: &[u8]) -> impl Iterator<Item = RawFd> + '_ {
    const LENGTH: usize = size_of::<usize>();
    const INT: usize = size_of::<RawFd>();
    const HEADER: usize = LENGTH + 2 * INT;
    let int = |at: usize| {
        control
            .get(at..at + INT)
            .and_then(|b| b.try_into().ok())
            .map(RawFd::from_ne_bytes)
    };
    let length = control
        .get(..LENGTH)
        .and_then(|b| b.try_into().ok())
        .map_or(0, usize::from_ne_bytes)
        .min(control.len());
    let rights =
        int(LENGTH) == Some(libc::SOL_SOCKET) && int(LENGTH + INT) == Some(libc::SCM_RIGHTS);
    let end = if rights { length } else { HEADER };
    control
        .get(HEADER..end)
        .unwrap_or_default()
        .chunks_exact(INT)
        .filter_map(|chunk| chunk.try_into().ok().map(RawFd::from_ne_bytes))
}

pub(crate) fn clear_cloexec(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let flags = FdFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFD)?);
    fcntl(fd, FcntlArg::F_SETFD(flags - FdFlag::FD_CLOEXEC)).map(drop)
}

/// Makes a descriptor non-blocking and hands it to the reactor of the current runtime.
#[cfg(feature = "tokio")]
pub(crate) fn register(fd: OwnedFd) -> std::io::Result<tokio::io::unix::AsyncFd<OwnedFd>> {
    use nix::fcntl::OFlag;

    let flags = OFlag::from_bits_retain(fcntl(&fd, FcntlArg::F_GETFL)?);
    fcntl(&fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    // SAFETY: an `OwnedFd` is open, stays the same number for as long as it lives, and lives inside
    // the returned value, which lends it out by shared reference only.
    Ok(unsafe { tokio::io::unix::AsyncFd::register(fd) }?)
}

fn uninterrupted<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_come_out_of_a_header_for_rights_and_of_no_other(
            length: u8,
            level in prop_oneof![Just(libc::SOL_SOCKET), any::<i32>()],
            kind in prop_oneof![Just(libc::SCM_RIGHTS), any::<i32>()],
            numbers in prop::collection::vec(any::<i32>(), 0..20),
            cut: u8,
        ) {
            let ints = [level, kind].into_iter().chain(numbers.iter().copied());
            let mut control = usize::from(length).to_ne_bytes().to_vec();
            control.extend(ints.flat_map(i32::to_ne_bytes));
            control.truncate(usize::from(cut));
            let found: Vec<_> = descriptor_numbers(&control).collect();
            let is_rights = level == libc::SOL_SOCKET && kind == libc::SCM_RIGHTS;
            let held = usize::from(length).min(control.len()).saturating_sub(16) / 4;
            prop_assert!(found.len() <= held);
            prop_assert!(is_rights || found.is_empty());
            prop_assert!(numbers.starts_with(&found));
            if is_rights && usize::from(cut) >= 16 {
                prop_assert_eq!(found.len(), held.min(numbers.len()));
            }
        }
    }
}
