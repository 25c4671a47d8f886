//! The operations on the real kernel.
//!
//! Invariant: the netlink socket was created inside the namespace, so every request acts there,
//! although it is driven by the caller's runtime; the driving task ends with the value.
//! Failure: a request without an answer fails after [`DEADLINE`].

use std::collections::HashSet;
use std::future::Future;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use futures_util::TryStreamExt;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::link::{BridgeStpState, LinkMessage};
use rtnetlink::packet_route::neighbour::{NeighbourFlags, NeighbourState};
use rtnetlink::packet_route::route::RouteMessage;
use rtnetlink::{
    Handle, IpVersion, LinkBridge, LinkBridgePort, LinkMessageBuilder, LinkUnspec,
    RouteMessageBuilder,
};
use tokio::task::AbortHandle;

use super::{Address, Error, Link, Netlink, Route, Rule, Setting, message};
use crate::mac::Mac;
use crate::namespace::Namespace;
use crate::{filter, sysctl, tap};

const DEADLINE: Duration = Duration::from_secs(10);

/// A namespace and a netlink socket in it.
#[derive(Debug)]
pub struct Kernel {
    ns: Namespace,
    handle: Handle,
    driver: AbortHandle,
}

impl Kernel {
    /// Opens a netlink socket in `ns`. Must be called on a tokio runtime.
    ///
    /// # Errors
    /// When the namespace or the socket cannot be opened.
    pub async fn open(ns: &Namespace) -> Result<Self, Error> {
        let runtime = tokio::runtime::Handle::current();
        let (connection, handle, _) = ns
            .run(move || {
                let _guard = runtime.enter();
                rtnetlink::new_connection()
            })
            .await
            .map_err(Error::Namespace)?
            .map_err(Error::Socket)?;
        let driver = tokio::spawn(connection).abort_handle();
        Ok(Self {
            ns: ns.clone(),
            handle,
            driver,
        })
    }

    /// Every IPv6 address of the namespace with the index of its link, link-local ones too.
    pub(crate) async fn ipv6_addresses(&self) -> Result<Vec<(u32, Ipv6Addr)>, Error> {
        let mut get = self.handle.address().get();
        get.message_mut().header.family = AddressFamily::Inet6;
        let all: Vec<_> = request(
            "list addresses of",
            "all links".to_owned(),
            get.execute().try_collect(),
        )
        .await?;
        Ok(all.iter().filter_map(message::ipv6_address).collect())
    }

    /// Index of the link over which the namespace would send to `address`; none without a route.
    pub(crate) async fn link_towards(&self, address: IpAddr) -> Result<Option<u32>, Error> {
        let length = if address.is_ipv4() { 32 } else { 128 };
        let question = RouteMessageBuilder::<IpAddr>::new();
        let Ok(question) = question.destination_prefix(address, length) else {
            return Ok(None);
        };
        let question = question.build();
        let answer = self.handle.route().get(question).execute().try_collect();
        let answer: Result<Vec<_>, _> =
            request("look up", format!("route to {address}"), answer).await;
        match answer {
            Ok(routes) => Ok(routes.iter().find_map(message::output)),
            // The kernel has several errors for a missing route.
            Err(Error::Request { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Index of the other end of the link of this name, in the namespace where that is.
    pub(crate) async fn end_elsewhere(&self, name: &str) -> Result<Option<u32>, Error> {
        let all = self.link_messages().await?;
        let mut ends = all.iter().filter_map(message::end_elsewhere);
        Ok(ends.find(|(link, _)| link == name).map(|(_, end)| end))
    }

    /// Indices of the links whose other ends are in other namespaces.
    pub(crate) async fn links_elsewhere(&self) -> Result<HashSet<u32>, Error> {
        let all = self.link_messages().await?;
        let elsewhere = all
            .iter()
            .filter(|one| message::end_elsewhere(one).is_some());
        Ok(elsewhere.map(|one| one.header.index).collect())
    }

    /// Indices of the links of default routes.
    pub(crate) async fn uplinks(&self) -> Result<HashSet<u32>, Error> {
        let all = self.all_routes("all links".to_owned()).await?;
        let default = all
            .iter()
            .filter(|one| one.header.destination_prefix_length == 0);
        Ok(default.flat_map(message::outputs).collect())
    }

    async fn link_messages(&self) -> Result<Vec<LinkMessage>, Error> {
        let links = self.handle.link().get().execute().try_collect();
        request("list", "links".to_owned(), links).await
    }

    async fn all_routes(&self, of: String) -> Result<Vec<RouteMessage>, Error> {
        let mut found = Vec::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut dump = RouteMessage::default();
            dump.header.address_family = family;
            let routes = self.handle.route().get(dump).execute().try_collect();
            let all: Vec<_> = request("list routes of", of.clone(), routes).await?;
            found.extend(all);
        }
        Ok(found)
    }

    async fn set(
        &self,
        verb: &'static str,
        link: u32,
        message: LinkMessageBuilder<LinkUnspec>,
    ) -> Result<(), Error> {
        request(
            verb,
            format!("link {link}"),
            self.handle.link().set(message.build()).execute(),
        )
        .await
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

async fn request<T>(
    verb: &'static str,
    object: String,
    answer: impl Future<Output = Result<T, rtnetlink::Error>>,
) -> Result<T, Error> {
    match tokio::time::timeout(DEADLINE, answer).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(source)) => {
            let errno = match &source {
                rtnetlink::Error::NetlinkError(e) => e.raw_code().saturating_abs(),
                _ => 0,
            };
            Err(Error::Request {
                verb,
                object,
                errno,
                source: plain(source),
            })
        }
        Err(_) => Err(Error::Deadline { verb, object }),
    }
}

/// The kernel's own error text instead of a dump of the message.
fn plain(error: rtnetlink::Error) -> Box<dyn std::error::Error + Send + Sync> {
    match error {
        rtnetlink::Error::NetlinkError(e) => Box::new(e.to_io()),
        other => Box::new(other),
    }
}

fn unspec(link: u32) -> LinkMessageBuilder<LinkUnspec> {
    LinkUnspec::new_with_index(link)
}

impl Netlink for Kernel {
    async fn links(&self) -> Result<Vec<Link>, Error> {
        let links = self
            .handle
            .link()
            .get()
            .execute()
            .map_ok(message::link)
            .try_collect();
        request("list", "links".to_owned(), links).await
    }

    async fn addresses(&self, link: u32) -> Result<Vec<Address>, Error> {
        let addresses = self
            .handle
            .address()
            .get()
            .set_link_index_filter(link)
            .execute();
        let all: Vec<_> = request(
            "list addresses of",
            format!("link {link}"),
            addresses.try_collect(),
        )
        .await?;
        Ok(all.iter().filter_map(message::address).collect())
    }

    async fn routes(&self, link: u32) -> Result<Vec<Route>, Error> {
        let all = self.all_routes(format!("link {link}")).await?;
        let ours = all
            .iter()
            .filter_map(message::route)
            .filter(|(index, _)| *index == link);
        Ok(ours.map(|(_, route)| route).collect())
    }

    async fn special_routes(&self) -> Result<Vec<String>, Error> {
        let all = self.all_routes("all links".to_owned()).await?;
        Ok(all.iter().filter_map(message::special_route).collect())
    }

    async fn rules(&self) -> Result<Vec<Rule>, Error> {
        let mut found = Vec::new();
        for version in [IpVersion::V4, IpVersion::V6] {
            let rules = self.handle.rule().get(version).execute().try_collect();
            let all: Result<Vec<_>, _> = request("list", "policy rules".to_owned(), rules).await;
            match all {
                Ok(all) => found.extend(all.iter().filter_map(message::rule)),
                // A kernel without policy routing has no rules.
                Err(error) if error.is_unsupported() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    async fn create_bridge(&self, name: &str, mac: Mac, mtu: u32) -> Result<(), Error> {
        let bridge = LinkMessageBuilder::<LinkBridge>::new(name)
            .address(mac.bytes().to_vec())
            .mtu(mtu)
            .stp_state(BridgeStpState::Disabled)
            .mcast_snooping(false)
            .build();
        request(
            "make bridge",
            name.to_owned(),
            self.handle.link().add(bridge).execute(),
        )
        .await
    }

    async fn create_tap(&self, name: &str) -> Result<(), Error> {
        let name = name.to_owned();
        self.ns
            .run(move || tap::create(&name))
            .await
            .map_err(Error::Namespace)?
            .map_err(Error::Tap)
    }

    async fn attach(&self, link: u32, bridge: Option<u32>) -> Result<(), Error> {
        let message = unspec(link);
        let Some(bridge) = bridge else {
            return self.set("detach", link, message.nocontroller()).await;
        };
        self.set("attach", link, message.controller(bridge)).await?;
        let port = LinkBridgePort::new(link).learning(false).build();
        let set = self.handle.link().set_port(port).execute();
        request("set up port", format!("link {link}"), set).await
    }

    async fn direct(&self, link: u32, mac: Mac) -> Result<(), Error> {
        let entry = self
            .handle
            .neighbours()
            .add_bridge(link, &mac.bytes())
            .state(NeighbourState::Noarp)
            .flags(NeighbourFlags::Controller)
            .replace();
        request("direct frames to", format!("link {link}"), entry.execute()).await
    }

    async fn set_mac(&self, link: u32, mac: Mac) -> Result<(), Error> {
        self.set(
            "set the address of",
            link,
            unspec(link).address(mac.bytes().to_vec()),
        )
        .await
    }

    async fn set_mtu(&self, link: u32, mtu: u32) -> Result<(), Error> {
        self.set("set the packet size of", link, unspec(link).mtu(mtu))
            .await
    }

    async fn set_up(&self, link: u32, up: bool) -> Result<(), Error> {
        let message = unspec(link);
        let (verb, message) = if up {
            ("bring up", message.up())
        } else {
            ("bring down", message.down())
        };
        self.set(verb, link, message).await
    }

    async fn add_address(&self, link: u32, address: Address) -> Result<(), Error> {
        let net = address.net;
        let mut add = self
            .handle
            .address()
            .add(link, net.addr(), net.prefix_len());
        *add.message_mut() = message::address_message(link, address);
        request("add address", net.to_string(), add.execute()).await
    }

    async fn delete_address(&self, link: u32, address: Address) -> Result<(), Error> {
        let message = message::address_message(link, address);
        let delete = self.handle.address().del(message).execute();
        request("delete address", address.net.to_string(), delete).await
    }

    async fn add_route(&self, link: u32, route: &Route) -> Result<(), Error> {
        let Some(message) = message::route_message(link, route) else {
            return Ok(());
        };
        let add = self.handle.route().add(message).execute();
        request("add route", route.dst.to_string(), add).await
    }

    async fn delete_route(&self, link: u32, route: &Route) -> Result<(), Error> {
        let Some(message) = message::route_message(link, route) else {
            return Ok(());
        };
        let delete = self.handle.route().del(message).execute();
        request("delete route", route.dst.to_string(), delete).await
    }

    async fn tune(&self, link: &str, setting: Setting) -> Result<(), Error> {
        let link = link.to_owned();
        self.ns
            .run(move || sysctl::write(&link, setting))
            .await
            .map_err(Error::Namespace)?
            .map_err(Error::Setting)
    }

    async fn filter(&self, rules: String) -> Result<(), Error> {
        filter::load(&self.ns, rules).await.map_err(Error::Filter)
    }
}
