//! Connections to the agents in guests.
//!
//! ```text
//! streaming session ─► Command ─► Link ─► virtio-serial socket ─► vmlet-guest
//! ```
//!
//! Invariant: one connection per machine, made by the first request and kept while the machine
//! runs. Everything that comes from a guest is hostile: memory is bounded by the windows of its
//! sessions, and what belongs to no session is read slowly.
//! Failure: no connection, when the machine has no port, or its guest no agent; [`Error`] for a
//! command.

mod allowance;
mod command;
mod freeze;
mod link;
mod request;
mod sessions;
mod silence;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use guestapi::Facts;
use podspec::ContainerId;

use crate::machine_socket::MachineSocket;
pub use command::{Command, Control, End, Ended, Input, Output};
pub use freeze::Freeze;
pub use guestapi::{Confinement, Start, User, View};
use link::Link;

/// Why a command does not run in a guest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no such program.
    #[error("the guest has no command {0:?}")]
    NoCommand(String),
    /// The agent's own reason.
    #[error("vmlet-guest in the virtual machine refuses: {0}")]
    Refused(String),
    /// It keeps no session of this name, or has one already: its own words.
    #[error("vmlet-guest in the virtual machine does not have the session: {0}")]
    NoSession(String),
    /// Its protocol lacks what is needed.
    #[error(
        "vmlet-guest {0} in the virtual machine is too old to run containers as processes: install \
         the version of this node's daemon in the image"
    )]
    TooOld(String),
    /// It is connected, and does not start the command.
    #[error("vmlet-guest in the virtual machine did not start the command within {} s", .0.as_secs())]
    Silent(Duration),
    /// It is connected, and does not answer a request.
    #[error("vmlet-guest in the virtual machine did not answer within {} s", .0.as_secs())]
    NoAnswer(Duration),
    /// The machine or the agent ended under the command or request.
    #[error("the connection to vmlet-guest in the virtual machine ended while it was in use")]
    Lost,
    /// It sent what the protocol forbids.
    #[error("vmlet-guest in the virtual machine broke the protocol: the session was ended")]
    Protocol,
}

/// The connections of this node.
#[derive(Debug, Default)]
pub struct Guests {
    links: Mutex<HashMap<ContainerId, Arc<Link>>>,
    reports: Mutex<HashMap<ContainerId, Report>>,
}

/// A machine whose agent has not answered since it was probed.
#[derive(Debug, PartialEq, Eq)]
pub struct Silent {
    /// The machine.
    pub machine: ContainerId,
    /// Whether the agent has had all the time that it gets.
    pub is_over: bool,
}

/// The last report of an agent.
#[derive(Debug, Clone)]
pub struct Report {
    /// When, in nanoseconds since the epoch.
    pub at: i64,
    /// Version of the agent, as the guest reports it, shortened.
    pub version: String,
    /// What it reported. All of it is hostile.
    pub facts: Arc<Facts>,
}

impl Guests {
    /// The agent of a machine, if one answers within this time after the connection was made.
    /// `socket` leads to the machine's port.
    pub async fn agent(
        &self,
        id: &ContainerId,
        socket: &MachineSocket,
        patience: Duration,
    ) -> Option<Agent> {
        let known = self.links().get(id).filter(|link| link.is_alive()).cloned();
        let link = match known {
            Some(link) => link,
            None => self.connect(id, socket).await?,
        };
        let version = link.greeted(patience).await?;
        Some(Agent {
            link,
            protocol: version.protocol,
            version: version.program,
            watches_freezes: version.watches_freezes,
        })
    }

    async fn connect(&self, id: &ContainerId, socket: &MachineSocket) -> Option<Arc<Link>> {
        let link = match Link::connect(socket).await {
            Ok(link) => link,
            Err(error) => {
                // The emulator serves one client; another request may have been faster.
                let faster = self.links().get(id).filter(|link| link.is_alive()).cloned();
                if faster.is_none() {
                    let error = crate::one_line(&error);
                    tracing::debug!(container = %id, error, "guest agent not connected");
                }
                return faster;
            }
        };
        let mut links = self.links();
        if let Some(faster) = links.get(id).filter(|link| link.is_alive()) {
            return Some(Arc::clone(faster));
        }
        links.retain(|_, link| link.is_alive());
        links.insert(id.clone(), Arc::clone(&link));
        Some(link)
    }

    /// Probes the agents that are in use or in doubt; returns those that have not answered an
    /// earlier probe.
    pub fn probe(&self) -> Vec<Silent> {
        let links = self.links();
        let alive = links.iter().filter(|(_, link)| link.is_alive());
        let silent = alive.filter(|(_, link)| link.probe());
        silent
            .map(|(id, link)| Silent {
                machine: id.clone(),
                is_over: link.silence.is_over(),
            })
            .collect()
    }

    /// The guest cannot answer now, as while it is paused: the time of its agent begins again.
    pub fn excuse(&self, id: &ContainerId) {
        if let Some(link) = self.links().get(id) {
            link.silence.excuse();
        }
    }

    /// Ends the connection to an agent that has had all its time and has not answered until now; returns
    /// whether it did.
    pub fn end_silent(&self, id: &ContainerId) -> bool {
        let mut links = self.links();
        let is_over = links.get(id).is_some_and(|link| link.silence.is_over());
        if is_over && let Some(link) = links.remove(id) {
            link.end();
        }
        is_over
    }

    /// Ends the connection to an agent that has ended, as with a reset of its machine: nothing that
    /// it ran runs, and it may not have been able to announce its successor.
    pub fn end(&self, id: &ContainerId) {
        if let Some(link) = self.links().remove(id) {
            link.end();
        }
    }

    /// Keeps a report until the machine ends.
    pub fn remember(&self, id: &ContainerId, agent: &Agent, facts: Facts) -> Arc<Facts> {
        let facts = Arc::new(facts);
        let report = Report {
            at: crate::clock::now(),
            version: agent.version.clone(),
            facts: Arc::clone(&facts),
        };
        let links = self.links();
        let mut reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        reports.retain(|id, _| links.get(id).is_some_and(|link| link.is_alive()));
        reports.insert(id.clone(), report);
        facts
    }

    /// The last report of a machine whose connection lasts.
    pub fn report(&self, id: &ContainerId) -> Option<Report> {
        let link = self.links().get(id).filter(|link| link.is_alive()).cloned();
        let reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        link.and_then(|_| reports.get(id).cloned())
    }

    fn links(&self) -> MutexGuard<'_, HashMap<ContainerId, Arc<Link>>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An agent that has answered.
#[derive(Debug, Clone)]
pub struct Agent {
    link: Arc<Link>,
    /// Version of the protocol.
    protocol: u32,
    /// Version of its program, as the guest reports it, shortened.
    pub version: String,
    /// What it froze is thawed also when it is killed.
    pub watches_freezes: bool,
}

#[cfg(test)]
mod tests;
