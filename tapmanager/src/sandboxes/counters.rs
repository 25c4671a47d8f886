//! The traffic counters of the guests.
//!
//! Invariant: the call waits for no lock: a sandbox that another request works on is omitted this
//! time. Directions are the guest's: what its tap receives is what it has sent.
//! Failure: a namespace that cannot be read is left out.

use std::sync::PoisonError;

use netns::{LinkCounters, Namespace, counters};
use tapmanager::wire::{NicCounters, SandboxCounters};

use super::{Live, Sandboxes};
use crate::failure::Failure;

/// Sandboxes in one answer, and NICs of all of them: what fits into a message.
const SANDBOXES: usize = 256;
const NICS: usize = 200;

/// A sandbox with the names of its links and taps.
type Wanted = (String, Vec<(String, String)>);

impl Sandboxes {
    /// Counters of the sandboxes whose ids follow `after`, and where to continue, if there are
    /// more.
    ///
    /// # Errors
    /// When the thread that reads them cannot be had.
    pub(crate) async fn counters(
        &self,
        after: &str,
    ) -> Result<(Vec<SandboxCounters>, Option<String>), Failure> {
        let (open, more) = self.open_after(after);
        let counted = counters(open).await?;
        let sandboxes = counted.into_iter().map(|((id, nics), links)| {
            let nics = nics.into_iter();
            let nics = nics.filter_map(|(link, tap)| of_guest(link, &tap, &links));
            SandboxCounters {
                id,
                nics: nics.collect(),
            }
        });
        Ok((sandboxes.collect(), more))
    }

    fn open_after(&self, after: &str) -> (Vec<(Wanted, Namespace)>, Option<String>) {
        let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let mut ids: Vec<&String> = slots.keys().filter(|id| id.as_str() > after).collect();
        ids.sort_unstable();
        let mut open = Vec::new();
        let mut count = 0;
        for id in ids {
            let Some(slot) = slots.get(id).and_then(|slot| slot.try_lock().ok()) else {
                continue;
            };
            let Some(Live {
                entry,
                ns: Some(ns),
                ..
            }) = slot.as_ref()
            else {
                continue;
            };
            let nics = entry.network.iter().flat_map(|network| &network.nics);
            let nics: Vec<_> = nics
                .map(|nic| (nic.link.clone(), nic.tap.clone()))
                .collect();
            count += nics.len();
            open.push(((id.clone(), nics), ns.clone()));
            if open.len() >= SANDBOXES || count >= NICS {
                return (open, Some(id.clone()));
            }
        }
        (open, None)
    }
}

/// The tap's counters with the directions turned round.
fn of_guest(link: String, tap: &str, links: &[LinkCounters]) -> Option<NicCounters> {
    let tap = links.iter().find(|found| found.link == tap)?;
    Some(NicCounters {
        link,
        rx_bytes: tap.tx_bytes,
        rx_errors: tap.tx_errors,
        tx_bytes: tap.rx_bytes,
        tx_errors: tap.rx_errors,
        rx_packets: Some(tap.tx_packets),
        rx_dropped: Some(tap.tx_dropped),
        tx_packets: Some(tap.rx_packets),
        tx_dropped: Some(tap.rx_dropped),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_tap_receives_is_what_the_guest_has_sent() {
        let tap = LinkCounters {
            link: "tap0".to_owned(),
            rx_bytes: 1,
            rx_packets: 5,
            rx_errors: 2,
            rx_dropped: 6,
            tx_bytes: 3,
            tx_packets: 7,
            tx_errors: 4,
            tx_dropped: 8,
        };
        let nic = of_guest("eth0".to_owned(), "tap0", std::slice::from_ref(&tap)).unwrap();
        assert_eq!((nic.tx_bytes, nic.tx_errors), (1, 2));
        assert_eq!((nic.rx_bytes, nic.rx_errors), (3, 4));
        assert_eq!((nic.tx_packets, nic.tx_dropped), (Some(5), Some(6)));
        assert_eq!((nic.rx_packets, nic.rx_dropped), (Some(7), Some(8)));
        assert_eq!(nic.link, "eth0");
        assert_eq!(of_guest("eth1".to_owned(), "tap1", &[tap]), None);
    }
}
