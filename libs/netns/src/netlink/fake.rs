//! A namespace that exists in memory only.
//!
//! Invariant: it refuses what the kernel refuses (names twice, routes to unreachable next hops,
//! missing links) with the kernel's error numbers, and it keeps what was done in order.
//! Failure: a verb of [`Fake::failing`] always fails with EIO.

use std::sync::Mutex;

use nix::errno::Errno;

use super::{Address, Error, Link, LinkKind, Netlink, Route, Rule, Setting};
use crate::mac::Mac;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FakeLink {
    pub(crate) link: Link,
    pub(crate) addresses: Vec<Address>,
    pub(crate) routes: Vec<Route>,
    pub(crate) ipv6: bool,
    pub(crate) directed: Option<Mac>,
}

#[derive(Debug, Default)]
pub(crate) struct Fake {
    links: Mutex<Vec<FakeLink>>,
    pub(crate) filters: Mutex<Vec<String>>,
    pub(crate) rules: Mutex<Vec<Rule>>,
    pub(crate) special: Mutex<Vec<String>>,
    failing: Option<&'static str>,
}

impl Fake {
    /// A namespace with a loopback link.
    pub(crate) fn new() -> Self {
        let fake = Self::default();
        fake.add("lo", LinkKind::Loopback, &[], &[]);
        fake
    }

    pub(crate) fn failing(mut self, verb: &'static str) -> Self {
        self.failing = Some(verb);
        self
    }

    pub(crate) fn add(&self, name: &str, kind: LinkKind, addresses: &[&str], routes: &[Route]) {
        let mut links = self.links.lock().unwrap();
        let index = links.iter().map(|l| l.link.index).max().unwrap_or(0) + 1;
        let [low, ..] = index.to_le_bytes();
        let link = Link {
            index,
            name: name.to_owned(),
            mac: Some(Mac::new([0x0a, 0, 0, 0, 0, low])),
            mtu: 1450,
            kind,
            up: true,
            bridge: None,
            pci: None,
        };
        let address = |net: &&str| Address {
            net: net.parse().unwrap(),
            scope: 0,
        };
        links.push(FakeLink {
            link,
            addresses: addresses.iter().map(address).collect(),
            routes: routes.to_vec(),
            ipv6: true,
            directed: None,
        });
    }

    pub(crate) fn remove(&self, name: &str) {
        self.links.lock().unwrap().retain(|l| l.link.name != name);
    }

    pub(crate) fn get(&self, name: &str) -> Option<FakeLink> {
        self.links
            .lock()
            .unwrap()
            .iter()
            .find(|l| l.link.name == name)
            .cloned()
    }

    fn fail(verb: &'static str, errno: Errno) -> Error {
        Error::Request {
            verb,
            object: String::new(),
            errno: errno as i32,
            source: Box::new(errno),
        }
    }

    fn change(
        &self,
        verb: &'static str,
        link: u32,
        change: impl FnOnce(&mut FakeLink) -> Result<(), Errno>,
    ) -> Result<(), Error> {
        if self.failing == Some(verb) {
            return Err(Self::fail(verb, Errno::EIO));
        }
        let mut links = self.links.lock().unwrap();
        let link = links.iter_mut().find(|l| l.link.index == link);
        let link = link.ok_or_else(|| Self::fail(verb, Errno::ENODEV))?;
        change(link).map_err(|errno| Self::fail(verb, errno))
    }
}

impl Netlink for Fake {
    async fn links(&self) -> Result<Vec<Link>, Error> {
        Ok(self
            .links
            .lock()
            .unwrap()
            .iter()
            .map(|l| l.link.clone())
            .collect())
    }

    async fn addresses(&self, link: u32) -> Result<Vec<Address>, Error> {
        let links = self.links.lock().unwrap();
        Ok(links
            .iter()
            .find(|l| l.link.index == link)
            .unwrap()
            .addresses
            .clone())
    }

    async fn routes(&self, link: u32) -> Result<Vec<Route>, Error> {
        let links = self.links.lock().unwrap();
        Ok(links
            .iter()
            .find(|l| l.link.index == link)
            .unwrap()
            .routes
            .clone())
    }

    async fn special_routes(&self) -> Result<Vec<String>, Error> {
        Ok(self.special.lock().unwrap().clone())
    }

    async fn rules(&self) -> Result<Vec<Rule>, Error> {
        Ok(self.rules.lock().unwrap().clone())
    }

    async fn create_bridge(&self, name: &str, mac: Mac, mtu: u32) -> Result<(), Error> {
        if self.get(name).is_some() {
            return Err(Self::fail("create_bridge", Errno::EEXIST));
        }
        self.add(name, LinkKind::Bridge, &[], &[]);
        let mut links = self.links.lock().unwrap();
        let link = &mut links.last_mut().unwrap().link;
        (link.mac, link.mtu, link.up) = (Some(mac), mtu, false);
        Ok(())
    }

    async fn create_tap(&self, name: &str) -> Result<(), Error> {
        if self.get(name).is_none() {
            self.add(name, LinkKind::Tun, &[], &[]);
        }
        Ok(())
    }

    async fn attach(&self, link: u32, bridge: Option<u32>) -> Result<(), Error> {
        self.change("attach", link, |l| {
            l.link.bridge = bridge;
            Ok(())
        })
    }

    async fn direct(&self, link: u32, mac: Mac) -> Result<(), Error> {
        self.change("direct", link, |l| {
            l.link.bridge.ok_or(Errno::EINVAL)?;
            l.directed = Some(mac);
            Ok(())
        })
    }

    async fn set_mac(&self, link: u32, mac: Mac) -> Result<(), Error> {
        self.change("set_mac", link, |l| match (&l.link.kind, l.link.up) {
            (LinkKind::Device, true) => Err(Errno::EBUSY),
            _ => {
                l.link.mac = Some(mac);
                Ok(())
            }
        })
    }

    async fn set_mtu(&self, link: u32, mtu: u32) -> Result<(), Error> {
        self.change("set_mtu", link, |l| {
            l.link.mtu = mtu;
            Ok(())
        })
    }

    async fn set_up(&self, link: u32, up: bool) -> Result<(), Error> {
        self.change("set_up", link, |l| {
            l.link.up = up;
            Ok(())
        })
    }

    async fn add_address(&self, link: u32, address: Address) -> Result<(), Error> {
        self.change("add_address", link, |l| {
            if l.addresses.contains(&address) {
                Err(Errno::EEXIST)
            } else {
                l.addresses.push(address);
                Ok(())
            }
        })
    }

    async fn delete_address(&self, link: u32, address: Address) -> Result<(), Error> {
        self.change("delete_address", link, |l| {
            let before = l.addresses.len();
            l.addresses.retain(|a| *a != address);
            if before == l.addresses.len() {
                Err(Errno::EADDRNOTAVAIL)
            } else {
                Ok(())
            }
        })
    }

    async fn add_route(&self, link: u32, route: &Route) -> Result<(), Error> {
        self.change("add_route", link, |l| {
            let reachable = route.gateway.is_none_or(|gateway| {
                l.addresses.iter().any(|a| a.net.contains(&gateway))
                    || l.routes
                        .iter()
                        .any(|r| r.gateway.is_none() && r.dst.contains(&gateway))
            });
            if !reachable {
                return Err(Errno::ENETUNREACH);
            }
            if l.routes.contains(route) {
                return Err(Errno::EEXIST);
            }
            l.routes.push(*route);
            Ok(())
        })
    }

    async fn delete_route(&self, link: u32, route: &Route) -> Result<(), Error> {
        self.change("delete_route", link, |l| {
            let before = l.routes.len();
            l.routes.retain(|r| r != route);
            if before == l.routes.len() {
                Err(Errno::ESRCH)
            } else {
                Ok(())
            }
        })
    }

    async fn tune(&self, link: &str, setting: Setting) -> Result<(), Error> {
        let mut links = self.links.lock().unwrap();
        if let Setting::Ipv6(on) = setting
            && let Some(l) = links.iter_mut().find(|l| l.link.name == link)
        {
            l.ipv6 = on;
            if !on {
                l.addresses.retain(|a| a.net.addr().is_ipv4());
                l.routes.retain(|r| r.dst.addr().is_ipv4());
            }
        }
        Ok(())
    }

    async fn filter(&self, rules: String) -> Result<(), Error> {
        let ports = self
            .links
            .lock()
            .unwrap()
            .iter()
            .filter(|l| l.link.bridge.is_some())
            .count();
        self.filters
            .lock()
            .unwrap()
            .push(format!("{ports} ports\n{rules}"));
        Ok(())
    }
}
