//! File systems of a guest that its agent has frozen.
//!
//! Invariant: the guest is requested to thaw when this is dropped, also by a caller that does not wait for the
//! answer to the freeze; requests to freeze and to thaw reach it in the order in which they are sent. Whatever
//! becomes of this process, the guest thaws by itself: when the connection ends, and after the time that it got.
//! Failure: [`Error`]; then nothing is frozen, or not for longer than that time.

use std::time::Duration;

use guestapi::request::Action;
use guestapi::{LONGEST_FREEZE, Request, Thaw};

use super::link::number;
use super::request::{ANSWER, Queue};
use super::{Agent, Error};

/// A freeze, until it is dropped.
#[derive(Debug)]
pub struct Freeze {
    agent: Agent,
    file_systems: u32,
    is_thawed: bool,
}

impl Agent {
    /// Has the guest write its file systems to its disks and freeze them, for at most `time`, of which the guest
    /// takes whole seconds, and no more than a minute.
    ///
    /// # Errors
    ///
    /// [`Error`]; then the guest has frozen nothing, or thaws within the time.
    pub async fn freeze(&self, time: Duration) -> Result<Freeze, Error> {
        let seconds = u32::try_from(time.as_secs()).unwrap_or(LONGEST_FREEZE);
        let seconds = seconds.clamp(1, LONGEST_FREEZE);
        let mut freeze = Freeze {
            agent: self.clone(),
            file_systems: 0,
            is_thawed: false,
        };
        let action = Action::Freeze(guestapi::Freeze { seconds });
        let time = Duration::from_secs(seconds.into());
        let answer = self.request_by(Queue::Urgent, action, time).await?;
        freeze.file_systems = answer.file_systems;
        Ok(freeze)
    }
}

impl Freeze {
    /// How many file systems are frozen.
    pub const fn file_systems(&self) -> u32 {
        self.file_systems
    }

    /// Has the guest thaw; true when all of them were frozen until then.
    ///
    /// # Errors
    ///
    /// [`Error`]; it is not known for how long they were frozen.
    pub async fn thaw(mut self) -> Result<bool, Error> {
        let action = Action::Thaw(Thaw {});
        let answer = self.agent.request_by(Queue::Urgent, action, ANSWER).await?;
        self.is_thawed = true;
        Ok(answer.file_systems == self.file_systems)
    }
}

impl Drop for Freeze {
    fn drop(&mut self) {
        if !self.is_thawed {
            self.agent.link.outbox.notify(Request {
                number: number(),
                action: Some(Action::Thaw(Thaw {})),
            });
        }
    }
}
