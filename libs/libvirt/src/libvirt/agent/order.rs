//! Orders to power off and to reboot.
//!
//! Invariant: an order follows a ping that was answered, and is not sent once its caller has given up. No command of
//! another client comes between.
//! Failure: [`Error::Busy`] for an order that was not sent; silence after an order is how an agent obeys.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use serde_json::json;
use uuid::Uuid;
use virt::connect::Connect;

use super::CALL;
use super::limit::{MARGIN, ORDER_TURN};
use super::program::{Agent, Answer, LIBVIRT_TIMEOUT};
use crate::error::Context;
use crate::libvirt::calls::Calls;
use crate::libvirt::lane::Lane;
use crate::libvirt::plan::{Access, Plan, Time};
use crate::libvirt::turns::Key;
use crate::{Error, Result};

/// Time for an agent to show that it is there before it is requested to power off.
const PING: Duration = Duration::from_secs(2);

/// Time given to a refusal. An agent that obeys a shutdown does not answer.
const SHUTDOWN_REFUSAL: Duration = Duration::from_secs(1);

impl Calls {
    /// Requests the agent to power the guest off.
    pub(in crate::libvirt) async fn agent_shutdown(&self, domain: Uuid) -> Result<()> {
        self.agent_order(domain, "powerdown").await
    }

    /// Requests the agent to reboot the guest.
    pub(in crate::libvirt) async fn agent_reboot(&self, domain: Uuid) -> Result<()> {
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

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

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
