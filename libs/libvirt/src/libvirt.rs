//! The hypervisor through libvirt.
//!
//! Invariant: a call takes a permit and a connection, runs on the blocking pool and has a deadline
//! that begins with the permit. Each kind of call has its own connections and permits, so that none
//! waits for another: see [`Lane`].
//! Failure: without a connection every call fails at once with [`crate::Error::Unavailable`]; a
//! supervisor keeps reconnecting and reports it with events.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{broadcast, oneshot};
use uuid::Uuid;
use virt::domain::Domain;
use virt::error::Error as VirtError;
use virt::sys;

mod agent;
mod block_jobs;
mod calls;
mod connection;
mod disks;
mod domains;
mod event_loop;
mod hypervisor;
mod lane;
mod listing;
mod memory;
mod monitor;
mod pin;
mod plan;
mod resets;
mod settings;
mod size;
mod turns;

use crate::Result;
use crate::error::Context;
use calls::Calls;
use connection::Link;
use domains::{absent_is_fine, absent_is_none, find, unless_off};
use lane::Lane;
pub(crate) use monitor::content as monitor_reply;
use plan::{Access, Plan, Time};
pub use settings::Settings;
use turns::Key;

/// Events that a slow receiver may lag behind before it loses the oldest.
const EVENT_BACKLOG: usize = 4096;

/// Most calls of one kind; each costs a connection.
const MOST_PARALLEL: usize = 64;

/// Notices each call to libvirt that ended, or was given up.
pub trait Observer: std::fmt::Debug + Send + Sync {
    /// `outcome` is `ok` or the [`crate::Error::kind`].
    fn called(&self, call: &'static str, took: Duration, outcome: &'static str);
}

/// A connection to libvirt that mends itself. Clones share it; it closes with the last of them.
#[derive(Debug, Clone)]
pub struct Libvirt {
    settings: Settings,
    link: Arc<Link>,
    calls: Arc<Calls>,
    /// Ends the supervisor when the last clone is dropped.
    _stop: Arc<oneshot::Sender<()>>,
}

impl Libvirt {
    /// Starts connecting to `uri` in the background and returns at once, inside a tokio runtime.
    ///
    /// Never fails because libvirt is down: see [`is_connected`](crate::Hypervisor::is_connected)
    /// and [`crate::Event::Connected`].
    pub fn connect(uri: String, settings: Settings) -> Self {
        Self::connect_observed(uri, settings, None)
    }

    /// Like [`Self::connect`]; `observer` notices each call.
    pub fn connect_observed(
        uri: String,
        settings: Settings,
        observer: Option<Arc<dyn Observer>>,
    ) -> Self {
        virt::error::clear_error_callback();
        let (events, _) = broadcast::channel(EVENT_BACKLOG);
        let (stop, stopped) = oneshot::channel();
        let link = Arc::new(Link::new(events));
        let parallel = settings.parallel.clamp(1, MOST_PARALLEL);
        tokio::spawn(connection::supervise(
            uri,
            parallel,
            Arc::clone(&link),
            stopped,
        ));
        Self {
            settings,
            calls: Arc::new(Calls::new(Arc::clone(&link), parallel, observer)),
            link,
            _stop: Arc::new(stop),
        }
    }

    /// How a call is made that changes something, or belongs to a change.
    const fn change(&self, call: &'static str, domain: Option<Uuid>) -> Plan {
        Plan {
            context: Context { call, domain },
            lane: Lane::Control,
            time: Time::Apart {
                wait: self.settings.turn_deadline,
                call: self.settings.call_deadline,
            },
            access: Access::Shared,
        }
    }

    /// How a call is made whose answer is of use for a short time only. A second one waits for the
    /// first, and so no number of them takes all places of a libvirt that does not answer.
    fn look(&self, call: &'static str, domain: Option<Uuid>) -> Plan {
        let time = self.settings.call_deadline;
        let (lane, key) = match domain {
            Some(domain) => (Lane::States, Key::State(domain)),
            None => (Lane::Survey, Key::Survey(call)),
        };
        Plan {
            context: Context { call, domain },
            lane,
            time: Time::Apart {
                wait: time,
                call: time,
            },
            access: Access::Alone(key),
        }
    }

    /// A call about one domain.
    async fn about<T: Send + 'static>(
        &self,
        domain: Uuid,
        plan: Plan,
        f: impl FnOnce(&Domain) -> Result<T, VirtError> + Send + 'static,
    ) -> Result<T> {
        self.calls
            .run(plan, move |connect| f(&find(connect, domain)?))
            .await
    }

    /// A request to an emulator, which may hang: it waits for no other machine, and keeps one place
    /// at most.
    async fn ask_emulator<T: Send + 'static>(
        &self,
        call: &'static str,
        domain: Uuid,
        f: impl FnOnce(&Domain) -> Result<T, VirtError> + Send + 'static,
    ) -> Result<T> {
        let plan = Plan {
            lane: Lane::Emulators,
            access: Access::Alone(Key::Emulator(domain)),
            ..self.change(call, Some(domain))
        };
        self.about(domain, plan, f).await
    }

    async fn press_to_power_off(&self, domain: Uuid) -> Result<()> {
        let flag = sys::VIR_DOMAIN_SHUTDOWN_ACPI_POWER_BTN;
        let pressed = self.ask_emulator("shutdown", domain, move |d| {
            unless_off(d, d.shutdown_flags(flag).map(drop))
        });
        pressed.await?;
        self.calls.rebooting.remove(domain);
        Ok(())
    }

    /// The XML of a domain; `None` when it does not exist.
    async fn description(&self, domain: Uuid) -> Result<Option<String>> {
        let plan = self.change("describe", Some(domain));
        match self.about(domain, plan, |d| d.xml_desc(0)).await {
            Ok(xml) => Ok(Some(xml)),
            Err(crate::Error::NoDomain(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// How a domain is started.
    fn starting(&self, domain: Uuid) -> Plan {
        Plan {
            time: Time::Apart {
                wait: self.settings.turn_deadline,
                call: self.settings.start_deadline,
            },
            ..self.change("start", Some(domain))
        }
    }

    /// How all of a machine's memory is written or read.
    fn moving_memory(&self, call: &'static str, domain: Option<Uuid>) -> Plan {
        Plan {
            lane: Lane::Memory,
            time: Time::Apart {
                wait: memory::DEADLINE,
                call: memory::DEADLINE,
            },
            ..self.change(call, domain)
        }
    }
}
