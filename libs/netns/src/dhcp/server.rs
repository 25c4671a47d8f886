//! The sockets of the DHCP server: one per bridge, made inside the pod's namespace.
//!
//! Invariant: a socket is bound to its bridge, so a NIC is answered by its own lease only. Answers
//! are broadcast; a client that already uses its address also gets them there, because it may
//! listen for nothing else. A guest that floods us is slowed down, and what does not come from its
//! NIC has no effect. Dropping the [`Server`] ends it.
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
use super::packet::{decode, encode, is_of, reply};
use crate::namespace::{self, Namespace};
use crate::pace::{PAUSE_AFTER_FRAME, Warning};

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
    let mut declined = Warning::default();
    loop {
        match socket.recv_from(&mut buffer).await {
            Ok((length, _)) => {
                let datagram = buffer.get(..length).unwrap_or_default();
                answer(&socket, &lease, datagram, &mut declined).await;
                tokio::time::sleep(PAUSE_AFTER_FRAME).await;
            }
            Err(error) => {
                tracing::debug!(%error, mac = %lease.mac, "DHCP socket failed");
                tokio::time::sleep(PAUSE_AFTER_ERROR).await;
            }
        }
    }
}

async fn answer(socket: &UdpSocket, lease: &Lease, datagram: &[u8], declined: &mut Warning) {
    let Some(request) = decode(datagram).filter(|request| is_of(lease, request)) else {
        return;
    };
    let kind = request.opts().msg_type();
    if kind == Some(MessageType::Decline) && declined.is_due() {
        tracing::warn!(
            mac = %lease.mac,
            address = %lease.address,
            "address declined by the guest"
        );
    }
    let Some(answer) = reply(lease, &request) else {
        return;
    };
    let Some(bytes) = encode(&answer) else {
        return;
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

#[cfg(test)]
mod tests {
    use dhcproto::Encodable;
    use dhcproto::v4::{DhcpOption, Message};

    use super::*;
    use crate::mac::Mac;

    const REQUESTS: usize = 20;
    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

    fn lease() -> Lease {
        Lease {
            mac: Mac::new(MAC),
            address: "10.1.0.5/24".parse().unwrap(),
            gateway: None,
            routes: Vec::new(),
            mtu: 1500,
            dns: Vec::new(),
            searches: Vec::new(),
            hostname: None,
        }
    }

    fn message(mac: &[u8; 6], kind: MessageType) -> Vec<u8> {
        let unset = Ipv4Addr::UNSPECIFIED;
        let mut message = Message::new_with_id(7, unset, unset, unset, unset, mac);
        message.opts_mut().insert(DhcpOption::MessageType(kind));
        message.to_vec().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn one_request_is_handled_and_the_rest_of_a_flood_waits() {
        let socket = StdSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        let address = socket.local_addr().unwrap();
        let ours = socket.try_clone().unwrap();
        let guest = StdSocket::bind("127.0.0.1:0").unwrap();
        for _ in 0..REQUESTS {
            let discover = message(&MAC, MessageType::Discover);
            guest.send_to(&discover, address).unwrap();
        }
        let serving = tokio::spawn(serve(UdpSocket::from_std(socket).unwrap(), lease()));
        // Time stands still while a task is ready to run, as this one is.
        for _ in 0..10_000 {
            tokio::task::yield_now().await;
        }
        serving.abort();
        let left = std::iter::from_fn(|| ours.recv(&mut [0; MAX_DATAGRAM]).ok()).count();
        assert_eq!(left, REQUESTS - 1);
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_nic_of_the_lease_causes_warnings_and_not_many() {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let mut declined = Warning::default();
        let foreign = message(&[2, 0, 0, 0, 0, 9], MessageType::Decline);
        answer(&socket, &lease(), &foreign, &mut declined).await;
        assert!(declined.is_due(), "a foreign client caused a warning");
        let mut declined = Warning::default();
        let own = message(&MAC, MessageType::Decline);
        answer(&socket, &lease(), &own, &mut declined).await;
        assert!(!declined.is_due(), "the warning is not limited");
    }
}
