//! A socket for frames on one link: the guest's tap, or the link to the outside.
//!
//! Invariant: it receives only what comes in over that link, and of it only what the filter lets
//! through, so that the guest's traffic costs nothing here; what it sends leaves over that link and
//! passes no bridge and no packet filter. The only `unsafe` of IPv6 is in this file: addresses and one option of packet
//! sockets have no safe form.
//! Failure: every step that fails has its own error.

#![allow(unsafe_code)] // see above

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockType, SockaddrLike, bind, recv, send, socket,
};
use socket2::{SockFilter, SockRef};
use tokio::io::unix::AsyncFd;

/// Opens a socket on the link of that name in the namespace of the calling thread.
pub(super) fn open(link: &str, filter: &[SockFilter]) -> io::Result<OwnedFd> {
    let index = nix::net::if_::if_nametoindex(link)?;
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    // Without a protocol nothing is received until the filter is set and the link is chosen.
    let socket = socket(AddressFamily::Packet, SockType::Raw, flags, None)?;
    SockRef::from(&socket).attach_filter(filter)?;
    ignore_outgoing(&socket)?;
    bind(socket.as_raw_fd(), &address(index)?)?;
    Ok(socket)
}

/// All protocols: frames on a bridge's port are the bridge's before they are of any protocol.
fn address(index: u32) -> io::Result<LinkAddr> {
    let bad = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let raw = libc::sockaddr_ll {
        sll_family: u16::try_from(libc::AF_PACKET).map_err(bad)?,
        sll_protocol: u16::try_from(libc::ETH_P_ALL).map_err(bad)?.to_be(),
        sll_ifindex: i32::try_from(index).map_err(bad)?,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let length = u32::try_from(size_of::<libc::sockaddr_ll>()).map_err(bad)?;
    // SAFETY: the pointer is to a live `sockaddr_ll` of that length, which is copied.
    let address = unsafe { LinkAddr::from_raw((&raw const raw).cast(), Some(length)) };
    address.ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

const LOAD_WORD: u16 = 0x20;
const LOAD_HALF: u16 = 0x28;
const LOAD_BYTE: u16 = 0x30;
const JUMP_IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;

fn load(size: u16, at: u32) -> SockFilter {
    SockFilter::new(size, 0, 0, at)
}

/// Jumps count from the next instruction.
fn is(value: u32, yes: u8, no: u8) -> SockFilter {
    SockFilter::new(JUMP_IF_EQUAL, yes, no, value)
}

fn keep(bytes: u32) -> SockFilter {
    SockFilter::new(RETURN, 0, 0, bytes)
}

/// Router solicitations and datagrams for the port of DHCPv6 servers, for the kernel's filter
/// machine.
pub(super) fn from_guest() -> [SockFilter; 11] {
    [
        load(LOAD_HALF, 12), // type of the frame: IPv6?
        is(0x86dd, 0, 7),
        load(LOAD_BYTE, 20), // next header: ICMPv6, else UDP?
        is(58, 0, 2),
        load(LOAD_BYTE, 54), // type of the message
        is(133, 4, 3),
        is(17, 0, 2),
        load(LOAD_HALF, 56), // destination port
        is(547, 1, 0),
        keep(0),
        keep(u32::MAX),
    ]
}

/// Advertisements of routers and of neighbours. Frames of a VLAN, whose tag the kernel has taken
/// off, are not of this link.
pub(super) fn from_routers() -> [SockFilter; 11] {
    /// Where the kernel says whether there was a tag: `SKF_AD_OFF + SKF_AD_VLAN_TAG_PRESENT`.
    const TAGGED: u32 = 0xffff_f000 + 48;
    [
        load(LOAD_WORD, TAGGED),
        is(0, 0, 7),
        load(LOAD_HALF, 12), // type of the frame: IPv6?
        is(0x86dd, 0, 5),
        load(LOAD_BYTE, 20), // next header: ICMPv6?
        is(58, 0, 3),
        load(LOAD_BYTE, 54), // type of the message
        is(134, 2, 0),
        is(136, 1, 0),
        keep(0),
        keep(u32::MAX),
    ]
}

/// Without this the kernel would copy every frame to the guest for us, only to drop the copy.
fn ignore_outgoing(socket: &OwnedFd) -> io::Result<()> {
    let on: libc::c_int = 1;
    let length = libc::socklen_t::try_from(size_of_val(&on)).map_err(io::Error::other)?;
    // SAFETY: the pointer is to a live integer of that length, which the kernel only reads.
    let outcome = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_IGNORE_OUTGOING,
            (&raw const on).cast(),
            length,
        )
    };
    Errno::result(outcome).map(drop).map_err(io::Error::from)
}

/// The socket on the caller's runtime.
#[derive(Debug)]
pub(super) struct Frames(AsyncFd<OwnedFd>);

impl Frames {
    /// Must be called on a tokio runtime.
    pub(super) fn new(socket: OwnedFd) -> io::Result<Self> {
        // SAFETY: the socket is owned by the `AsyncFd`, which never gives it away, so it stays open
        // as long as it is watched.
        Ok(Self(unsafe { AsyncFd::register(socket) }?))
    }

    /// The next frame, written to `buffer`, cut to its length.
    pub(super) async fn receive<'a>(&self, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
        let read = |fd: &OwnedFd| Ok(recv(fd.as_raw_fd(), buffer, MsgFlags::empty())?);
        let length = self.0.async_io(tokio::io::Interest::READABLE, read).await?;
        Ok(buffer.get(..length).unwrap_or_default())
    }

    /// Sends a frame now or, when the guest does not keep up, not at all.
    pub(super) fn send(&self, frame: &[u8]) -> io::Result<()> {
        send(self.0.as_raw_fd(), frame, MsgFlags::empty())?;
        Ok(())
    }
}
