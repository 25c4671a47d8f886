//! The errors of [`crate::Hypervisor`], and the conversion of libvirt's errors to them.
//!
//! Invariant: an error on a dead connection is always [`Error::Unavailable`], whatever its code;
//! texts that may come from a guest are bounded and free of control characters.
//! Failure: none; a code without a meaning of its own is [`Error::Refused`].

use std::time::Duration;

use uuid::Uuid;
use virt::error::{Error as VirtError, ErrorNumber};

/// Longest reason that is passed on, in characters.
const MAX_REASON: usize = 1024;

/// A call that failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// There is no connection; nothing was done.
    #[error("libvirt is not reachable: {reason}")]
    Unavailable {
        /// libvirt's own message.
        reason: String,
    },
    /// The call did not end in time; its outcome is unknown.
    #[error("libvirt did not answer {call} within {} s", deadline.as_secs())]
    Deadline {
        /// The operation.
        call: &'static str,
        /// The time it was given.
        deadline: Duration,
    },
    /// The call did not get its turn in time; nothing was done.
    #[error(
        "libvirt is busy: {call} got no turn within {} s, because earlier calls have not ended",
        wait.as_secs()
    )]
    Busy {
        /// The operation.
        call: &'static str,
        /// How long it waited.
        wait: Duration,
    },
    /// Another request had the domain for too long; what this one has done of its work is unknown.
    #[error("libvirt did not get to {call}, because another request has the machine: {reason}")]
    Locked {
        /// The operation.
        call: &'static str,
        /// libvirt's own message.
        reason: String,
    },
    /// The domain does not exist.
    #[error("libvirt knows no domain {0}")]
    NoDomain(Uuid),
    /// There is a guest agent, but it does not answer now.
    #[error("the QEMU guest agent does not answer: {reason}")]
    Agent {
        /// libvirt's own message.
        reason: String,
    },
    /// No guest agent is connected: it is not installed, not started, or not started yet.
    #[error("no QEMU guest agent is connected: {reason}")]
    NoAgent {
        /// libvirt's own message.
        reason: String,
    },
    /// The guest agent was set up not to carry out this command, or is too old to know it.
    #[error("the QEMU guest agent does not allow this command: {reason}")]
    AgentForbids {
        /// The agent's own message.
        reason: String,
    },
    /// libvirt refused.
    #[error("libvirt refused {call}: {reason}")]
    Refused {
        /// The operation.
        call: &'static str,
        /// libvirt's own message.
        reason: String,
    },
}

impl Error {
    /// Whether the same call may succeed once libvirt is back, or has ended other requests.
    pub const fn is_unavailable(&self) -> bool {
        matches!(
            self,
            Self::Unavailable { .. }
                | Self::Deadline { .. }
                | Self::Busy { .. }
                | Self::Locked { .. }
        )
    }

    /// The kind of failure in a word or two, for metrics.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Unavailable { .. } => "unavailable",
            Self::Deadline { .. } => "deadline",
            Self::Busy { .. } => "busy",
            Self::Locked { .. } => "locked",
            Self::NoDomain(_) => "no_domain",
            Self::Agent { .. } => "agent_silent",
            Self::NoAgent { .. } => "no_agent",
            Self::AgentForbids { .. } => "agent_forbids",
            Self::Refused { .. } => "refused",
        }
    }
}

/// Outcome of a call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What a call was about, for its errors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Context {
    /// The operation.
    pub(crate) call: &'static str,
    /// Its domain, if it has one.
    pub(crate) domain: Option<Uuid>,
}

/// Sorts an error of a call on a connection that was `alive` just after it.
pub(crate) fn sort(error: &VirtError, context: Context, alive: bool) -> Error {
    let reason = readable(error.message());
    if !alive {
        return Error::Unavailable { reason };
    }
    sort_known(error.code().known(), reason, context)
}

/// Sorts an error of a connection that is alive by its code.
fn sort_known(code: Option<ErrorNumber>, reason: String, context: Context) -> Error {
    let call = context.call;
    match (code, context.domain) {
        (Some(ErrorNumber::NoDomain), Some(domain)) => Error::NoDomain(domain),
        (Some(ErrorNumber::NoConnect | ErrorNumber::InvalidConn), _) => {
            Error::Unavailable { reason }
        }
        // The request of another client, or one that was given up, has its lock.
        (Some(ErrorNumber::OperationTimeout), Some(_)) => Error::Locked { call, reason },
        (Some(code), _) if is_silence(code) => silence(reason),
        (Some(ErrorNumber::InternalError), _) if forbids(&reason) => Error::AgentForbids { reason },
        _ => Error::Refused { call, reason },
    }
}

/// Whether the guest agent is what did not answer.
const fn is_silence(code: ErrorNumber) -> bool {
    matches!(
        code,
        ErrorNumber::AgentUnresponsive
            | ErrorNumber::AgentUnsynced
            | ErrorNumber::AgentCommandTimeout
    )
}

/// An agent that is connected and unresponsive, or none at all: libvirt has one code for both.
fn silence(reason: String) -> Error {
    let absent = ["is not connected", "not available due to an error"];
    if absent.iter().any(|words| reason.contains(words)) {
        Error::NoAgent { reason }
    } else {
        Error::Agent { reason }
    }
}

/// Whether the agent answered that it does not carry out such commands.
fn forbids(reason: &str) -> bool {
    const AGENT: &str = "unable to execute QEMU agent command";
    let refusals = ["has been disabled", "has not been found", "not allowed"];
    reason.contains(AGENT) && refusals.iter().any(|words| reason.contains(words))
}

/// A bounded single line of text.
pub(crate) fn readable(text: &str) -> String {
    text.trim()
        .chars()
        .take(MAX_REASON)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_waited_for_another_one_may_succeed_later() {
        let sorted = |code| {
            let reason = "cannot acquire state change lock (held by monitor=another)".to_owned();
            let context = Context {
                call: "save memory and switch disk",
                domain: Some(Uuid::nil()),
            };
            sort_known(Some(code), reason, context)
        };
        let locked = sorted(ErrorNumber::OperationTimeout);
        assert!(
            locked.is_unavailable() && locked.to_string().contains("held by"),
            "{locked}"
        );
        assert_eq!(locked.kind(), "locked");
        let failed = sorted(ErrorNumber::OperationFailed);
        assert!(!failed.is_unavailable(), "{failed}");
    }

    #[test]
    fn absent_unresponsive_and_refusing_agents_are_distinguished() {
        let absent = "Guest agent is not responding: QEMU guest agent is not connected";
        assert!(matches!(silence(absent.to_owned()), Error::NoAgent { .. }));
        let mute = "Guest agent is not responding: Guest agent not available for now";
        assert!(matches!(silence(mute.to_owned()), Error::Agent { .. }));
        let disabled = "internal error: unable to execute QEMU agent command 'guest-exec': \
                        The command guest-exec has been disabled for this instance";
        assert!(forbids(disabled));
        assert!(!forbids("internal error: the feature has been disabled"));
    }

    #[test]
    fn a_reason_from_a_guest_is_bounded_and_prints_on_one_line() {
        let hostile = format!("\u{1b}[31mred\nline{}", "x".repeat(100_000));
        let reason = readable(&hostile);
        assert_eq!(reason.chars().count(), MAX_REASON);
        assert!(reason.starts_with(" [31mred line"), "{reason:.20}");
    }
}
