//! Requests for connections to ports of a guest.
//!
//! Invariant: the daemon connects in the node's network, so only to addresses that cannot be
//! another's: those of `eth0` that the CNI result names, and none that the node has itself or that
//! means a service of the node. Addresses of further NICs may be the choice of the pod's author.
//! Failure: statuses that name the sandbox.

use cri_proto::v1;
use tonic::Status;

use super::Runtime;
use crate::images;
use crate::sandbox::state::Phase;
use crate::streaming::{PortForwardTarget, Target};

impl Runtime {
    pub(super) async fn port_forward(
        &self,
        request: v1::PortForwardRequest,
    ) -> Result<v1::PortForwardResponse, Status> {
        let sandbox = self.sandbox(&request.pod_sandbox_id)?;
        let refused = |why: &str| {
            let id = &sandbox.id;
            Status::failed_precondition(format!("sandbox {id}: {why}"))
        };
        if sandbox.phase != Phase::Ready {
            return Err(refused("it is not ready and has no network"));
        }
        let own = sandbox.own_addresses();
        if own.is_empty() {
            return Err(refused(
                "its guest has no address on eth0 that the result of the CNI plugins names",
            ));
        }
        let checked = tokio::task::spawn_blocking(move || images::foreign_only(own));
        let addresses = checked.await.unwrap_or_default();
        if addresses.is_empty() {
            return Err(refused(
                "its addresses belong to the node or to services of it: connections are not \
                 forwarded there",
            ));
        }
        let ports = ports(&request.port)?;
        let url = self.url(Target::PortForward(PortForwardTarget { addresses, ports }))?;
        Ok(v1::PortForwardResponse { url })
    }
}

/// The ports of a request; clients over SPDY name theirs later.
fn ports(numbers: &[i32]) -> Result<Vec<u16>, Status> {
    let port = |number: &i32| u16::try_from(*number).ok().filter(|port| *port > 0);
    let ports = numbers.iter().map(|number| {
        port(number).ok_or_else(|| Status::invalid_argument(format!("port: {number} is no port")))
    });
    ports.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ports_are_ports() {
        assert_eq!(ports(&[1, 65_535]).unwrap(), [1, 65_535]);
        for odd in [0, -1, 65_536] {
            assert!(ports(&[odd]).is_err(), "{odd}");
        }
    }
}
