//! The errors of a chain of plugins.
//!
//! Invariant: every error belongs to exactly one [`ErrorKind`].
//! Failure: none of its own.

use crate::{AttachmentError, AttachmentId, CacheError, ConfigError, Failure, InvokeError};

/// A command that was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no usable network, or the one in the cache cannot be read.
    #[error("find the network")]
    Network(#[source] ConfigError),
    /// The attachment cannot be requested.
    #[error("attachment is not valid")]
    Attachment(#[source] AttachmentError),
    /// The link is attached already.
    #[error("link {} of container {} is attached to network {network} already", .id.ifname, .id.container_id)]
    Attached {
        /// Container and link.
        id: AttachmentId,
        /// Where it is attached.
        network: String,
    },
    /// The link is not attached, or its ADD has not ended.
    #[error("link {} of container {} is not attached", .id.ifname, .id.container_id)]
    NotAttached {
        /// Container and link.
        id: AttachmentId,
    },
    /// A plugin call failed.
    #[error(transparent)]
    Plugin(Box<InvokeError>),
    /// The cache could not be read or written.
    #[error("cache of attachments")]
    Cache(#[source] CacheError),
    /// The runtime is shutting down.
    #[error("work on the disk was interrupted")]
    Interrupted(#[source] tokio::task::JoinError),
}

/// What kind of failure an [`Error`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The caller requested something impossible.
    Invalid,
    /// The container is not attached.
    NotFound,
    /// There is no usable network, or a plugin of it is missing.
    NotReady,
    /// A plugin failed.
    Plugin,
    /// A plugin did not end within its deadline.
    Timeout,
    /// The system failed.
    System,
}

/// A result of this module.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(super) fn plugin(error: InvokeError) -> Self {
        Self::Plugin(Box::new(error))
    }

    /// Whether DEL has detached everything, and only its record could not be removed: the file
    /// system takes no writes. A repeated DEL calls the plugins once more and removes the record.
    #[must_use]
    pub const fn is_record_only(&self) -> bool {
        matches!(self, Self::Cache(CacheError::Remove { .. }))
    }

    /// What kind of failure it is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Network(_) => ErrorKind::NotReady,
            Self::Attachment(_) | Self::Attached { .. } => ErrorKind::Invalid,
            Self::NotAttached { .. } => ErrorKind::NotFound,
            Self::Plugin(error) => match error.failure {
                Failure::Missing { .. } => ErrorKind::NotReady,
                Failure::TimedOut { .. } => ErrorKind::Timeout,
                _ => ErrorKind::Plugin,
            },
            Self::Cache(_) | Self::Interrupted(_) => ErrorKind::System,
        }
    }
}
