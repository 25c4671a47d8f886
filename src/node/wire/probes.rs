//! Conversions of readiness probes and of their results.
//!
//! Invariant: a probe that comes out of a request has an address or none, a port, and times from a
//! second to an hour. A result has the probe as its request had it, with the address in its usual
//! spelling.
//! Failure: [`Invalid`] names the field.

use std::net::IpAddr;
use std::num::NonZeroU16;

use nodeapi::v1;
use nodeapi::v1::probe_state::Outcome as Wire;

use super::{Invalid, pod_uid};
use crate::node::probes::Outcome;
use crate::node::task::Work;
use crate::vm::TcpProbe;

/// Longest period and longest timeout, in seconds.
const LONGEST: u32 = 3600;

/// The work of a request to set a probe.
pub(super) fn set_probe(wanted: &v1::SetProbe) -> Result<Work, Invalid> {
    Ok(Work::SetProbe {
        pod: pod_uid("set_probe.pod_uid", &wanted.pod_uid)?,
        probe: wanted.probe.as_ref().map(tcp).transpose()?,
    })
}

fn tcp(wanted: &v1::TcpProbe) -> Result<TcpProbe, Invalid> {
    let invalid = |field, reason| Invalid { field, reason };
    let host: Option<IpAddr> = match wanted.host.as_str() {
        "" => None,
        text => Some(text.parse().map_err(|_| {
            let reason = "an IP address is needed: names are not resolved";
            invalid("set_probe.probe.host", reason)
        })?),
    };
    let port = u16::try_from(wanted.port).ok().and_then(NonZeroU16::new);
    let seconds = |field, seconds: u32| match seconds {
        1..=LONGEST => Ok(seconds),
        _ => Err(invalid(field, "1 to 3600 seconds are allowed")),
    };
    Ok(TcpProbe {
        host,
        port: port.ok_or_else(|| invalid("set_probe.probe.port", "1 to 65535 is allowed"))?,
        period_seconds: seconds("set_probe.probe.period_seconds", wanted.period_seconds)?,
        timeout_seconds: seconds("set_probe.probe.timeout_seconds", wanted.timeout_seconds)?,
    })
}

/// A probe with its last result.
pub(in crate::node) fn probe_state(probe: &TcpProbe, outcome: Option<Outcome>) -> v1::ProbeState {
    let host = probe.host.map(|host| host.to_string());
    let outcome = match outcome {
        None => Wire::Unknown,
        Some(Outcome::Connected) => Wire::Connected,
        Some(Outcome::Refused) => Wire::Refused,
        Some(Outcome::TimedOut) => Wire::TimedOut,
        Some(Outcome::NoAddress) => Wire::NoAddress,
        Some(Outcome::NotAllowed) => Wire::NotAllowed,
    };
    v1::ProbeState {
        probe: Some(v1::TcpProbe {
            host: host.unwrap_or_default(),
            port: probe.port.get().into(),
            period_seconds: probe.period_seconds,
            timeout_seconds: probe.timeout_seconds,
        }),
        outcome: outcome.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(host: &str, port: u32, period_seconds: u32, timeout_seconds: u32) -> v1::SetProbe {
        v1::SetProbe {
            pod_uid: "p-1".to_owned(),
            probe: Some(v1::TcpProbe {
                host: host.to_owned(),
                port,
                period_seconds,
                timeout_seconds,
            }),
        }
    }

    #[test]
    fn a_probe_that_cannot_be_made_names_its_field() {
        let no_pod = v1::SetProbe {
            pod_uid: String::new(),
            ..request("", 22, 10, 1)
        };
        for (request, field) in [
            (no_pod, "set_probe.pod_uid"),
            (request("web.example", 22, 10, 1), "set_probe.probe.host"),
            (request("10.0.0.1/8", 22, 10, 1), "set_probe.probe.host"),
            (request("", 0, 10, 1), "set_probe.probe.port"),
            (request("", 65_536, 10, 1), "set_probe.probe.port"),
            (request("", 22, 0, 1), "set_probe.probe.period_seconds"),
            (request("", 22, 10, 3601), "set_probe.probe.timeout_seconds"),
        ] {
            assert_eq!(set_probe(&request).unwrap_err().field, field);
        }
    }

    #[test]
    fn a_result_has_the_probe_of_its_request_in_the_usual_spelling() {
        let work = set_probe(&request("FD00::0:5", 22, 10, 1)).unwrap();
        let Work::SetProbe {
            probe: Some(probe), ..
        } = work
        else {
            panic!("{work:?}")
        };
        let state = probe_state(&probe, Some(Outcome::TimedOut));
        assert_eq!(state.probe, request("fd00::5", 22, 10, 1).probe);
        assert_eq!(state.outcome(), Wire::TimedOut);
        assert_eq!(probe_state(&probe, None).outcome(), Wire::Unknown);
        let ends = v1::SetProbe {
            probe: None,
            ..request("", 22, 10, 1)
        };
        let ends = set_probe(&ends).unwrap();
        assert!(matches!(ends, Work::SetProbe { probe: None, .. }));
    }
}
