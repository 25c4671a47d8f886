//! Requests for connections to ports of a guest.
//!
//! Invariant: the daemon connects in the node's network, so only to addresses that cannot be
//! another's: those of `eth0` that the CNI result names, whose route on the node leads to the pod, and
//! none that the node has itself or that means a service of the node. Addresses may be the choice of
//! the pod's author.
//! Failure: statuses that name the sandbox.

use std::net::IpAddr;

use cri_proto::v1;
use tapmanager::wire::PodRoute;
use tonic::Status;

use super::Pods;
use crate::images;
use crate::platform::Platform;
use crate::sandbox::state::Phase;
use crate::streaming::{Pod, PortForwardTarget, Target};

impl<P: Platform> Pods<P> {
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
        let foreign = checked.await.unwrap_or_default();
        if foreign.is_empty() {
            return Err(refused(
                "its addresses belong to the node or to services of it: connections are not \
                 forwarded there",
            ));
        }
        let routes = self.containers.routes(&sandbox.id).await?;
        let addresses = reached(foreign, routes);
        if addresses.is_empty() {
            return Err(refused(
                "the routes of the node for its addresses do not lead to the pod: connections are not \
                 forwarded elsewhere",
            ));
        }
        let ports = ports(&request.port)?;
        let pod = Pod {
            namespace: sandbox.config.metadata.namespace.as_str().into(),
            sandbox: sandbox.id.as_str().into(),
        };
        let target = Target::PortForward(PortForwardTarget { addresses, ports });
        let url = self.url(pod, target)?;
        Ok(v1::PortForwardResponse { url })
    }
}

/// Those of the addresses that lead to the pod; all, where that is not known.
fn reached(addresses: Vec<IpAddr>, routes: Option<Vec<PodRoute>>) -> Vec<PodRoute> {
    let unknown = |address| PodRoute {
        address,
        link: None,
    };
    let Some(routes) = routes else {
        return addresses.into_iter().map(unknown).collect();
    };
    let is_checked = |route: &PodRoute| addresses.contains(&route.address);
    routes.into_iter().filter(is_checked).collect()
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
    fn an_address_whose_route_leads_elsewhere_is_not_reached() {
        let [pod, node]: [IpAddr; 2] = ["10.1.0.5", "10.0.0.2"].map(|text| text.parse().unwrap());
        let own = PodRoute {
            address: pod,
            link: Some("cni0".to_owned()),
        };
        // Not among the addresses that were checked.
        let special = PodRoute {
            address: "169.254.169.254".parse().unwrap(),
            link: Some("cni0".to_owned()),
        };
        let routes = Some(vec![special, own.clone()]);
        assert_eq!(reached(vec![node, pod], routes), [own]);
        assert!(reached(vec![node], Some(Vec::new())).is_empty());
        let unknown = PodRoute {
            address: pod,
            link: None,
        };
        assert_eq!(reached(vec![pod], None), [unknown]);
    }

    #[test]
    fn only_ports_are_ports() {
        assert_eq!(ports(&[1, 65_535]).unwrap(), [1, 65_535]);
        for odd in [0, -1, 65_536] {
            assert!(ports(&[odd]).is_err(), "{odd}");
        }
    }
}
