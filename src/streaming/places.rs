//! The places of sessions.
//!
//! Invariant: the sessions of one pod are a part of those that its namespace may have, and these are
//! a part of those of the node: a user who may connect to some pods leaves room for other pods, and for
//! other namespaces. A place belongs to a session, not to a connection without one.
//! Failure: [`Full`]; the client gets it as the answer to its request.

use fair::{Bounds, Owner, Place, Places};
use http::StatusCode;
use streamapi::Refusal;

/// Sessions of one pod.
pub(super) const OF_POD: usize = 128;
/// Sessions of the pods of one namespace.
pub(super) const OF_NAMESPACE: usize = 384;
/// Sessions of the node.
const OF_NODE: usize = 1024;

/// The pod that a session is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// Its namespace.
    pub namespace: Owner,
    /// The id of its sandbox.
    pub sandbox: Owner,
}

/// The places of the node.
#[derive(Debug)]
pub(super) struct SessionPlaces {
    pods: Places,
    namespaces: Places,
}

/// The place of one session.
#[derive(Debug)]
pub(super) struct SessionPlace {
    _pod: Place,
    _namespace: Place,
}

/// Why a session has no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Full {
    /// Its pod has had its share.
    Pod,
    /// Its namespace has had its share, or no place of the node is free.
    Namespace,
}

impl Default for SessionPlaces {
    fn default() -> Self {
        Self {
            // Their sum is bounded by that of the namespaces.
            pods: Places::new(Bounds {
                all: usize::MAX,
                per_owner: OF_POD,
            }),
            namespaces: Places::new(Bounds {
                all: OF_NODE,
                per_owner: OF_NAMESPACE,
            }),
        }
    }
}

impl SessionPlaces {
    /// A place for a session of this pod.
    pub(super) fn take(&self, pod: &Pod) -> Result<SessionPlace, Full> {
        let namespace = self.namespaces.try_take(&pod.namespace);
        Ok(SessionPlace {
            _pod: self.pods.try_take(&pod.sandbox).ok_or(Full::Pod)?,
            _namespace: namespace.ok_or(Full::Namespace)?,
        })
    }
}

impl Full {
    /// The answer to a client.
    pub(super) const fn refusal(self) -> Refusal {
        let message = match self {
            Self::Pod => {
                "the pod has 128 sessions of exec, attach and port-forward, which is the most: end \
                 some of them"
            }
            Self::Namespace => {
                "the node has no place for another session of exec, attach or port-forward to a \
                 pod of this namespace: end some of those to its pods"
            }
        };
        Refusal {
            status: StatusCode::TOO_MANY_REQUESTS,
            message,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(namespace: &str, sandbox: usize) -> Pod {
        Pod {
            namespace: namespace.into(),
            sandbox: format!("{namespace}-{sandbox}").into(),
        }
    }

    #[test]
    fn a_pod_and_a_namespace_with_many_sessions_leave_places_to_others() {
        let places = SessionPlaces::default();
        let mut held = Vec::new();
        let mut fill = |namespace: &str, sandbox| {
            let pod = pod(namespace, sandbox);
            loop {
                match places.take(&pod) {
                    Ok(place) => held.push(place),
                    Err(full) => return full,
                }
            }
        };
        assert_eq!(fill("a", 1), Full::Pod);
        assert_eq!(fill("a", 2), Full::Pod);
        assert_eq!(fill("a", 3), Full::Pod);
        // Three pods are the share of the namespace.
        assert_eq!(fill("a", 4), Full::Namespace);
        assert_eq!(fill("b", 1), Full::Pod);
        assert_eq!(held.len(), OF_NAMESPACE + OF_POD);
        let other = places.take(&pod("c", 1));
        assert!(other.is_ok());
        held.clear();
        drop(other);
        assert_eq!(places.namespaces.free(), OF_NODE);
    }

    #[test]
    fn the_answer_names_the_bound() {
        assert!(Full::Pod.refusal().message.contains(&OF_POD.to_string()));
    }
}
