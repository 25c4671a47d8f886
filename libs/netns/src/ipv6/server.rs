//! Serves the leases of one pod: one task per tap.
//!
//! Invariant: advertisements are sent at the start, when the guest asks and every few minutes; when
//! a gateway's link-local address changes, the old one is withdrawn. A guest that floods us is
//! slowed down, and a search for a gateway outside delays no guest. Dropping the [`Server`]
//! ends it.
//! Failure: a receive error (the tap is going, say) is logged and followed by a pause; a gateway
//! that is on no link of the node, or nowhere, is looked for again, less and less often; the server
//! never ends by itself.

use std::collections::BTreeSet;
use std::io;
use std::net::Ipv6Addr;
use std::pin::Pin;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

use super::advert::{self, Advert};
use super::frame::{self, Inbound};
use super::gateway::{self, Node};
use super::lease::Lease;
use super::outside::{self, Routers, Search};
use super::socket::{self, Frames};
use crate::namespace::{self, Namespace};
use crate::pace::{PAUSE_AFTER_FRAME, Warning};

/// Interval of unsolicited advertisements.
const PERIOD: Duration = Duration::from_secs(300);
/// How long an answer is believed, and the first wait before a gateway that is not known is looked
/// for again. Each further wait is twice as long, up to [`PERIOD`].
const CHECK_INTERVAL: Duration = gateway::FRESH;
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(200);
/// Longer frames are cut and then do not parse.
const MAX_FRAME: usize = 2048;

/// A server that did not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The namespace cannot be entered.
    #[error("enter the namespace")]
    Namespace(#[source] namespace::Error),
    /// The kernel refuses the socket.
    #[error("open a packet socket on {link}")]
    Socket {
        /// The tap.
        link: String,
        /// The kernel's reason.
        #[source]
        source: io::Error,
    },
}

/// One NIC of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// The plugin's link, which leads outside.
    pub link: String,
    /// The guest's tap.
    pub tap: String,
    /// What the guest gets.
    pub lease: Lease,
}

/// The IPv6 server of one pod.
#[derive(Debug)]
pub struct Server {
    _tasks: JoinSet<()>,
}

impl Server {
    /// Serves each port of `ns` on its tap; gateways are looked for among the links of `node`, which
    /// all servers share, then on the port's link. Must be called on a tokio runtime.
    ///
    /// # Errors
    /// When a socket cannot be made; nothing is served then.
    pub async fn start(ns: &Namespace, node: &Node, ports: Vec<Port>) -> Result<Self, Error> {
        let mut tasks = JoinSet::new();
        for Port { link, tap, lease } in ports {
            let name = tap.clone();
            let socket = ns
                .run(move || socket::open(&name, &socket::from_guest()))
                .await
                .map_err(Error::Namespace)?;
            let frames = socket
                .and_then(Frames::new)
                .map_err(|source| Error::Socket { link: tap, source })?;
            let nic = Nic {
                frames,
                lease,
                node: node.clone(),
                ns: ns.clone(),
                link,
                routers: Routers::new(),
                foreign: Vec::new(),
                learnt: Routers::new(),
                search: None,
                since: Instant::now(),
                looked: None,
                wait: Duration::ZERO,
                warned: false,
                unreadable: Warning::default(),
                declined: Warning::default(),
            };
            tasks.spawn(nic.serve());
        }
        Ok(Self { _tasks: tasks })
    }
}

type Found = Result<Routers, outside::Error>;
type Running = Pin<Box<dyn Future<Output = Found> + Send>>;

/// One NIC with what is known of its gateways.
struct Nic {
    frames: Frames,
    lease: Lease,
    node: Node,
    ns: Namespace,
    link: String,
    /// What is advertised.
    routers: Routers,
    /// Gateways that are on no link of the node.
    foreign: Vec<Ipv6Addr>,
    /// What searches outside found of them.
    learnt: Routers,
    search: Option<Running>,
    /// When this server started: the pod has its links.
    since: Instant,
    looked: Option<Instant>,
    /// Least time between two looks for gateways.
    wait: Duration,
    warned: bool,
    unreadable: Warning,
    declined: Warning,
}

impl Nic {
    async fn serve(mut self) {
        let mut buffer = vec![0; MAX_FRAME];
        let mut ticks = tokio::time::interval(CHECK_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut reported = None::<Instant>;
        loop {
            tokio::select! {
                _ = ticks.tick() => {
                    let due = reported.is_none_or(|at| at.elapsed() >= PERIOD);
                    let changed = (due || self.is_incomplete()) && self.refresh().await;
                    if due || changed {
                        self.advertise();
                        reported = Some(Instant::now());
                    }
                }
                found = ended(&mut self.search) => {
                    self.search = None;
                    if self.learn(found) {
                        self.advertise();
                        reported = Some(Instant::now());
                    }
                }
                received = self.frames.receive(&mut buffer) => match received {
                    Ok(received) => {
                        match frame::parse(received, self.lease.mac) {
                            Some(Inbound::Solicitation) => {
                                self.refresh().await;
                                self.advertise();
                                reported = Some(Instant::now());
                            }
                            Some(Inbound::Dhcp { from, payload }) => self.answer(from, payload),
                            None => {}
                        }
                        tokio::time::sleep(PAUSE_AFTER_FRAME).await;
                    }
                    Err(error) => {
                        tracing::debug!(%error, mac = %self.lease.mac, "packet socket failed");
                        tokio::time::sleep(PAUSE_AFTER_ERROR).await;
                    }
                },
            }
        }
    }

    fn is_incomplete(&self) -> bool {
        let hops = self.lease.hops();
        hops.iter().any(|hop| !self.routers.contains_key(hop))
    }

    /// Looks for the gateways unless that was just done. Returns whether anything changed.
    ///
    /// A gateway that is no link of the node never becomes one, as a rule: the node is asked again
    /// after twice the time.
    async fn refresh(&mut self) -> bool {
        let pause = self.wait.max(CHECK_INTERVAL);
        if self.looked.is_some_and(|at| at.elapsed() < pause) {
            return false;
        }
        self.looked = Some(Instant::now());
        self.wait = (self.wait * 2).clamp(CHECK_INTERVAL, PERIOD);
        let found = match self.node.link_locals(&self.lease, self.since).await {
            Ok(found) => found,
            Err(error) => {
                if self.unreadable.is_due() {
                    tracing::warn!(mac = %self.lease.mac, %error, "gateways not refreshed");
                }
                return false;
            }
        };
        self.foreign = self.lease.hops();
        self.foreign.retain(|hop| !found.contains_key(hop));
        let foreign = &self.foreign;
        self.learnt.retain(|hop, _| foreign.contains(hop));
        if foreign.is_empty() {
            self.wait = CHECK_INTERVAL;
            self.search = None;
        } else if self.search.is_none() {
            let search = Search::new(&self.lease, foreign, &self.learnt);
            self.search = Some(Box::pin(search.run(self.ns.clone(), self.link.clone())));
        }
        let all = self.learnt.iter().map(|(hop, router)| (*hop, *router));
        self.replace(found.into_iter().chain(all).collect())
    }

    /// Takes over what a search found. Returns whether anything changed.
    fn learn(&mut self, found: Found) -> bool {
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                if self.unreadable.is_due() {
                    tracing::warn!(mac = %self.lease.mac, %error, "gateways not refreshed");
                }
                return false;
            }
        };
        for (hop, router) in found {
            if self.learnt.insert(hop, router) != Some(router) {
                tracing::info!(mac = %self.lease.mac, gateway = %hop, %router, "gateway found outside the node");
            }
        }
        let mut unknown = self.foreign.clone();
        unknown.retain(|hop| !self.learnt.contains_key(hop));
        tracing::debug!(mac = %self.lease.mac, ?unknown, "search for gateways ended");
        if unknown.is_empty() {
            self.wait = PERIOD;
        } else if !self.warned {
            tracing::warn!(
                mac = %self.lease.mac,
                link = %self.link,
                ?unknown,
                "gateways neither on the node nor answering outside, guest has no IPv6 routes over them"
            );
            self.warned = true;
        }
        let mut all = self.routers.clone();
        all.extend(&self.learnt);
        self.replace(all)
    }

    /// Withdraws those that are not among `routers`, which are the ones to be advertised. Returns
    /// whether anything changed.
    fn replace(&mut self, routers: Routers) -> bool {
        let old: BTreeSet<Ipv6Addr> = self.routers.values().copied().collect();
        let new: BTreeSet<Ipv6Addr> = routers.values().copied().collect();
        for source in old.difference(&new) {
            self.send(&Advert {
                source: *source,
                lifetime: 0,
                options: Vec::new(),
            });
        }
        let changed = self.routers != routers;
        self.routers = routers;
        changed
    }

    fn advertise(&self) {
        let adverts = advert::adverts(&self.lease, &self.routers);
        for advert in &adverts {
            self.send(advert);
        }
        tracing::debug!(mac = %self.lease.mac, count = adverts.len(), "router advertisement sent");
    }

    fn send(&self, advert: &Advert) {
        let frame = frame::advertisement(advert);
        self.put(frame.as_deref());
    }

    fn answer(&mut self, from: Ipv6Addr, payload: &[u8]) {
        let Some(request) = super::decode(payload) else {
            return;
        };
        let kind = request.msg_type();
        if kind == dhcproto::v6::MessageType::Decline && self.declined.is_due() {
            tracing::warn!(
                mac = %self.lease.mac,
                addresses = ?self.lease.addresses,
                "addresses declined by the guest"
            );
        }
        let Some(answer) = super::reply(&self.lease, &request) else {
            return;
        };
        let bytes = super::encode(&answer);
        let frame = bytes.and_then(|bytes| frame::dhcp(self.lease.mac, from, &bytes));
        self.put(frame.as_deref());
        crate::answers::sent_6();
        tracing::debug!(mac = %self.lease.mac, request = ?kind, answer = ?answer.msg_type(), "DHCPv6 reply sent");
    }

    fn put(&self, frame: Option<&[u8]>) {
        // No frame: the lease has more than can be encoded. No success: no process has the tap open
        // yet.
        if let Some(Err(error)) = frame.map(|frame| self.frames.send(frame)) {
            tracing::debug!(%error, mac = %self.lease.mac, "frame not sent to the guest");
        }
    }
}

/// The outcome of a search; without one it never ends.
async fn ended(search: &mut Option<Running>) -> Found {
    match search {
        Some(search) => search.await,
        None => std::future::pending().await,
    }
}
