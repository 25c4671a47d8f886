//! The agent of one domain, in its turn of commands.
//!
//! Invariant: an agent is known while its last command was answered; to one that is not known and whose port is
//! closed, nothing is sent.
//! Failure: libvirt's error; the inner error of an [`Answer`] is the reason why no agent can answer.

use std::time::Duration;

use uuid::Uuid;
use virt::connect::Connect;
use virt::domain::Domain;
use virt::error::{Error as VirtError, ErrorNumber};

use crate::error::readable;
use crate::ffi;
use crate::libvirt::calls::Domains;
use crate::read::is_agent_port_open;

/// libvirt's timeout for the synchronisation with an agent, unless it is set shorter.
pub(super) const LIBVIRT_TIMEOUT: Duration = Duration::from_secs(5);

/// What libvirt returns of a command; the inner error is the reason why no agent can answer.
pub(super) type Answer = Result<Result<String, String>, VirtError>;

/// The agent of a domain, in the turn of its commands.
pub(super) struct Agent {
    id: Uuid,
    domain: Domain,
    pub(super) known: Domains,
}

impl Agent {
    /// The inner error is the reason why no agent can answer.
    pub(super) fn find(
        connect: &Connect,
        id: Uuid,
        known: Domains,
    ) -> Result<Result<Self, String>, VirtError> {
        // Noted before the next in turn looks, and trusted only while it answers.
        let was_known = known.remove(id);
        let domain = connect.lookup_domain_by_uuid(id)?;
        // libvirt logs an error for each command to an agent that is not there.
        if !was_known && is_port_closed(&domain) {
            return Ok(Err("its port is not open in the guest".to_owned()));
        }
        Ok(Ok(Self { id, domain, known }))
    }

    pub(super) fn command(&self, command: &str, time: Duration) -> Answer {
        self.known.remove(self.id);
        let reply = command_guest(&self.domain, command, time);
        if has_answered(&reply) {
            self.known.add(self.id);
        }
        reply
    }
}

fn command_guest(domain: &Domain, command: &str, time: Duration) -> Answer {
    let seconds = whole_seconds(time);
    // Otherwise a call to an agent that has ended takes five seconds before the command is even
    // sent, or the timeout that an earlier client has set. A driver without this call is only
    // slower.
    let _ = ffi::set_agent_timeout(domain, seconds.min(whole_seconds(LIBVIRT_TIMEOUT)));
    match domain.qemu_agent_command(command, seconds, 0) {
        Ok(reply) => Ok(Ok(reply)),
        Err(error) if is_mute(&error) => Ok(Err(readable(error.message()))),
        Err(error) => Err(error),
    }
}

/// Whether libvirt knows that no program in the guest listens.
fn is_port_closed(domain: &Domain) -> bool {
    let description = domain.xml_desc(0);
    description.is_ok_and(|xml| is_agent_port_open(&xml) == Some(false))
}

/// Whether there was an answer, if only a refusal.
fn has_answered(reply: &Answer) -> bool {
    match reply {
        Ok(answer) => answer.is_ok(),
        Err(error) => error.code().is(ErrorNumber::InternalError),
    }
}

/// Whether libvirt reports that no agent can answer: the domain has no agent channel, is paused or
/// off.
fn is_mute(error: &VirtError) -> bool {
    error.code().is_any(vec![
        ErrorNumber::ArgumentUnsupported,
        ErrorNumber::ConfigUnsupported,
        ErrorNumber::OperationUnsupported,
        ErrorNumber::OperationInvalid,
        ErrorNumber::NoSupport,
    ])
}

/// libvirt counts in seconds, and gives a meaning of its own to zero. What is begun of a second counts:
/// a guest has the time that it was promised.
fn whole_seconds(time: Duration) -> i32 {
    let seconds = time.as_millis().div_ceil(1000);
    i32::try_from(seconds).unwrap_or(i32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_below_a_second_does_not_mean_no_wait() {
        assert_eq!(whole_seconds(Duration::from_millis(20)), 1);
        assert_eq!(whole_seconds(Duration::MAX), i32::MAX);
    }

    #[test]
    fn a_guest_that_answers_within_its_time_is_not_cut_off_at_a_whole_second() {
        assert_eq!(whole_seconds(Duration::from_millis(1800)), 2);
        assert_eq!(whole_seconds(Duration::from_millis(2999)), 3);
        assert_eq!(whole_seconds(Duration::from_secs(2)), 2);
    }
}
