//! The facts that a guest reports about itself.
//!
//! Invariant: everything here comes from the guest, so all of it is bounded and printable, and
//! nothing is believed.
//! Failure: an answer that is not of the expected form counts as none.

mod missing;
mod published;
mod questions;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use libvirt::{Error, Hypervisor, guest};
use uuid::Uuid;

pub(crate) use questions::Survey;

/// Time for one answer.
const ANSWER: Duration = Duration::from_secs(3);

/// Maximum number of NICs, and of addresses of one, that are reported.
const INTERFACES: usize = 16;
const ADDRESSES: usize = 32;

/// What the kernel reports for a link without a hardware address.
const NO_MAC: &str = "00:00:00:00:00:00";

/// Longest text in characters; a host name may have 253.
const TEXT: usize = 253;

/// What a guest reported.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reply {
    /// Its own name for itself.
    pub host_name: String,
    /// Short name of its operating system.
    pub os_id: String,
    /// Name of its operating system, for people.
    pub os_name: String,
    /// Version of its operating system.
    pub os_version: String,
    /// Release of its kernel.
    pub kernel: String,
    /// Its NICs.
    pub interfaces: Vec<Interface>,
    /// Values that it publishes, by key.
    pub published: BTreeMap<String, String>,
    /// Paths that its boot script could not mount or write.
    pub missing: Vec<String>,
}

impl Reply {
    /// Whether there is an address that others may reach the guest by.
    pub(super) fn has_address(&self) -> bool {
        let addresses = self.interfaces.iter().flat_map(|nic| &nic.addresses);
        let mut addresses = addresses.filter_map(|address| address.split('/').next()?.parse().ok());
        addresses.any(|address| match address {
            IpAddr::V4(address) => !address.is_link_local(),
            IpAddr::V6(address) => !address.is_unicast_link_local(),
        })
    }
}

/// A NIC as the guest calls it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its hardware address, in lower case.
    pub mac: String,
    /// With prefix length.
    pub addresses: Vec<String>,
}

/// Whether the guest's agent answers at all.
pub(super) async fn answers(driver: &impl Hypervisor, domain: Uuid) -> Result<bool, Error> {
    match guest::ping(driver, domain, ANSWER).await {
        Ok(()) => Ok(true),
        Err(Error::Agent { .. } | Error::NoAgent { .. } | Error::NoDomain(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The report of `vmlet-guest`.
pub fn of_vmlet_guest(facts: &guestapi::Facts) -> Reply {
    let interfaces = facts.interfaces.iter().filter_map(|nic| {
        let mac = nic.mac.to_lowercase();
        let name = plain(&nic.name);
        let addresses = nic.addresses.iter().filter_map(|address| {
            let (ip, prefix) = address.split_once('/')?;
            usable(ip.parse().ok()?, prefix.parse().ok()?)
        });
        (is_usable_mac(&mac) && !name.is_empty()).then(|| Interface {
            name,
            mac,
            addresses: addresses.take(ADDRESSES).collect(),
        })
    });
    Reply {
        host_name: plain(&facts.host_name),
        os_id: plain(&facts.os_id),
        os_name: plain(&facts.os_name),
        os_version: plain(&facts.os_version),
        kernel: plain(&facts.kernel),
        interfaces: interfaces.take(INTERFACES).collect(),
        published: published::values(&facts.published),
        missing: missing::paths(&facts.not_mounted),
    }
}

fn usable(ip: IpAddr, prefix: u64) -> Option<String> {
    let most = if ip.is_ipv4() { 32 } else { 128 };
    let is_prefix = prefix <= most;
    (is_prefix && !ip.is_loopback() && !ip.is_unspecified()).then(|| format!("{ip}/{prefix}"))
}

fn is_usable_mac(text: &str) -> bool {
    text.len() == 17
        && text != NO_MAC
        && text.bytes().enumerate().all(|(i, b)| match i % 3 {
            2 => b == b':',
            _ => b.is_ascii_hexdigit(),
        })
}

/// A text of a guest: printable, on one line, short.
fn plain(text: &str) -> String {
    let shown = text.chars().filter(|c| !c.is_control()).take(TEXT);
    shown.collect::<String>().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use libvirt::FakeHypervisor;

    use super::*;

    #[test]
    fn a_report_of_vmlet_guest_is_bounded_and_printable() {
        let nic = |mac: &str, addresses: &[&str]| guestapi::Interface {
            name: "eth0\u{1b}[31m".to_owned(),
            mac: mac.to_owned(),
            addresses: addresses
                .iter()
                .map(|&address| address.to_owned())
                .collect(),
        };
        let facts = guestapi::Facts {
            host_name: format!("a\n{}", "b".repeat(9000)),
            interfaces: vec![
                nic(
                    "0A:58:0a:01:00:05",
                    &["10.1.0.5/24", "10.1.0.5/33", "::1/128", "x/8", "7"],
                ),
                nic("no address", &[]),
                nic(NO_MAC, &[]),
            ],
            published: "ready=yes\n".into(),
            not_mounted: "/data\n".into(),
            ..guestapi::Facts::default()
        };
        let reply = of_vmlet_guest(&facts);
        assert_eq!(reply.host_name.len(), TEXT);
        assert_eq!(reply.published["ready"], "yes");
        assert_eq!(reply.missing, ["/data"]);
        let expected = Interface {
            name: "eth0[31m".to_owned(),
            mac: "0a:58:0a:01:00:05".to_owned(),
            addresses: vec!["10.1.0.5/24".to_owned()],
        };
        assert_eq!(reply.interfaces, [expected]);
    }

    #[tokio::test]
    async fn a_guest_without_an_agent_does_not_answer() {
        let driver = FakeHypervisor::default();
        assert!(!answers(&driver, Uuid::nil()).await.unwrap());
    }
}
