//! Serves the leases of one pod: one task per tap.
//!
//! Invariant: advertisements are sent at the start, when the guest asks and every few minutes; when
//! a gateway's link-local address changes, the old one is withdrawn. A guest that floods us is
//! slowed down. Dropping the [`Server`] ends it.
//! Failure: a receive error (the tap is going, say) is logged and followed by a pause; a gateway
//! that cannot be found is looked for again, less and less often; the server never ends by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::Ipv6Addr;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

use super::advert::{self, Advert};
use super::frame::{self, Inbound};
use super::gateway::{self, Node};
use super::lease::Lease;
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

/// The IPv6 server of one pod.
#[derive(Debug)]
pub struct Server {
    _tasks: JoinSet<()>,
}

impl Server {
    /// Serves each lease on the tap of that name in `ns`; gateways are looked for among the links
    /// of `node`, which all servers share. Must be called on a tokio runtime.
    ///
    /// # Errors
    /// When a socket cannot be made; nothing is served then.
    pub async fn start(
        ns: &Namespace,
        node: &Node,
        leases: Vec<(String, Lease)>,
    ) -> Result<Self, Error> {
        let mut tasks = JoinSet::new();
        for (link, lease) in leases {
            let name = link.clone();
            let socket = ns
                .run(move || socket::open(&name))
                .await
                .map_err(Error::Namespace)?;
            let frames = socket
                .and_then(Frames::new)
                .map_err(|source| Error::Socket { link, source })?;
            let nic = Nic {
                frames,
                lease,
                node: node.clone(),
                routers: BTreeMap::new(),
                since: Instant::now(),
                looked: None,
                wait: CHECK_INTERVAL,
                warned: false,
                unreadable: Warning::default(),
                declined: Warning::default(),
            };
            tasks.spawn(nic.serve());
        }
        Ok(Self { _tasks: tasks })
    }
}

/// One NIC with what is known of its gateways.
struct Nic {
    frames: Frames,
    lease: Lease,
    node: Node,
    routers: BTreeMap<Ipv6Addr, Ipv6Addr>,
    /// When this server started: the pod has its links.
    since: Instant,
    looked: Option<Instant>,
    /// Before the next look for a gateway that was not found.
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
                    let changed = (due || self.is_to_look()) && self.refresh().await;
                    if due || changed {
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

    /// Whether a gateway is missing and it is time to look for it once more. One that is no link of
    /// the node never becomes one, as a rule.
    fn is_to_look(&mut self) -> bool {
        let hops = self.lease.hops();
        if hops.iter().all(|hop| self.routers.contains_key(hop)) {
            self.wait = CHECK_INTERVAL;
            return false;
        }
        let is_time = self.looked.is_none_or(|at| at.elapsed() >= self.wait);
        if is_time {
            self.wait = (self.wait * 2).min(PERIOD);
        }
        is_time
    }

    /// Looks for the gateways unless that was just done. Returns whether anything changed.
    async fn refresh(&mut self) -> bool {
        if self.looked.is_some_and(|at| at.elapsed() < CHECK_INTERVAL) {
            return false;
        }
        self.looked = Some(Instant::now());
        let hops = self.lease.hops();
        let found = match self.node.link_locals(&self.lease, self.since).await {
            Ok(found) => found,
            Err(error) => {
                if self.unreadable.is_due() {
                    tracing::warn!(mac = %self.lease.mac, %error, "gateways not refreshed");
                }
                return false;
            }
        };
        if found.len() < hops.len() && !self.warned {
            let unknown: Vec<_> = hops.iter().filter(|hop| !found.contains_key(hop)).collect();
            tracing::warn!(mac = %self.lease.mac, ?unknown, "gateways not found");
            self.warned = true;
        }
        let old: BTreeSet<Ipv6Addr> = self.routers.values().copied().collect();
        let new: BTreeSet<Ipv6Addr> = found.values().copied().collect();
        for source in old.difference(&new) {
            self.send(&Advert {
                source: *source,
                lifetime: 0,
                options: Vec::new(),
            });
        }
        let changed = self.routers != found;
        self.routers = found;
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
