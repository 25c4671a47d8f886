//! How the node reaches the guest of a sandbox, for connections that the daemon makes for a tenant.
//!
//! Invariant: only addresses of the pod's own link that the result of the plugins names, and only
//! those for which the node's route leads to the pod.
//! Failure: without a namespace the sandbox has no network; the kernel's error otherwise.

use netns::NodeRoute;
use tapmanager::wire::{Network, PodRoute};

use super::{Live, Sandboxes};
use crate::failure::Failure;
use crate::network::LINK;

impl Sandboxes {
    /// The addresses of the guest that the node reaches, in the order of the result of the plugins.
    ///
    /// # Errors
    /// When the sandbox is not up, or the kernel does not answer.
    pub(crate) async fn routes(&self, id: &str) -> Result<Vec<PodRoute>, Failure> {
        let slot = self.lock(id).await?;
        super::up(&slot, id)?;
        let Some(Live {
            entry,
            ns: Some(ns),
            ..
        }) = slot.as_ref()
        else {
            return Err(Failure::NotFound(id.to_owned()));
        };
        let addresses = entry.network.as_ref().map(Network::own_addresses);
        let addresses = addresses.unwrap_or_default();
        let ns = ns.clone();
        drop(slot);
        let routes = netns::node_routes(&self.node_ns, &ns, LINK, &addresses).await?;
        let reached = addresses.into_iter().zip(routes);
        let reached = reached.filter_map(|(address, route)| match route {
            NodeRoute::Own(link) => Some(PodRoute {
                address,
                link: Some(link),
            }),
            NodeRoute::Switch => Some(PodRoute {
                address,
                link: None,
            }),
            NodeRoute::Elsewhere => None,
        });
        Ok(reached.collect())
    }
}
