//! Guest facts: the report of a node's agent about a machine, in one annotation and three
//! conditions of its pod.
//!
//! Invariant: whatever was parsed or bounded has at most 8 interfaces with 8 addresses each,
//! addresses that are addresses, printable text, and fits into [`LIMIT`] bytes of JSON.
//! Failure: [`Error`] for text that is no such JSON or too long; single values that make no sense
//! are left out, since they come from a guest.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

use crate::node_probe::GuestProbe;
use crate::text::{host_name, printable};

/// Pod condition: the vCPUs of the guest are paused.
pub const POD_PAUSED: &str = "vmlet.dev/Paused";
/// Pod condition: the guest agent responds. Unknown without any report of it.
pub const POD_GUEST_AGENT_CONNECTED: &str = "vmlet.dev/GuestAgentConnected";
/// Pod condition: the guest has an address that others can reach it by.
pub const POD_GUEST_NETWORK_READY: &str = "vmlet.dev/GuestNetworkReady";

/// Longest JSON, in bytes.
pub const LIMIT: usize = 12_288;
pub(crate) const INTERFACES: usize = 8;
pub(crate) const ADDRESSES: usize = 8;
const TEXT: usize = 128;
const MESSAGE: usize = 256;
/// Most values that a guest publishes, and the bytes that they may have together with their keys.
const VALUES: usize = 16;
const VALUES_BYTES: usize = 1024;
/// Most sentences about what the guest does not get, the bytes of one, and those of all together.
const SENTENCES: usize = 8;
const SENTENCE: usize = 256;
const SENTENCES_BYTES: usize = 1024;

/// What is known of a machine.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct GuestFacts {
    /// Observed power state.
    pub power: Power,
    /// Why it is paused, such as `PausedByUser` or `PausedIOError`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub pause_reason: String,
    /// More about that, for people, such as which disk is full.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub pause_message: String,
    /// Whether the guest agent answers.
    pub agent: AgentState,
    /// The container that this is about.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub container_id: String,
    /// UUID of the domain.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub domain_uuid: String,
    /// What the hypervisor made of the machine type, such as `pc-q35-7.2`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub machine_type: String,
    /// What boots the guest: `bios` or `uefi`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub firmware: String,
    /// When the machine was started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started: Option<Time>,
    /// Host name that the guest reports.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub host_name: String,
    /// The guest's system.
    #[serde(skip_serializing_if = "GuestOs::is_empty")]
    pub os: GuestOs,
    /// The guest's network, its own view first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<GuestInterface>,
    /// Values that the guest publishes, for readiness probes.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub info: BTreeMap<String, String>,
    /// What was asked for and the guest does not get, in sentences of its node; the first that fit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unsupported: Vec<String>,
    /// The readiness probe that the node makes, with its result; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe: Option<GuestProbe>,
}

/// Power state as the node sees it.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Power {
    /// Does not run.
    Off,
    /// Runs.
    On,
    /// The machine exists and its vCPUs are paused.
    Paused,
    /// Its memory is being written.
    Saving,
    /// Unknown, or a value of a newer version.
    #[default]
    #[serde(other)]
    Unknown,
}

/// State of the guest agent.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AgentState {
    /// It answers.
    Connected,
    /// It does not.
    NotRunning,
    /// Unknown so far, or a value of a newer version.
    #[default]
    #[serde(other)]
    NoInfo,
}

/// The guest's operating system as its agent reports it.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct GuestOs {
    /// Such as `debian`.
    pub id: String,
    /// Such as `Debian GNU/Linux`.
    pub name: String,
    /// Such as `12`.
    pub version: String,
    /// Release of its kernel.
    pub kernel: String,
}

impl GuestOs {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// One interface of the guest.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct GuestInterface {
    /// As the guest calls it; empty when only a lease is known.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Its hardware address.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mac: String,
    /// `address/prefix length`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
    /// Source of the addresses.
    pub source: AddressSource,
}

/// Source of an address.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AddressSource {
    /// The agent in the guest.
    GuestAgent,
    /// The guest took a DHCP lease.
    DhcpLease,
    /// A value of a newer version.
    #[default]
    #[serde(other)]
    Unknown,
}

/// Not the annotation of an agent.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// More than [`LIMIT`] bytes.
    #[error("guest facts have {0} bytes, at most {LIMIT} are read")]
    TooLong(usize),
    /// Not the JSON that it should be.
    #[error("guest facts are not the JSON of an agent")]
    Json(#[source] serde_json::Error),
}

impl GuestFacts {
    /// Reads the annotation and bounds what it says.
    ///
    /// # Errors
    ///
    /// [`Error`] when the text is too long or no such JSON.
    pub fn from_json(text: &str) -> Result<Self, Error> {
        if text.len() > LIMIT {
            return Err(Error::TooLong(text.len()));
        }
        serde_json::from_str(text)
            .map(Self::bounded)
            .map_err(Error::Json)
    }

    /// The annotation's text; bound the facts first.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Strings, numbers and a time: nothing that JSON could refuse.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Leaves out what is too much, too long or no address.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        for field in [
            &mut self.pause_reason,
            &mut self.container_id,
            &mut self.domain_uuid,
            &mut self.machine_type,
            &mut self.firmware,
            &mut self.os.id,
            &mut self.os.name,
            &mut self.os.version,
            &mut self.os.kernel,
        ] {
            *field = printable(field, TEXT);
        }
        self.pause_message = printable(&self.pause_message, MESSAGE);
        self.host_name = host_name(&self.host_name);
        self.interfaces.truncate(INTERFACES);
        for interface in &mut self.interfaces {
            interface.name = printable(&interface.name, 32);
            interface.mac = printable(&interface.mac, 32);
            let addresses = std::mem::take(&mut interface.addresses);
            let addresses = addresses.iter().filter_map(|text| with_prefix(text));
            interface.addresses = addresses
                .map(|(ip, length)| format!("{ip}/{length}"))
                .take(ADDRESSES)
                .collect();
        }
        self.info = published(self.info);
        self.unsupported = sentences(&self.unsupported);
        self.probe = self.probe.map(GuestProbe::bounded);
        self
    }

    /// Addresses that others can reach the guest by: not unspecified, loopback, link-local or
    /// multicast.
    pub fn usable_addresses(&self) -> impl Iterator<Item = (&GuestInterface, IpAddr)> {
        self.interfaces.iter().flat_map(|interface| {
            let addresses = interface.addresses.iter();
            let addresses = addresses.filter_map(|text| with_prefix(text));
            addresses
                .map(|(ip, _)| ip)
                .filter(|ip| is_usable(*ip))
                .map(move |ip| (interface, ip))
        })
    }
}

/// The first values that fit; a key has the characters of a host name, a value is printable.
fn published(all: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut left = VALUES_BYTES;
    let fitting = all.into_iter().filter_map(|(key, value)| {
        let key = host_name(&key);
        let value = printable(&value, VALUES_BYTES);
        left = left.checked_sub(key.len() + value.len())?;
        (!key.is_empty()).then_some((key, value))
    });
    fitting.take(VALUES).collect()
}

/// The first sentences that fit, printable.
fn sentences(all: &[String]) -> Vec<String> {
    let mut left = SENTENCES_BYTES;
    let printable = all.iter().map(|sentence| printable(sentence, SENTENCE));
    let fitting = printable
        .filter(|sentence| !sentence.is_empty())
        .map_while(|sentence| {
            left = left.checked_sub(sentence.len())?;
            Some(sentence)
        });
    fitting.take(SENTENCES).collect()
}

/// Whether others can reach a machine by this address: not unspecified, loopback, link-local or
/// multicast.
#[must_use]
pub fn is_usable(ip: IpAddr) -> bool {
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !(link_local || ip.is_unspecified() || ip.is_loopback() || ip.is_multicast())
}

/// Address and prefix length; a bare address has the full prefix length. An IPv4-mapped IPv6
/// address counts as IPv4.
fn with_prefix(text: &str) -> Option<(IpAddr, u8)> {
    let (reported, length) = match text.split_once('/') {
        Some((ip, length)) => (ip, Some(length.parse::<u8>().ok()?)),
        None => (text, None),
    };
    let reported = reported.parse::<IpAddr>().ok()?;
    let ip = reported.to_canonical();
    let most = if ip.is_ipv4() { 32 } else { 128 };
    let length = match length {
        Some(length) if reported != ip => length.checked_sub(96)?,
        Some(length) => length,
        None => most,
    };
    (length <= most).then_some((ip, length))
}

#[cfg(test)]
mod tests;
