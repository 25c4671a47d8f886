//! Requests of a sandbox to the tapmanager.
//!
//! Invariant: limits of bandwidth are within what plugins and the kernel take.
//! Failure: [`Error::Bandwidth`] and [`Error::Annotation`] name what makes no sense.

use podspec::{Annotations, Connection, Key};
use tapmanager::wire::{AddRequest, Bandwidth, Dns, KnownNic, PortMapping};

use super::error::Error;
use crate::sandbox::{self, DnsConfig, Protocol, Sandbox};

/// Least and largest burst in bits: packets of several segments must fit, and plugins must accept
/// it.
const BURST: std::ops::RangeInclusive<u64> = (256 * 1024 * 8)..=(i32::MAX as u64);

/// What the tapmanager needs to know about a sandbox. A guest that continues from saved memory has
/// the NICs that it had then, or none, whatever its pod reports now.
///
/// # Errors
/// An annotation that makes no sense.
pub(super) fn add_request(
    sandbox: &Sandbox,
    known_nics: Option<Vec<KnownNic>>,
) -> Result<AddRequest, Error> {
    let config = &sandbox.config;
    let annotations = Annotations::new(&config.annotations);
    let allow_spoofing = annotations
        .get(Key::AllowSpoofing)
        .map_err(Error::Annotation)?;
    let wanted = Connection::from_pod(&config.annotations).map_err(Error::Annotation)?;
    let detached = match &known_nics {
        Some(known) => known.is_empty(),
        None => wanted == Connection::None,
    };
    let mac = match (&known_nics, wanted) {
        (None, Connection::Pod(Some(mac))) => mac.to_string(),
        _ => String::new(),
    };
    let mapping = |p: &sandbox::PortMapping| PortMapping {
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
            .map_err(Error::Bandwidth)?,
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
    // A tenth of a second's worth. With no limit, as containers have it, a rate of some megabits
    // would count from the second minute on, and the kernel's field for it overflows.
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
