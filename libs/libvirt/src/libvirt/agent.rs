//! The QEMU guest agent. The guest controls its replies.
//!
//! Invariant: one command per guest at a time; the rest of a guest's callers wait without a permit.
//! An agent that answered promptly last time never waits for one that did not, and an order to power
//! off waits for orders alone. The time of an order begins with its permit, which serves for the ping
//! before it as well; an order that its caller has given up is not sent. Callers read
//! [replies](AgentReply) within a bound.
//! Failure: [`Error::NoAgent`] when there is none, [`Error::Agent`] when it is silent or talks
//! nonsense, [`Error::AgentForbids`] and [`Error::Refused`] when the agent itself answered that it
//! will not. An order that got no permit in time is [`Error::Busy`]: it was not sent.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use uuid::Uuid;
use virt::connect::Connect;
use virt::domain::Domain;
use virt::error::{Error as VirtError, ErrorNumber};

use super::calls::{Calls, Domains};
use super::lane::Lane;
use super::plan::{Access, Plan, Time};
use super::turns::{Key, Turn};
use crate::error::{Context, readable};
use crate::guest::AgentReply;
use crate::read::is_agent_port_open;
use crate::{Error, Result, ffi};

/// What an agent takes at most that answers promptly.
const PROMPT: Duration = Duration::from_secs(1);
/// How commands begin that an agent answers from memory.
const QUESTIONS: [&str; 3] = ["guest-ping", "guest-get-", "guest-network-"];
/// What libvirt calls are about here.
const CALL: &str = "guest agent command";
/// How long an order waits for commands to the same agent and for other orders, together.
const ORDER_TURN: Duration = Duration::from_secs(5);
/// Time for an agent to show that it is there before it is requested to power off.
const PING: Duration = Duration::from_secs(2);
/// Time given to a refusal. An agent that obeys a shutdown does not answer.
const SHUTDOWN_REFUSAL: Duration = Duration::from_secs(1);
/// What a call may take beyond the time that libvirt gives the guest.
const MARGIN: Duration = Duration::from_secs(2);
/// libvirt's timeout for the synchronisation with an agent, unless it is set shorter.
const LIBVIRT_TIMEOUT: Duration = Duration::from_secs(5);

/// When a guest has to have answered.
#[derive(Debug, Clone, Copy)]
enum Limit {
    /// The request ends then, wherever it is.
    Until(Instant),
    /// The same, of a question that a guest answers promptly, or counts as slow.
    Question(Instant),
    /// An order: the guest has this time from the permit on.
    Order(Duration),
}

impl Limit {
    /// What is left for the guest.
    fn left(self) -> Duration {
        match self {
            Self::Until(end) | Self::Question(end) => end.saturating_duration_since(Instant::now()),
            Self::Order(time) => time,
        }
    }

    fn time(self) -> Time {
        match self {
            Self::Until(end) | Self::Question(end) => Time::Until(end + MARGIN),
            Self::Order(time) => Time::Apart {
                wait: ORDER_TURN,
                call: time + MARGIN,
            },
        }
    }

    const fn lane(self, is_known: bool) -> Lane {
        match self {
            Self::Order(_) => Lane::AgentOrders,
            Self::Until(_) | Self::Question(_) if is_known => Lane::Agents,
            Self::Until(_) | Self::Question(_) => Lane::UnresponsiveAgents,
        }
    }
}

impl Calls {
    /// Sends one command.
    pub(super) async fn agent_command(
        &self,
        domain: Uuid,
        command: &Value,
        deadline: Duration,
    ) -> Result<AgentReply> {
        let reply = self.query(domain, command, deadline).await?;
        Ok(AgentReply::new(reply))
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
        let begun = tokio::time::Instant::now();
        // Kept until the order is out: no command of another client comes between, whose end libvirt
        // would have to wait for first.
        let turn = self.turn_within(domain, ORDER_TURN).await;
        let turn = turn.map_err(|_| Error::Busy {
            call: CALL,
            wait: ORDER_TURN,
        })?;
        // libvirt's own call for this would wait a minute for the reply that never comes.
        let order = json!({"execute": "guest-shutdown", "arguments": {"mode": mode}}).to_string();
        let sent = Arc::new(AtomicBool::new(false));
        let is_wanted = Arc::downgrade(&sent);
        let known = self.known.clone();
        let work = move |connect: &Connect| match Agent::find(connect, domain, known)? {
            Ok(agent) => order_after_ping(&order, &is_wanted, |command, time| {
                agent.command(command, time)
            }),
            Err(reason) => Ok(Err(reason)),
        };
        let time = Time::Apart {
            wait: ORDER_TURN.saturating_sub(begun.elapsed()),
            call: PING + MARGIN + SHUTDOWN_REFUSAL + MARGIN,
        };
        let result = self
            .run_for_agent(domain, Lane::AgentOrders, time, turn, work)
            .await;
        match result {
            Err(error) if !sent.load(Ordering::Acquire) => Err(error),
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

    async fn query(&self, domain: Uuid, command: &Value, deadline: Duration) -> Result<String> {
        self.check_connected()?;
        let end = Instant::now() + deadline;
        let name = command["execute"].as_str().unwrap_or_default();
        let limit = if name.starts_with("guest-fsfreeze-") {
            // No slow guest keeps another one frozen.
            Limit::Order(deadline)
        } else if QUESTIONS.iter().any(|question| name.starts_with(question)) {
            Limit::Question(end)
        } else {
            Limit::Until(end)
        };
        let command = command.to_string();
        let turn = self.turn_within(domain, deadline).await?;
        self.ask_in_turn(domain, command, limit, turn).await
    }

    /// One command; the caller holds the turn of the domain.
    async fn ask_in_turn(
        &self,
        domain: Uuid,
        command: String,
        limit: Limit,
        turn: Turn,
    ) -> Result<String> {
        let lane = limit.lane(self.known.has(domain));
        let known = self.known.clone();
        let work = move |connect: &Connect| {
            // The wait for a permit was part of a request's time.
            let left = limit.left();
            let agent = match Agent::find(connect, domain, known)? {
                Ok(agent) => agent,
                Err(reason) => return Ok(Err(reason)),
            };
            let begun = Instant::now();
            let reply = agent.command(&command, left);
            if matches!(limit, Limit::Question(_)) && begun.elapsed() > PROMPT {
                agent.known.remove(domain);
            }
            reply
        };
        self.run_for_agent(domain, lane, limit.time(), turn, work)
            .await
    }

    /// Calls the agent of a domain, whose turn the caller holds. The inner error of `work` is the reason
    /// why no agent can answer.
    async fn run_for_agent(
        &self,
        domain: Uuid,
        lane: Lane,
        time: Time,
        turn: Turn,
        work: impl FnOnce(&Connect) -> Answer + Send + 'static,
    ) -> Result<String> {
        let context = Context {
            call: CALL,
            domain: Some(domain),
        };
        let plan = Plan {
            context,
            lane,
            time,
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

/// What libvirt returns of a command; the inner error is the reason why no agent can answer.
type Answer = Result<Result<String, String>, VirtError>;

/// The agent of a domain, in the turn of its commands.
struct Agent {
    id: Uuid,
    domain: Domain,
    known: Domains,
}

impl Agent {
    /// The inner error is the reason why no agent can answer.
    fn find(
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

    fn command(&self, command: &str, time: Duration) -> Answer {
        self.known.remove(self.id);
        let reply = command_guest(&self.domain, command, time);
        if has_answered(&reply) {
            self.known.add(self.id);
        }
        reply
    }
}

/// Sends an order to an agent that answers a ping: one that waits without success is silent, too, and
/// was never sent. `is_wanted` is set just before, and nothing is sent when it is gone.
fn order_after_ping(
    order: &str,
    is_wanted: &Weak<AtomicBool>,
    command: impl Fn(&str, Duration) -> Answer,
) -> Answer {
    let ping = json!({"execute": "guest-ping"}).to_string();
    let pong = command(&ping, PING);
    if !matches!(pong, Ok(Ok(_))) {
        return pong;
    }
    let Some(sent) = is_wanted.upgrade() else {
        return Ok(Err("the order was given up".to_owned()));
    };
    sent.store(true, Ordering::Release);
    command(order, SHUTDOWN_REFUSAL)
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
    use std::cell::RefCell;

    use tokio::sync::broadcast;

    use super::super::connection::Link;
    use super::*;

    #[tokio::test]
    async fn a_turn_ends_when_its_last_holder_drops_it() {
        let calls = Calls::new(Arc::new(Link::new(broadcast::channel(1).0)), 1, None);
        let guest = Uuid::from_u128(1);
        let other = Uuid::from_u128(2);
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
    fn a_deadline_below_a_second_does_not_mean_no_wait() {
        assert_eq!(whole_seconds(Duration::from_millis(20)), 1);
        assert_eq!(whole_seconds(Duration::MAX), i32::MAX);
    }

    #[test]
    fn a_guest_that_answers_within_its_time_is_not_cut_off_at_a_whole_second() {
        assert_eq!(whole_seconds(Duration::from_millis(1800)), 2);
        assert_eq!(whole_seconds(Duration::from_millis(2999)), 3);
        assert_eq!(whole_seconds(PING), 2);
    }

    /// What an agent was sent that answers its ping so.
    fn sent(pong: Result<String, String>, is_wanted: &Weak<AtomicBool>) -> Vec<String> {
        let commands = RefCell::new(Vec::new());
        let command = |command: &str, _: Duration| {
            commands.borrow_mut().push(command.to_owned());
            Ok(pong.clone())
        };
        assert_eq!(
            order_after_ping("order", is_wanted, command).unwrap().ok(),
            pong.ok().filter(|_| is_wanted.strong_count() > 0)
        );
        commands.into_inner()
    }

    #[test]
    fn an_order_follows_a_ping_that_was_answered_while_its_caller_waits() {
        let flag = Arc::new(AtomicBool::new(false));
        let is_wanted = Arc::downgrade(&flag);
        assert_eq!(sent(Err("silent".to_owned()), &is_wanted).len(), 1);
        assert!(!flag.load(Ordering::Acquire), "the order was not sent");
        let all = sent(Ok("{}".to_owned()), &is_wanted);
        assert!(all[0].contains("guest-ping"), "{all:?}");
        assert_eq!(all[1..], ["order"]);
        assert!(flag.load(Ordering::Acquire));
        drop(flag);
        assert_eq!(sent(Ok("{}".to_owned()), &is_wanted).len(), 1);
    }
}
