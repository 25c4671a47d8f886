//! Link-local addresses of the pod's gateways, which the node itself most often is.
//!
//! Invariant: an address that is link-local already is its own answer; others are looked up among
//! the addresses of the node's links. Plugins that give each pod a link of its own (`ptp`) put the
//! same gateway on all of them: then the link counts over which the node reaches the pod. All
//! servers of a node share one list of its addresses, which is read at most once in [`FRESH`], and
//! again for a pod that is newer than the list: its link is not in it.
//! Failure: a gateway that is on no link of the node is not in the answer.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use super::lease::Lease;
use crate::namespace::Namespace;
use crate::netlink::{Error, Kernel};

/// How long the list of the node's addresses is believed.
pub(super) const FRESH: Duration = Duration::from_secs(5);

/// An address of the node with the index of its link.
type Held = (u32, Ipv6Addr);

/// The node whose links may be the gateways of pods; clones share what they know.
#[derive(Debug, Clone)]
pub struct Node {
    ns: Namespace,
    known: Arc<Mutex<Known<Vec<Held>>>>,
}

impl Node {
    /// The node with this network namespace.
    #[must_use]
    pub fn new(ns: Namespace) -> Self {
        Self {
            ns,
            known: Arc::default(),
        }
    }

    /// The link-local address of each next hop of `lease`, whose pod has its links since `since`, that
    /// has a known one.
    pub(super) async fn link_locals(
        &self,
        lease: &Lease,
        since: Instant,
    ) -> Result<BTreeMap<Ipv6Addr, Ipv6Addr>, Error> {
        let mut known = BTreeMap::new();
        let hops = lease.hops();
        let (own, others): (Vec<_>, Vec<_>) =
            hops.iter().partition(|hop| hop.is_unicast_link_local());
        known.extend(own.into_iter().map(|hop| (hop, hop)));
        if others.is_empty() {
            return Ok(known);
        }
        let all = self.addresses(since).await?;
        let mut towards = None;
        if let Some(address) = lease.addresses.first()
            && others.iter().any(|hop| links_with(&all, *hop).count() > 1)
        {
            let net = Kernel::open(&self.ns).await?;
            towards = net.link_towards(address.addr().into()).await?;
        }
        known.extend(
            others
                .into_iter()
                .filter_map(|hop| Some((hop, neighbour(&all, hop, towards)?))),
        );
        Ok(known)
    }

    /// Every address that the node has or had after `since`. Callers that ask meanwhile wait for one
    /// answer.
    async fn addresses(&self, since: Instant) -> Result<Arc<Vec<Held>>, Error> {
        let read = async { Kernel::open(&self.ns).await?.ipv6_addresses().await };
        self.known.lock().await.get(since, read).await
    }
}

/// A value that is read again when it is [`FRESH`] no more.
#[derive(Debug)]
struct Known<T>(Option<(Instant, Arc<T>)>);

impl<T> Default for Known<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> Known<T> {
    /// The value of a read that began at `since` or later, by `read` if need be, which is not begun
    /// otherwise.
    async fn get<E>(
        &mut self,
        since: Instant,
        read: impl Future<Output = Result<T, E>>,
    ) -> Result<Arc<T>, E> {
        if let Some((began, value)) = &self.0
            && *began >= since
            && began.elapsed() < FRESH
        {
            return Ok(Arc::clone(value));
        }
        let began = Instant::now();
        let value = Arc::new(read.await?);
        self.0 = Some((began, Arc::clone(&value)));
        Ok(value)
    }
}

fn links_with(all: &[Held], hop: Ipv6Addr) -> impl Iterator<Item = u32> {
    let having = all.iter().filter(move |(_, address)| *address == hop);
    having.map(|(link, _)| *link)
}

/// A link-local address on the link that has `hop`: on the link `towards` the pod, if several have
/// it.
fn neighbour(all: &[Held], hop: Ipv6Addr, towards: Option<u32>) -> Option<Ipv6Addr> {
    let links: Vec<u32> = links_with(all, hop).collect();
    let wanted = links.iter().find(|link| Some(**link) == towards);
    let link = wanted.or(links.first())?;
    let same = all.iter().filter(|(index, _)| index == link);
    same.map(|(_, address)| *address)
        .find(Ipv6Addr::is_unicast_link_local)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_is_of_the_link_that_has_the_gateway_and_leads_to_the_pod() {
        let all = [
            (2, "fe80::2"),
            (3, "fd00::1"),
            (3, "fe80::3"),
            (4, "fd01::1"),
            (5, "fd00::1"),
            (5, "fe80::5"),
        ]
        .map(|(link, text)| (link, text.parse().unwrap()));
        let find = |text: &str, towards| {
            let found = neighbour(&all, text.parse().unwrap(), towards);
            found.map(|ip| ip.to_string())
        };
        assert_eq!(find("fd00::1", None).as_deref(), Some("fe80::3"));
        assert_eq!(find("fd00::1", Some(5)).as_deref(), Some("fe80::5"));
        assert_eq!(find("fd00::1", Some(2)).as_deref(), Some("fe80::3"));
        assert_eq!(find("fd01::1", None), None);
        assert_eq!(find("fd02::1", None), None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_list_is_read_once_for_all_who_ask_within_its_time() {
        let mut known = Known::default();
        let since = Instant::now();
        for (after, expected) in [(0, 1), (4, 1), (1, 3), (0, 3)] {
            tokio::time::advance(Duration::from_secs(after)).await;
            let found = known
                .get(since, async { Ok::<_, Error>(expected) })
                .await
                .unwrap();
            assert_eq!(*found, expected, "after {after} s");
        }
        tokio::time::advance(FRESH).await;
        known.get(since, async { Err("failed") }).await.unwrap_err();
        let again = known.get(since, async { Ok::<_, Error>(4) }).await.unwrap();
        assert_eq!(*again, 4, "an error is not kept");
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_from_before_a_pod_is_read_again_for_it() {
        let mut known = Known::default();
        let read = |value: u8| async move { Ok::<_, Error>(value) };
        known.get(Instant::now(), read(1)).await.unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;
        let newer = Instant::now();
        assert_eq!(*known.get(newer, read(2)).await.unwrap(), 2);
        assert_eq!(*known.get(newer, read(3)).await.unwrap(), 2);
    }
}
