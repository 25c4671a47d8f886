//! The readiness probe that a client of the node API sets for a machine while it runs.
//!
//! Invariant: a machine has one probe at most; it is in the container's record, so that a restart of
//! the daemon loses none, and goes with the container.
//! Failure: [`Error::NotRunning`] when the machine does not run in that pod.

use std::net::IpAddr;
use std::num::NonZeroU16;

use podspec::{ContainerId, VmUid};
use serde::{Deserialize, Serialize};

use super::error::{Error, Result};
use super::service::Containers;
use crate::platform::Platform;

/// A TCP probe: ready if a connection is accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TcpProbe {
    /// Where to connect; none: to the machine's own address on `eth0`.
    pub host: Option<IpAddr>,
    /// To which port.
    pub port: NonZeroU16,
    /// Seconds between two attempts.
    pub period_seconds: u32,
    /// Seconds that one may take.
    pub timeout_seconds: u32,
}

impl<P: Platform> Containers<P> {
    /// Records the probe of the machine that runs in this pod; `None` ends it.
    pub async fn set_probe(&self, vm: VmUid, pod: &str, probe: Option<&TcpProbe>) -> Result<()> {
        let row = self.machine_of_pod(pod);
        let Some(row) = row.filter(|row| self.vm_of(row) == Some(vm)) else {
            return probe.map_or(Ok(()), |_| Err(Error::NotRunning(vm)));
        };
        if row.probe.as_ref() == probe {
            return Ok(());
        }
        self.record(&row, |row| row.probe = probe.cloned()).await
    }

    /// Where the probe of a machine connects, before anything is refused; none while the machine has
    /// no address.
    pub fn probe_target(&self, id: &ContainerId, probe: &TcpProbe) -> Option<IpAddr> {
        probe.host.or_else(|| {
            let row = self.parts.table.get(id)?;
            let own = self.sandbox_of(&row)?.own_addresses();
            own.iter().find(|ip| ip.is_ipv4()).or(own.first()).copied()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::Node;

    const VM: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1a";

    #[tokio::test]
    async fn a_probe_is_of_one_instance_and_outlives_a_restart_of_the_daemon() {
        let vm: VmUid = VM.parse().unwrap();
        let node = Node::new().await;
        node.make_disk(vm).await;
        let sandbox = node.annotated("pod", &[("vm-disk", VM)]).await;
        let id = node.containers.create(&sandbox, node.machine(0)).await;
        let id = id.unwrap();
        let probe = TcpProbe {
            host: None,
            port: NonZeroU16::MIN,
            period_seconds: 10,
            timeout_seconds: 1,
        };
        let early = node.containers.set_probe(vm, "uid of pod", Some(&probe));
        let early = early.await.unwrap_err();
        assert!(matches!(early, Error::NotRunning(_)), "{early}");
        node.containers.start(&id).await.unwrap();
        let other = node.containers.set_probe(vm, "another", Some(&probe)).await;
        assert!(matches!(other, Err(Error::NotRunning(_))), "{other:?}");
        let none = node.containers.set_probe(vm, "another", None);
        none.await.unwrap();
        let set = node.containers.set_probe(vm, "uid of pod", Some(&probe));
        set.await.unwrap();
        let node = node.restarted().await;
        assert_eq!(node.row(&id).probe, Some(probe));
        let ended = node.containers.set_probe(vm, "uid of pod", None);
        ended.await.unwrap();
        assert_eq!(node.row(&id).probe, None);
    }
}
