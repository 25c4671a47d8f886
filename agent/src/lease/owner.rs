//! Makes the Node the owner of its lease, as kubelet does with its own lease.
//!
//! Invariant: a lease is never written for a Node that does not exist; for a lease that was made again the
//! Node is read again, because Nodes of one name come and go, and with each its lease.
//! Failure: a Node that may not be read owns nothing, and its lease is written without an owner.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Api, Client, ResourceExt};
use service::telemetry::one_line;

/// What is known of the owner.
#[derive(Debug, Default)]
pub(crate) struct Owner {
    known: Option<OwnerReference>,
    /// UID of the lease that was written last.
    lease: Option<String>,
}

impl Owner {
    /// The reference for the next renewal; an error when there is no such Node.
    pub(super) async fn find(
        &mut self,
        client: &Client,
        node: &str,
    ) -> Result<Option<OwnerReference>, String> {
        if self.known.is_none() {
            let nodes: Api<Node> = Api::all(client.clone());
            self.known = match nodes.get_metadata_opt(node).await {
                Ok(Some(found)) => found.uid().map(|uid| reference(node, uid)),
                Ok(None) => return Err(format!("there is no Node {node}")),
                Err(error) => {
                    tracing::debug!(error = one_line(&error), "node not read");
                    None
                }
            };
        }
        Ok(self.known.clone())
    }

    /// Takes note of the lease that is there now.
    pub(super) fn wrote(&mut self, lease: &Lease) {
        let uid = lease.uid();
        if self.lease.is_some() && self.lease != uid {
            self.known = None;
        }
        self.lease = uid;
    }
}

/// Neither a controller nor in the way of the Node's deletion.
fn reference(node: &str, uid: String) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.to_owned(),
        uid,
        ..OwnerReference::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_is_read_again_after_the_lease_was_recreated() {
        let lease = |uid: &str| {
            let mut lease = Lease::default();
            lease.metadata.uid = Some(uid.to_owned());
            lease
        };
        let mut owner = Owner {
            known: Some(reference("n", "1".to_owned())),
            lease: None,
        };
        owner.wrote(&lease("a"));
        owner.wrote(&lease("a"));
        assert!(owner.known.is_some());
        owner.wrote(&lease("b"));
        assert!(owner.known.is_none());
    }
}
