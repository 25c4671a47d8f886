//! The kernel calls of the bridge setup, as a trait, so that a fake can replace them.
//!
//! Invariant: every verb changes one thing in one namespace, and names links by index where the
//! kernel does; nothing is retried or undone here.
//! Failure: an [`Error`] names the verb and its object; see [`Error::is_missing`] and its like for
//! the outcomes that repeating an interrupted step meets.

use std::future::Future;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::filter;
use crate::mac::Mac;
use crate::namespace;
pub use crate::sysctl::Setting;
use crate::{sysctl, tap};

#[cfg(test)]
pub(crate) mod fake;
mod kernel;
mod message;

pub use kernel::Kernel;

/// A verb that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The netlink socket cannot be made.
    #[error("open a netlink socket")]
    Socket(#[source] std::io::Error),
    /// The namespace cannot be entered.
    #[error("work inside the namespace")]
    Namespace(#[source] namespace::Error),
    /// The kernel refused a request.
    #[error("{verb} {object}")]
    Request {
        /// What was asked, such as `add address`.
        verb: &'static str,
        /// Of what.
        object: String,
        /// The kernel's error number, zero when the answer made no sense.
        errno: i32,
        /// The reason.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The kernel did not answer a request within ten seconds.
    #[error("{verb} {object}: no answer from the kernel")]
    Deadline {
        /// What was asked.
        verb: &'static str,
        /// Of what.
        object: String,
    },
    /// A tap cannot be made.
    #[error("make a tap")]
    Tap(#[source] tap::Error),
    /// A kernel setting cannot be written.
    #[error("set up a link")]
    Setting(#[source] sysctl::Error),
    /// The packet filter cannot be loaded.
    #[error("load the packet filter")]
    Filter(#[source] filter::Error),
}

impl Error {
    fn errno(&self) -> nix::errno::Errno {
        match self {
            Self::Request { errno, .. } => nix::errno::Errno::from_raw(*errno),
            _ => nix::errno::Errno::UnknownErrno,
        }
    }

    /// The object is not there.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        use nix::errno::Errno::{EADDRNOTAVAIL, ENODEV, ENOENT, ESRCH};
        matches!(self.errno(), ENODEV | ENOENT | ESRCH | EADDRNOTAVAIL)
    }

    /// The object is there already.
    #[must_use]
    pub fn is_existing(&self) -> bool {
        self.errno() == nix::errno::Errno::EEXIST
    }

    /// The kernel was built without it.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        use nix::errno::Errno::{EAFNOSUPPORT, EOPNOTSUPP};
        matches!(self.errno(), EAFNOSUPPORT | EOPNOTSUPP)
    }

    /// The link does not change while it is up.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.errno() == nix::errno::Errno::EBUSY
    }
}

/// What a link is, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkKind {
    /// The loopback link.
    Loopback,
    /// No kind at all: a device that a driver made, such as a moved VF.
    Device,
    /// One end of a pair.
    Veth,
    /// A software bridge.
    Bridge,
    /// A tun or tap.
    Tun,
    /// A tunnel that the kernel puts in every namespace or that carries no Ethernet.
    Tunnel,
    /// Anything else, by the kernel's name.
    Other(String),
}

/// A link of a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// The kernel's number.
    pub index: u32,
    /// The kernel's name.
    pub name: String,
    /// Hardware address; none for links that are not Ethernet.
    pub mac: Option<Mac>,
    /// Largest packet in bytes.
    pub mtu: u32,
    /// What it is.
    pub kind: LinkKind,
    /// Whether it is administratively up.
    pub up: bool,
    /// Index of the bridge that it is a port of.
    pub bridge: Option<u32>,
    /// Name of the PCI function behind it, such as `0000:3b:02.1`.
    pub pci: Option<String>,
}

/// Addresses with this scope are good everywhere.
pub const SCOPE_GLOBAL: u8 = 0;
/// Addresses with this scope are good on their link only.
pub const SCOPE_LINK: u8 = 253;

/// An address of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// Address and prefix length.
    pub net: IpNet,
    /// Scope as the kernel numbers it.
    pub scope: u8,
}

/// A unicast route over a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Destination.
    pub dst: IpNet,
    /// Next hop; none when the destination is on the link.
    pub gateway: Option<IpAddr>,
    /// Preferred source address.
    pub source: Option<IpAddr>,
    /// Priority; 0 is the family's default.
    pub metric: u32,
    /// Scope as the kernel numbers it.
    pub scope: u8,
    /// Who made it, as the kernel numbers it.
    pub protocol: u8,
    /// Routing table.
    pub table: u32,
    /// Whether the next hop counts as reachable on the link whatever the addresses say.
    pub onlink: bool,
}

impl Route {
    /// The table that is used without rules.
    pub const MAIN_TABLE: u32 = 254;
    /// The kernel's own protocol number: such routes come and go with addresses.
    pub const PROTOCOL_KERNEL: u8 = 2;
}

/// A rule that chooses a routing table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// Its place among the rules.
    pub priority: u32,
    /// The table.
    pub table: u32,
}

/// The verbs.
pub trait Netlink: Send + Sync {
    /// Every link of the namespace.
    fn links(&self) -> impl Future<Output = Result<Vec<Link>, Error>> + Send;
    /// Addresses of a link, without IPv6 link-local ones.
    fn addresses(&self, link: u32) -> impl Future<Output = Result<Vec<Address>, Error>> + Send;
    /// Unicast routes over a link, of every table but the local one.
    fn routes(&self, link: u32) -> impl Future<Output = Result<Vec<Route>, Error>> + Send;
    /// Routes of any table but the local one that are no plain unicast routes over a link, in words:
    /// those with several next hops, and those that refuse.
    fn special_routes(&self) -> impl Future<Output = Result<Vec<String>, Error>> + Send;
    /// Policy rules of both families, without those of every namespace.
    fn rules(&self) -> impl Future<Output = Result<Vec<Rule>, Error>> + Send;
    /// Makes a bridge that is down and runs no spanning tree.
    fn create_bridge(
        &self,
        name: &str,
        mac: Mac,
        mtu: u32,
    ) -> impl Future<Output = Result<(), Error>> + Send;
    /// Makes a persistent tap, or leaves the one that exists.
    fn create_tap(&self, name: &str) -> impl Future<Output = Result<(), Error>> + Send;
    /// Makes a link a port of a bridge, or of none. The bridge learns no addresses from the port:
    /// with two ports there is nothing to choose, and what is learned can be wrong. (An ageing time
    /// of zero would do the same, at the price of a kernel timer that runs a hundred times a
    /// second.)
    fn attach(
        &self,
        link: u32,
        bridge: Option<u32>,
    ) -> impl Future<Output = Result<(), Error>> + Send;
    /// Makes the bridge of port `link` send frames for `mac` out of that port, even when the
    /// address is that of another port.
    fn direct(&self, link: u32, mac: Mac) -> impl Future<Output = Result<(), Error>> + Send;
    /// Changes the hardware address.
    fn set_mac(&self, link: u32, mac: Mac) -> impl Future<Output = Result<(), Error>> + Send;
    /// Changes the packet size.
    fn set_mtu(&self, link: u32, mtu: u32) -> impl Future<Output = Result<(), Error>> + Send;
    /// Brings a link up or down.
    fn set_up(&self, link: u32, up: bool) -> impl Future<Output = Result<(), Error>> + Send;
    /// Adds an address.
    fn add_address(
        &self,
        link: u32,
        address: Address,
    ) -> impl Future<Output = Result<(), Error>> + Send;
    /// Removes an address.
    fn delete_address(
        &self,
        link: u32,
        address: Address,
    ) -> impl Future<Output = Result<(), Error>> + Send;
    /// Adds a route.
    fn add_route(&self, link: u32, route: &Route)
    -> impl Future<Output = Result<(), Error>> + Send;
    /// Removes a route.
    fn delete_route(
        &self,
        link: u32,
        route: &Route,
    ) -> impl Future<Output = Result<(), Error>> + Send;
    /// Writes a kernel setting of the link of that name; `all` is every link.
    fn tune(&self, link: &str, setting: Setting) -> impl Future<Output = Result<(), Error>> + Send;
    /// Replaces the packet filter by these rules (the language of `nft`).
    fn filter(&self, rules: String) -> impl Future<Output = Result<(), Error>> + Send;
}
