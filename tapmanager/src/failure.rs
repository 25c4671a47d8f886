//! Why a request failed, and the error that the peer gets.
//!
//! Invariant: every failure maps to one [`ErrorCode`] here and nowhere else; the message holds the
//! whole chain of causes, and so the plugin's own message.
//! Failure: messages are cut as all that is said on one line.

use netns::bridge_setup;
use service::telemetry;
use tapmanager::wire::{ErrorCode, WireError};

use crate::{journal, network};

/// A request that was not carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{0}")]
    Invalid(String),
    #[error("the node cannot carry guests: {0}")]
    NotReady(String),
    #[error("sandbox {0} has no network")]
    NotFound(String),
    #[error("the token is unknown, used or expired")]
    Token,
    #[error("network configuration")]
    NoNetwork(#[source] cni::Error),
    #[error("attach the pod")]
    Attach(#[source] cni::Error),
    #[error("detach the pod")]
    Detach(#[source] cni::Error),
    #[error("list or collect attachments")]
    Attachments(#[source] cni::Error),
    #[error("the collection of attachments did not get its turn, because networks are being made")]
    Crowded,
    #[error("namespace of the pod")]
    Namespace(#[source] netns::NamespaceError),
    #[error("links of the pod")]
    Links(#[source] bridge_setup::Error),
    #[error("network as the plugins left it")]
    Network(#[source] network::Error),
    #[error("DHCP server of the pod")]
    Dhcp(#[source] netns::dhcp::Error),
    #[error("IPv6 server of the pod")]
    Ipv6(#[source] netns::ipv6::Error),
    #[error("tap of the guest")]
    Tap(#[source] netns::TapError),
    #[error("cgroup of the pod")]
    Cgroup(#[source] cgroup::Error),
    #[error("cgroup of the pod: it did not take the process within {0} s")]
    CgroupStuck(u64),
    #[error("journal")]
    Journal(#[source] journal::Error),
    #[error("failed to make the socket of the start")]
    Socket(#[source] fdpass::Error),
    #[error("random bytes for a token")]
    Random(#[source] std::io::Error),
    #[error("work was interrupted")]
    Interrupted(#[source] tokio::task::JoinError),
    #[error("the network of the pod is not as it was made: {0}")]
    Changed(String),
}

impl From<journal::Error> for Failure {
    fn from(error: journal::Error) -> Self {
        Self::Journal(error)
    }
}

impl From<netns::NamespaceError> for Failure {
    fn from(error: netns::NamespaceError) -> Self {
        Self::Namespace(error)
    }
}

impl From<bridge_setup::Error> for Failure {
    fn from(error: bridge_setup::Error) -> Self {
        Self::Links(error)
    }
}

impl From<netns::netlink::Error> for Failure {
    fn from(error: netns::netlink::Error) -> Self {
        Self::Links(bridge_setup::Error::Netlink(error))
    }
}

impl Failure {
    /// What kind of failure it is.
    pub(crate) fn code(&self) -> ErrorCode {
        match self {
            Self::Invalid(_) | Self::Cgroup(cgroup::Error::Path(_)) => ErrorCode::Invalid,
            Self::NotFound(_) | Self::Token => ErrorCode::NotFound,
            Self::NotReady(_) => ErrorCode::NotReady,
            Self::CgroupStuck(_) => ErrorCode::Timeout,
            Self::NoNetwork(e) | Self::Attach(e) | Self::Detach(e) | Self::Attachments(e) => {
                match e.kind() {
                    cni::ErrorKind::Invalid => ErrorCode::Invalid,
                    cni::ErrorKind::NotFound => ErrorCode::NotFound,
                    cni::ErrorKind::NotReady => ErrorCode::NotReady,
                    cni::ErrorKind::Plugin => ErrorCode::Plugin,
                    cni::ErrorKind::Timeout => ErrorCode::Timeout,
                    cni::ErrorKind::System => ErrorCode::System,
                }
            }
            Self::Links(
                bridge_setup::Error::NoLink
                | bridge_setup::Error::TooManyLinks(_)
                | bridge_setup::Error::Unsupported { .. }
                | bridge_setup::Error::VirtualFunction { .. }
                | bridge_setup::Error::Name(_),
            )
            | Self::Network(_) => ErrorCode::Plugin,
            _ => ErrorCode::System,
        }
    }
}

impl From<&Failure> for WireError {
    fn from(failure: &Failure) -> Self {
        Self {
            code: failure.code(),
            message: telemetry::one_line(failure),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_holds_the_whole_chain_and_ends() {
        let path = "x".repeat(10_000);
        let failure = Failure::Cgroup(cgroup::Error::Path(path));
        let wire = WireError::from(&failure);
        assert_eq!(wire.code, ErrorCode::Invalid);
        assert!(
            wire.message.starts_with("cgroup of the pod: \"xxx"),
            "{}",
            wire.message
        );
        assert!(wire.message.len() < 5000 && wire.message.ends_with('…'));
    }

    #[test]
    fn links_that_cannot_serve_are_the_plugins_fault() {
        assert_eq!(
            Failure::Links(bridge_setup::Error::NoLink).code(),
            ErrorCode::Plugin
        );
        assert_eq!(Failure::Token.code(), ErrorCode::NotFound);
    }
}
