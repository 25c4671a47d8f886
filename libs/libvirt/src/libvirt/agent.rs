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

use std::time::{Duration, Instant};

use serde_json::Value;
use uuid::Uuid;
use virt::connect::Connect;

use super::calls::Calls;
use super::lane::Lane;
use super::plan::{Access, Plan, Time};
use super::turns::{Key, Turn};
use crate::error::Context;
use crate::guest::AgentReply;
use crate::{Error, Result};
use limit::Limit;
use program::{Agent, Answer};

mod limit;
mod order;
mod program;

/// What an agent takes at most that answers promptly.
const PROMPT: Duration = Duration::from_secs(1);
/// How commands begin that an agent answers from memory.
const QUESTIONS: [&str; 3] = ["guest-ping", "guest-get-", "guest-network-"];
/// What libvirt calls are about here.
const CALL: &str = "guest agent command";

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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::broadcast;

    use super::super::connection::Link;
    use super::*;

    #[tokio::test]
    async fn a_turn_ends_when_its_last_holder_drops_it() {
        let calls = Calls::new(Arc::new(Link::new(broadcast::channel(1).0)), 1, None);
        let guest = Uuid::from_u128(1);
        let other = Uuid::from_u128(2);
        let time = Duration::from_secs(2);
        let short = Duration::from_millis(20);
        let turn = calls.turn_within(guest, time).await.unwrap();
        let of_first_command = Arc::clone(&turn);
        let is_taken = async || calls.turn_within(guest, short).await.is_err();
        assert!(is_taken().await);
        drop(of_first_command);
        assert!(is_taken().await, "another call came between ping and order");
        assert!(calls.turn_within(other, time).await.is_ok());
        drop(turn);
        assert!(!is_taken().await);
    }
}
