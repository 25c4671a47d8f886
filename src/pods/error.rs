//! The errors of requests about a sandbox.
//!
//! Invariant: the variant names the step; the cause is the source.
//! Failure: see the variants.

use podspec::SandboxId;

use crate::metadata;
use crate::sandbox::state::Phase;
use crate::tasks::Aborted;

/// A request about a sandbox that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The same pod attempt has a sandbox already, and it is not the one requested.
    #[error("pod {pod} has a sandbox already: {id}, {phase}; remove it first")]
    Exists {
        /// Namespace, name and attempt, for people.
        pod: String,
        /// The sandbox.
        id: SandboxId,
        /// Where it is in its life.
        phase: Phase,
    },
    /// An annotation makes no sense.
    #[error("annotation kubernetes.io/ingress-bandwidth or egress-bandwidth")]
    Bandwidth(#[source] podspec::QuantityError),
    /// Another annotation about the network makes no sense.
    #[error("network of the pod")]
    Annotation(#[source] podspec::AnnotationError),
    /// The sandbox is in a phase that does not allow this.
    #[error("sandbox {id} is {phase}: it cannot be {verb}")]
    Phase {
        /// The sandbox.
        id: SandboxId,
        /// Where it is in its life.
        phase: Phase,
        /// What was to be done with it.
        verb: &'static str,
    },
    /// The network could not be made or taken down.
    #[error("{step} of sandbox {id}")]
    Network {
        /// `set up the network` or `take down the network`.
        step: &'static str,
        /// The sandbox.
        id: SandboxId,
        /// The owner's reason.
        #[source]
        source: tapmanager::client::Error,
    },
    /// The tapmanager does not say what there is.
    #[error("ask for all networks")]
    Networks(#[source] tapmanager::client::Error),
    /// The machine in the sandbox could not be stopped or removed.
    #[error("{step} the virtual machine of sandbox {id}")]
    Guests {
        /// `stop` or `remove`.
        step: &'static str,
        /// The sandbox.
        id: SandboxId,
        /// The reason.
        #[source]
        source: Box<crate::vm::Error>,
    },
    /// A record cannot be read.
    #[error(transparent)]
    Unreadable(#[from] metadata::Unreadable),
    /// The row changed under the request or the database failed.
    #[error(transparent)]
    Table(#[from] metadata::TableError),
    /// The database failed.
    #[error(transparent)]
    Db(#[from] metadata::Error),
    /// The work ended early.
    #[error(transparent)]
    Aborted(#[from] Aborted),
}

/// Outcome of a request about a sandbox.
pub type Result<T, E = Error> = std::result::Result<T, E>;
