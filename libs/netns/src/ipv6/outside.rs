//! Finds the link-local addresses of gateways that are on no link of the node.
//!
//! ```text
//!  neighbour solicitation for the gateway ──► its hardware address
//!  router solicitation ──► an advertisement from there: its source is the answer
//!  none: neighbour solicitation for the address made of the hardware address ──► from there: that one
//! ```
//! Invariant: a search asks in the guest's name on the pod's own link, at most [`ROUNDS`] says how
//! often, and ends. It keeps only answers to what it asked: an address for each gateway, whatever
//! neighbours send. An address that was found earlier is kept when it still answers from there.
//! Failure: a gateway that answers nothing, or nothing more, is not in the answer.

use std::collections::BTreeMap;
use std::io;
use std::net::Ipv6Addr;
use std::time::Duration;

use super::lease::Lease;
use super::neighbour::{self, Notice};
use super::socket::{self, Frames};
use crate::mac::Mac;
use crate::namespace::{self, Namespace};
use crate::pace::PAUSE_AFTER_FRAME;

/// The gateways of one search; the lease of a pod has one or two.
const MOST: usize = 8;
/// Longer frames are cut and then do not parse. Advertisements of routers are of one packet.
const MAX_FRAME: usize = 2048;

/// Link-local addresses by gateway.
pub(super) type Routers = BTreeMap<Ipv6Addr, Ipv6Addr>;

/// A search that did not begin.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("failed to enter the namespace")]
    Namespace(#[source] namespace::Error),
    #[error("failed to open a packet socket on {link}")]
    Socket { link: String, source: io::Error },
}

/// What is asked at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    /// Where the gateways are, and whether the addresses that are known answer.
    Gateways,
    /// Who is a router.
    Routers,
    /// Whether a gateway has the address that is made of its hardware address.
    Derived,
}

struct Round {
    about: Subject,
    times: u32,
    every: Duration,
}

/// Numbers and times of RFC 4861, section 10. Routers may wait three seconds between two
/// advertisements for all.
const ROUNDS: [Round; 3] = [
    Round {
        about: Subject::Gateways,
        times: 3,
        every: Duration::from_secs(1),
    },
    Round {
        about: Subject::Routers,
        times: 3,
        every: Duration::from_secs(4),
    },
    Round {
        about: Subject::Derived,
        times: 3,
        every: Duration::from_secs(1),
    },
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Question {
    WhereIs(Ipv6Addr),
    WhoIsRouter,
}

/// One search.
#[derive(Debug)]
pub(super) struct Search {
    mac: Mac,
    /// An address of the guest for each gateway, with which it is asked for.
    gateways: BTreeMap<Ipv6Addr, Ipv6Addr>,
    known: Routers,
    /// Where an address that was asked for is.
    answered: BTreeMap<Ipv6Addr, Mac>,
    /// The router at a gateway's hardware address.
    advertised: BTreeMap<Mac, Ipv6Addr>,
}

impl Search {
    /// A search for `gateways` by the guest of `lease`; `known` has what an earlier one found.
    pub(super) fn new(lease: &Lease, gateways: &[Ipv6Addr], known: &Routers) -> Self {
        let asks = |gateway: &Ipv6Addr| {
            let mut own = lease.addresses.iter();
            let near = own.find(|net| net.contains(gateway));
            Some((*gateway, near.or(lease.addresses.first())?.addr()))
        };
        let gateways: BTreeMap<_, _> = gateways.iter().filter_map(asks).take(MOST).collect();
        let mut known = known.clone();
        known.retain(|gateway, _| gateways.contains_key(gateway));
        Self {
            mac: lease.mac,
            gateways,
            known,
            answered: BTreeMap::new(),
            advertised: BTreeMap::new(),
        }
    }

    /// Searches on `link` of `ns`.
    ///
    /// # Errors
    /// When there is no socket.
    pub(super) async fn run(mut self, ns: Namespace, link: String) -> Result<Routers, Error> {
        let name = link.clone();
        let socket = ns
            .run(move || socket::open(&name, &socket::from_routers()))
            .await
            .map_err(Error::Namespace)?;
        let frames = socket
            .and_then(Frames::new)
            .map_err(|source| Error::Socket { link, source })?;
        for Round {
            about,
            times,
            every,
        } in ROUNDS
        {
            for _ in 0..times {
                let open = self.open(about);
                if open.is_empty() {
                    break;
                }
                self.ask(&frames, &open);
                // Without all answers in time the next question, or the next round, follows.
                let _ = tokio::time::timeout(every, self.listen(&frames, about)).await;
            }
        }
        Ok(self.found())
    }

    fn ask(&self, frames: &Frames, questions: &[Question]) {
        let by = self.gateways.values().next();
        for question in questions {
            let frame = match question {
                Question::WhereIs(target) => {
                    let from = self.gateways.get(target).or(by);
                    from.and_then(|from| neighbour::where_is(*target, self.mac, *from))
                }
                Question::WhoIsRouter => neighbour::routers(self.mac),
            };
            if let Some(Err(error)) = frame.map(|frame| frames.send(&frame)) {
                tracing::debug!(%error, mac = %self.mac, "question not sent to routers");
            }
        }
    }

    /// Ends when nothing is open about the subject.
    async fn listen(&mut self, frames: &Frames, about: Subject) {
        let mut buffer = vec![0; MAX_FRAME];
        while !self.open(about).is_empty() {
            if let Ok(frame) = frames.receive(&mut buffer).await
                && let Some(notice) = neighbour::parse(frame)
            {
                self.receive(notice);
            }
            tokio::time::sleep(PAUSE_AFTER_FRAME).await;
        }
    }

    /// What is still to be asked.
    fn open(&self, about: Subject) -> Vec<Question> {
        let is_silent = |target: &Ipv6Addr| !self.answered.contains_key(target);
        match about {
            Subject::Gateways => {
                let targets = self.gateways.keys().chain(self.known.values());
                let silent = targets.copied().filter(is_silent);
                silent.map(Question::WhereIs).collect()
            }
            Subject::Routers => {
                let is_open = self.without_router().next().is_some();
                is_open
                    .then_some(Question::WhoIsRouter)
                    .into_iter()
                    .collect()
            }
            Subject::Derived => {
                let targets = self.without_router().map(Mac::link_local);
                let silent = targets.filter(is_silent);
                silent.map(Question::WhereIs).collect()
            }
        }
    }

    /// Hardware addresses of gateways whose link-local address is not known.
    fn without_router(&self) -> impl Iterator<Item = Mac> + '_ {
        self.gateways
            .keys()
            .filter(|gateway| self.router(**gateway).is_none())
            .filter_map(|gateway| self.answered.get(gateway).copied())
    }

    fn receive(&mut self, notice: Notice) {
        match notice {
            Notice::Neighbour { target, mac } if mac != self.mac && self.asks(target, mac) => {
                self.answered.entry(target).or_insert(mac);
            }
            Notice::Router { address, mac } if self.has_gateway_at(mac) => {
                self.advertised.entry(mac).or_insert(address);
            }
            Notice::Neighbour { .. } | Notice::Router { .. } => {}
        }
    }

    /// Whether an answer for `target` from `mac` counts. Link-local addresses of gateways count from
    /// gateways only, so that no other neighbour takes their place.
    fn asks(&self, target: Ipv6Addr, mac: Mac) -> bool {
        let is_known = self.known.values().any(|router| *router == target);
        self.gateways.contains_key(&target)
            || ((is_known || target == mac.link_local()) && self.has_gateway_at(mac))
    }

    fn has_gateway_at(&self, mac: Mac) -> bool {
        let mut places = self
            .gateways
            .keys()
            .filter_map(|gateway| self.answered.get(gateway));
        places.any(|place| *place == mac)
    }

    /// The link-local address of a gateway.
    fn router(&self, gateway: Ipv6Addr) -> Option<Ipv6Addr> {
        let mac = self.answered.get(&gateway)?;
        let is_there = |address: &Ipv6Addr| self.answered.get(address) == Some(mac);
        let known = self.known.get(&gateway).copied().filter(is_there);
        let advertised = || self.advertised.get(mac).copied();
        let derived = || Some(mac.link_local()).filter(is_there);
        known.or_else(advertised).or_else(derived)
    }

    fn found(&self) -> Routers {
        let gateways = self.gateways.keys();
        gateways
            .filter_map(|gateway| Some((*gateway, self.router(*gateway)?)))
            .collect()
    }
}

#[cfg(test)]
mod tests;
