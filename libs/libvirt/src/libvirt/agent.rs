//! The QEMU guest agent. The guest controls its replies.
//!
//! Invariant: one command per guest at a time; the rest of a guest's callers wait without a permit.
//! An agent that answered last time never waits for one that did not. Replies are bounded and
//! parsed before callers get them.
//! Failure: [`Error::NoAgent`] when there is none, [`Error::Agent`] when it is silent or talks
//! nonsense, [`Error::AgentForbids`] and [`Error::Refused`] when the agent itself answered that it
//! will not.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use uuid::Uuid;
use virt::connect::Connect;
use virt::domain::Domain;
use virt::error::{Error as VirtError, ErrorNumber};

use super::calls::Calls;
use super::lane::Lane;
use super::plan::{Access, Plan, Time};
use super::turns::{Key, Turn};
use crate::error::{Context, readable};
use crate::read::is_agent_port_open;
use crate::{Error, Result, ffi};

/// Longest reply that is parsed; libvirt's own protocol carries no longer string.
const MAX_REPLY: usize = 4 << 20;
/// Time for an agent to show that it is there before it is requested to power off.
const PING: Duration = Duration::from_secs(2);
/// Time given to a refusal. An agent that obeys a shutdown does not answer.
const SHUTDOWN_REFUSAL: Duration = Duration::from_secs(1);
/// What a call may take beyond the time that libvirt gives the guest.
const MARGIN: Duration = Duration::from_secs(2);
/// libvirt's timeout for the synchronisation with an agent, unless it is set shorter.
const LIBVIRT_TIMEOUT: Duration = Duration::from_secs(5);

impl Calls {
    /// Sends one command and returns the agent's `return` value.
    pub(super) async fn agent_command(
        &self,
        domain: Uuid,
        command: &Value,
        deadline: Duration,
    ) -> Result<Value> {
        let reply = self.query(domain, command.to_string(), deadline).await?;
        parse(&reply)
    }

    /// Requests the agent to power the guest off.
    pub(super) async fn agent_shutdown(&self, domain: Uuid) -> Result<()> {
        self.agent_order(domain, "powerdown").await
    }

    /// Requests the agent to reboot the guest.
    pub(super) async fn agent_reboot(&self, domain: Uuid) -> Result<()> {
        self.agent_order(domain, "reboot").await
    }

    async fn agent_order(&self, domain: Uuid, mode: &'static str) -> Result<()> {
        if self.is_off(domain).await? {
            return Ok(());
        }
        let begun = Instant::now();
        // Kept until the order is out: one that waits for its turn without success is silent, too,
        // and was never sent. Nor does a command of another client come between, whose end libvirt
        // would have to wait for first.
        let turn = self.turn_within(domain, PING).await?;
        let ping = json!({"execute": "guest-ping"});
        let left = PING.saturating_sub(begun.elapsed());
        self.ask_in_turn(domain, ping.to_string(), left, Arc::clone(&turn))
            .await?;
        // libvirt's own call for this would wait a minute for the reply that never comes.
        let order = json!({"execute": "guest-shutdown", "arguments": {"mode": mode}});
        let order = self.ask_in_turn(domain, order.to_string(), SHUTDOWN_REFUSAL, turn);
        match order.await {
            // Silence after a ping that was answered is how an agent obeys.
            Ok(_)
            | Err(
                Error::Agent { .. }
                | Error::NoAgent { .. }
                | Error::Deadline { .. }
                | Error::NoDomain(_),
            ) => Ok(()),
            Err(error) if self.is_off(domain).await? => {
                tracing::debug!(%domain, %error, "guest powered off before the reply");
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    async fn is_off(&self, domain: Uuid) -> Result<bool> {
        let context = Context {
            call: "shutdown",
            domain: Some(domain),
        };
        let plan = Plan {
            context,
            lane: Lane::States,
            time: Time::Until(Instant::now() + LIBVIRT_TIMEOUT),
            access: Access::Alone(Key::State(domain)),
        };
        self.run(plan, move |connect| {
            connect
                .lookup_domain_by_uuid(domain)?
                .is_active()
                .map(|active| !active)
        })
        .await
    }

    async fn query(&self, domain: Uuid, command: String, deadline: Duration) -> Result<String> {
        self.check_connected()?;
        let begun = Instant::now();
        let turn = self.turn_within(domain, deadline).await?;
        let left = deadline.saturating_sub(begun.elapsed());
        self.ask_in_turn(domain, command, left, turn).await
    }

    /// One command; the caller holds the turn of the domain.
    async fn ask_in_turn(
        &self,
        domain: Uuid,
        command: String,
        left: Duration,
        turn: Turn,
    ) -> Result<String> {
        let context = Context {
            call: "guest agent command",
            domain: Some(domain),
        };
        let is_known = self.known.has(domain);
        let lane = if is_known {
            Lane::Agents
        } else {
            Lane::UnresponsiveAgents
        };
        let known = self.known.clone();
        let end = Instant::now() + left;
        let work = move |connect: &Connect| {
            // Noted before the next in turn looks, and trusted only while it answers.
            known.remove(domain);
            // The wait for a permit was part of the request's time.
            let left = end.saturating_duration_since(Instant::now());
            let found = connect.lookup_domain_by_uuid(domain)?;
            // libvirt logs an error for each command to an agent that is not there.
            if !is_known && is_port_closed(&found) {
                let reason = "its port is not open in the guest";
                return Ok(Err(reason.to_owned()));
            }
            let reply = command_guest(&found, &command, left);
            if has_answered(&reply) {
                known.add(domain);
            }
            reply
        };
        let plan = Plan {
            context,
            lane,
            time: Time::Until(end + MARGIN),
            access: Access::Held(turn),
        };
        let result = self.run(plan, work).await;
        result.and_then(|reply| reply.map_err(|reason| Error::NoAgent { reason }))
    }

    async fn turn_within(&self, domain: Uuid, deadline: Duration) -> Result<Turn> {
        let turn = self.turns.take(Key::Agent(domain));
        let turn = tokio::time::timeout(deadline, turn).await;
        turn.map_err(|_| Error::Agent {
            reason: "it is still busy with earlier commands".to_owned(),
        })
    }
}

/// The inner error is the reason why no agent can answer.
fn command_guest(
    domain: &Domain,
    command: &str,
    time: Duration,
) -> Result<Result<String, String>, VirtError> {
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
fn has_answered(reply: &Result<Result<String, String>, VirtError>) -> bool {
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

/// libvirt counts in seconds, and gives a meaning of its own to zero.
fn whole_seconds(time: Duration) -> i32 {
    i32::try_from(time.as_secs()).unwrap_or(i32::MAX).max(1)
}

pub(crate) fn parse(reply: &str) -> Result<Value> {
    if reply.len() > MAX_REPLY {
        return Err(Error::Agent {
            reason: format!("its reply of {} bytes is too long", reply.len()),
        });
    }
    let malformed = |reason: &str| Error::Agent {
        // The parser's words repeat what it met.
        reason: format!("its reply is malformed: {}", readable(reason)),
    };
    // Not a type of its own: that could be read from a list, too.
    let reply: Result<Map<String, Value>, _> = serde_json::from_str(reply);
    let mut reply = reply.map_err(|e| malformed(&e.to_string()))?;
    reply
        .remove("return")
        .ok_or_else(|| malformed("it has no return value"))
}

#[cfg(test)]
mod tests {
    use tokio::sync::broadcast;

    use super::super::connection::Link;
    use super::*;

    #[tokio::test]
    async fn a_turn_ends_when_its_last_holder_drops_it() {
        let calls = Calls::new(Arc::new(Link::new(broadcast::channel(1).0)), 1, None);
        let (guest, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let short = Duration::from_millis(20);
        let turn = calls.turn_within(guest, PING).await.unwrap();
        let of_first_command = Arc::clone(&turn);
        let is_taken = async || calls.turn_within(guest, short).await.is_err();
        assert!(is_taken().await);
        drop(of_first_command);
        assert!(is_taken().await, "somebody came between ping and order");
        assert!(calls.turn_within(other, PING).await.is_ok());
        drop(turn);
        assert!(!is_taken().await);
    }

    #[test]
    fn only_a_reply_with_a_return_value_is_believed() {
        assert_eq!(
            parse(r#"{"return": {"pid": 7}}"#).unwrap(),
            json!({"pid": 7})
        );
        let deep = format!("{{\"return\": {}", "[".repeat(100_000));
        for nonsense in ["", "{}", "{\"error\": 1}", "[]", "[1]", "\0", deep.as_str()] {
            assert!(matches!(parse(nonsense), Err(Error::Agent { .. })));
        }
        let long = format!("{{\"return\": \"{}\"}}", "x".repeat(MAX_REPLY));
        assert!(matches!(parse(&long), Err(Error::Agent { .. })));
        let text = format!("\"{}\"", "x".repeat(MAX_REPLY / 2));
        let error = parse(&text).unwrap_err().to_string();
        assert!(error.len() < 2000, "{} bytes", error.len());
    }

    #[test]
    fn a_deadline_below_a_second_does_not_mean_no_wait() {
        assert_eq!(whole_seconds(Duration::from_millis(20)), 1);
        assert_eq!(whole_seconds(Duration::from_millis(2900)), 2);
        assert_eq!(whole_seconds(Duration::MAX), i32::MAX);
    }
}
