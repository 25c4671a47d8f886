//! The sockets of the DHCP server: one per bridge, made inside the pod's namespace.
//!
//! Invariant: a socket is bound to its bridge, so a NIC is answered by its own lease only. Answers
//! are broadcast; a client that already uses its address also gets them there, because it may
//! listen for nothing else. Dropping the [`Server`] ends it.
//! Failure: a receive error (the bridge is going, say) is logged and followed by a pause; the
//! server never ends by itself.

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket as StdSocket};
use std::os::fd::OwnedFd;
use std::time::Duration;

use dhcproto::v4::MessageType;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, bind, setsockopt, socket, sockopt,
};
use tokio::net::UdpSocket;
use tokio::task::JoinSet;

use super::lease::Lease;
use super::packet::{decode, encode, reply};
use crate::namespace::{self, Namespace};

const SERVER_PORT: u16 = 67;
const CLIENT_PORT: u16 = 68;
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(200);
/// Longer datagrams are cut and then do not parse.
const MAX_DATAGRAM: usize = 2048;

/// A server that did not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The namespace cannot be entered.
    #[error("enter the namespace")]
    Namespace(#[source] namespace::Error),
    /// The kernel refuses the socket.
    #[error("open a DHCP socket on {link}")]
    Socket {
        /// The bridge.
        link: String,
        /// The kernel's reason.
        #[source]
        source: Errno,
    },
    /// The runtime refuses the socket.
    #[error("watch the DHCP socket on {link}")]
    Register {
        /// The bridge.
        link: String,
        /// The reason.
        #[source]
        source: std::io::Error,
    },
}

/// The DHCP server of one pod.
#[derive(Debug)]
pub struct Server {
    _tasks: JoinSet<()>,
}

impl Server {
    /// Serves each lease on the bridge of that name. Must be called on a tokio runtime.
    ///
    /// # Errors
    /// When a socket cannot be made; nothing is served then.
    pub async fn start(ns: &Namespace, leases: Vec<(String, Lease)>) -> Result<Self, Error> {
        let mut tasks = JoinSet::new();
        for (link, lease) in leases {
            let name = link.clone();
            let socket = ns
                .run(move || open(&name))
                .await
                .map_err(Error::Namespace)?;
            let socket = socket.map_err(|source| Error::Socket {
                link: link.clone(),
                source,
            })?;
            let socket =
                UdpSocket::from_std(StdSocket::from(socket)).map_err(|source| Error::Register {
                    link: link.clone(),
                    source,
                })?;
            tasks.spawn(serve(socket, lease));
        }
        Ok(Self { _tasks: tasks })
    }
}

fn open(link: &str) -> Result<OwnedFd, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Inet, SockType::Datagram, flags, None)?;
    setsockopt(&socket, sockopt::BindToDevice, &link.into())?;
    setsockopt(&socket, sockopt::Broadcast, &true)?;
    let any = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, SERVER_PORT);
    bind(
        std::os::fd::AsRawFd::as_raw_fd(&socket),
        &SockaddrIn::from(any),
    )?;
    Ok(socket)
}

async fn serve(socket: UdpSocket, lease: Lease) {
    let mut buffer = vec![0; MAX_DATAGRAM];
    loop {
        let length = match socket.recv_from(&mut buffer).await {
            Ok((length, _)) => length,
            Err(error) => {
                tracing::debug!(%error, mac = %lease.mac, "DHCP socket failed");
                tokio::time::sleep(PAUSE_AFTER_ERROR).await;
                continue;
            }
        };
        let Some(request) = buffer.get(..length).and_then(decode) else {
            continue;
        };
        let kind = request.opts().msg_type();
        if kind == Some(MessageType::Decline) {
            tracing::warn!(
                mac = %lease.mac,
                address = %lease.address,
                "address declined by the guest"
            );
        }
        let Some(answer) = reply(&lease, &request) else {
            continue;
        };
        let Some(bytes) = encode(&answer) else {
            continue;
        };
        let mut targets = vec![Ipv4Addr::BROADCAST];
        targets.extend(Some(answer.ciaddr()).filter(|ip| *ip == lease.address.addr()));
        for target in targets {
            if let Err(error) = socket.send_to(&bytes, (target, CLIENT_PORT)).await {
                tracing::debug!(%error, mac = %lease.mac, %target, "DHCP reply not sent");
            }
        }
        crate::answers::sent_4();
        tracing::debug!(mac = %lease.mac, address = %lease.address, request = ?kind,
            answer = ?answer.opts().msg_type(), "DHCP reply sent");
    }
}
