//! The seam to whoever owns pod networks.
//!
//! Invariant: `add` and `del` may be repeated; after `del` nothing of the sandbox's network is left.
//! Failure: the client's error tells whether the owner could not be reached or refused.

use std::future::Future;

use podspec::{Annotations, Connection, Key, SandboxId};
use tapmanager::client::{Client, Error};
use tapmanager::wire::{
    AddRequest, Bandwidth, Dns, ErrorCode, KnownNic, Network, PortMapping, SandboxCounters,
    StartRequest, Status,
};

use super::model::{DnsConfig, Protocol, Sandbox};

/// Least and largest burst in bits: packets of several segments must fit, and plugins must accept it.
const BURST: std::ops::RangeInclusive<u64> = (256 * 1024 * 8)..=(i32::MAX as u64);

/// Makes and removes the networks of sandboxes.
pub trait PodNetwork: Send + Sync + 'static {
    /// Makes the network of a sandbox, or returns the one that exists.
    fn add(&self, request: AddRequest) -> impl Future<Output = Result<Network, Error>> + Send;
    /// The network of a sandbox, if it has one.
    fn get(&self, id: &SandboxId) -> impl Future<Output = Result<Option<Network>, Error>> + Send;
    /// Takes a network down; success when there is none.
    fn del(&self, id: &SandboxId) -> impl Future<Output = Result<(), Error>> + Send;
    /// Ids of everything that has a network or a part of one.
    fn list(&self) -> impl Future<Output = Result<Vec<String>, Error>> + Send;
    /// Takes down every network but those of the ids named; returns the ids whose network went.
    fn gc(&self, keep: Vec<String>) -> impl Future<Output = Result<Vec<String>, Error>> + Send;
    /// Traffic of all guests; what is being worked on is left out.
    fn counters(&self) -> impl Future<Output = Result<Vec<SandboxCounters>, Error>> + Send;
    /// Whether networks can be made.
    fn status(&self) -> impl Future<Output = Result<Status, Error>> + Send;
    /// A token with which one emulator may fetch its descriptors.
    fn prepare_start(
        &self,
        request: StartRequest,
    ) -> impl Future<Output = Result<String, Error>> + Send;
}

impl PodNetwork for Client {
    async fn add(&self, request: AddRequest) -> Result<Network, Error> {
        Self::add(self, request).await
    }

    async fn get(&self, id: &SandboxId) -> Result<Option<Network>, Error> {
        match Self::get(self, id.as_str()).await {
            Ok(network) => Ok(Some(network)),
            Err(Error::Refused(e)) if e.code == ErrorCode::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    async fn del(&self, id: &SandboxId) -> Result<(), Error> {
        Self::del(self, id.as_str()).await
    }

    async fn list(&self) -> Result<Vec<String>, Error> {
        Self::list(self).await
    }

    async fn gc(&self, keep: Vec<String>) -> Result<Vec<String>, Error> {
        Self::gc(self, keep).await
    }

    async fn counters(&self) -> Result<Vec<SandboxCounters>, Error> {
        Self::counters(self).await
    }

    async fn status(&self) -> Result<Status, Error> {
        Self::status(self).await
    }

    async fn prepare_start(&self, request: StartRequest) -> Result<String, Error> {
        Self::prepare_start(self, request).await
    }
}

/// What the owner of networks needs to know about a sandbox. A guest that goes on from saved memory has the NICs that it
/// had then, or none, whatever its pod says now.
///
/// # Errors
/// An annotation that makes no sense.
pub(super) fn add_request(
    sandbox: &Sandbox,
    known_nics: Option<Vec<KnownNic>>,
) -> Result<AddRequest, super::Error> {
    let config = &sandbox.config;
    let annotations = Annotations::new(&config.annotations);
    let allow_spoofing = annotations
        .get(Key::AllowSpoofing)
        .map_err(super::Error::Annotation)?;
    let wanted = Connection::from_pod(&config.annotations).map_err(super::Error::Annotation)?;
    let detached = match &known_nics {
        Some(known) => known.is_empty(),
        None => wanted == Connection::None,
    };
    let mac = match (&known_nics, wanted) {
        (None, Connection::Pod(Some(mac))) => mac.to_string(),
        _ => String::new(),
    };
    let mapping = |p: &super::model::PortMapping| PortMapping {
        host_port: p.host_port,
        container_port: p.container_port,
        protocol: protocol(p.protocol).to_owned(),
        host_ip: p.host_ip.clone(),
    };
    Ok(AddRequest {
        id: sandbox.id.to_string(),
        pod_name: config.metadata.name.clone(),
        pod_namespace: config.metadata.namespace.clone(),
        pod_uid: config.metadata.uid.clone(),
        hostname: config.hostname.clone(),
        dns: config.dns.clone().map(dns).unwrap_or_default(),
        // A port without a host port needs no mapping: the pod's own address serves it.
        port_mappings: config
            .port_mappings
            .iter()
            .filter(|p| p.host_port > 0)
            .map(mapping)
            .collect(),
        bandwidth: bandwidth(|name| config.annotations.get(name).map(String::as_str))
            .map_err(super::Error::Bandwidth)?,
        allow_spoofing: allow_spoofing.unwrap_or(false),
        detached,
        mac,
        known_nics: known_nics.unwrap_or_default(),
    })
}

/// Kubernetes' bandwidth annotations, in bits per second.
fn bandwidth<'a>(
    annotation: impl Fn(&str) -> Option<&'a str>,
) -> Result<Option<Bandwidth>, podspec::QuantityError> {
    let rate = |name| annotation(name).map(podspec::parse_quantity).transpose();
    let ingress = rate("kubernetes.io/ingress-bandwidth")?;
    let egress = rate("kubernetes.io/egress-bandwidth")?;
    // A tenth of a second's worth. With no limit, as containers have it, a rate of some megabits would
    // count from the second minute on, and the kernel's field for it overflows.
    let burst =
        |rate: Option<u64>| rate.map_or(0, |rate| (rate / 10).clamp(*BURST.start(), *BURST.end()));
    Ok((ingress.is_some() || egress.is_some()).then(|| Bandwidth {
        ingress_rate: ingress.unwrap_or(0),
        ingress_burst: burst(ingress),
        egress_rate: egress.unwrap_or(0),
        egress_burst: burst(egress),
    }))
}

const fn protocol(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Sctp => "sctp",
    }
}

fn dns(config: DnsConfig) -> Dns {
    Dns {
        servers: config.servers,
        searches: config.searches,
        options: config.options,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidth_annotations_become_rates_with_the_burst_of_a_tenth_of_a_second() {
        for (rate, bits, burst) in [
            ("10M", 10_000_000, 2_097_152),
            ("1G", 1_000_000_000, 100_000_000),
            ("100G", 100_000_000_000, 2_147_483_647),
        ] {
            let given = |name: &str| (name == "kubernetes.io/ingress-bandwidth").then_some(rate);
            let limits = bandwidth(given).unwrap().unwrap();
            assert_eq!((limits.ingress_rate, limits.ingress_burst), (bits, burst));
        }
        let given = |name: &str| (name == "kubernetes.io/ingress-bandwidth").then_some("10M");
        let limits = bandwidth(given).unwrap().unwrap();
        assert_eq!((limits.egress_rate, limits.egress_burst), (0, 0));
        assert_eq!(bandwidth(|_| None), Ok(None));
        assert!(bandwidth(|_| Some("fast")).is_err());
    }
}
