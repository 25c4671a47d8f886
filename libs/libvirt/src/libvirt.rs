//! The hypervisor through libvirt.
//!
//! Invariant: a call takes a permit and a connection, runs on the blocking pool and has a deadline.
//! Four kinds of call have their own connections and permits, so that none waits for another:
//! ending machines and looking at them; the rest of the life cycle; agents that answer; agents that
//! may not.
//! Failure: without a connection every call fails at once with [`crate::Error::Unavailable`]; a
//! supervisor keeps reconnecting and reports it with events.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{broadcast, oneshot};
use uuid::Uuid;
use virt::domain::Domain;
use virt::error::Error as VirtError;
use virt::sys;

mod agent;
mod calls;
mod connection;
mod domains;
mod event_loop;
mod listing;
mod memory;
mod monitor;
mod pin;
mod resets;
mod settings;
mod size;

use crate::error::Context;
use crate::{
    Cable, DomainInfo, DomainStats, Event, Hypervisor, Observer, Power, Result, Shutdown, Size,
    State, Versions, event, ffi, read,
};
pub(crate) use agent::parse as agent_reply;
use calls::Calls;
use connection::Link;
use domains::{absent_is_fine, find, forget, unless_off};
pub(crate) use monitor::content as monitor_reply;
pub use settings::Settings;

/// Events that a slow receiver may lag behind before it loses the oldest.
const EVENT_BACKLOG: usize = 4096;

/// Most calls of one kind; each costs a connection.
const MOST_PARALLEL: usize = 64;

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
    /// Never fails because libvirt is down: see [`Hypervisor::is_connected`] and
    /// [`Event::Connected`].
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

    /// A call about one domain that does not wait for starts and the like, within the ordinary
    /// deadline.
    async fn urgently<T: Send + 'static>(
        &self,
        call: &'static str,
        domain: Uuid,
        f: impl FnOnce(&Domain) -> Result<T, VirtError> + Send + 'static,
    ) -> Result<T> {
        let context = Context {
            call,
            domain: Some(domain),
        };
        let deadline = self.settings.call_deadline;
        self.calls
            .run_urgent(context, deadline, move |connect| f(&find(connect, domain)?))
            .await
    }

    async fn press_to_power_off(&self, domain: Uuid) -> Result<()> {
        let flag = sys::VIR_DOMAIN_SHUTDOWN_ACPI_POWER_BTN;
        let pressed = self.urgently("shutdown", domain, move |d| {
            unless_off(d, d.shutdown_flags(flag).map(drop))
        });
        pressed.await?;
        self.calls.rebooting.remove(domain);
        Ok(())
    }

    /// The XML of a domain; `None` when it does not exist.
    async fn description(&self, domain: Uuid) -> Result<Option<String>> {
        let deadline = self.settings.call_deadline;
        let xml = self.on_domain("describe", domain, deadline, |d| d.xml_desc(0));
        match xml.await {
            Ok(xml) => Ok(Some(xml)),
            Err(crate::Error::NoDomain(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A call about one domain, within `deadline`.
    async fn on_domain<T: Send + 'static>(
        &self,
        call: &'static str,
        domain: Uuid,
        deadline: Duration,
        f: impl FnOnce(&Domain) -> Result<T, VirtError> + Send + 'static,
    ) -> Result<T> {
        let context = Context {
            call,
            domain: Some(domain),
        };
        self.calls
            .run(context, deadline, move |connect| f(&find(connect, domain)?))
            .await
    }
}

impl Hypervisor for Libvirt {
    async fn define(&self, xml: String) -> Result<()> {
        let context = Context {
            call: "define",
            domain: None,
        };
        self.calls
            .run(context, self.settings.call_deadline, move |connect| {
                connect.define_domain_xml(&xml).map(drop)
            })
            .await
    }

    async fn start(&self, domain: Uuid) -> Result<()> {
        self.on_domain(
            "start",
            domain,
            self.settings.start_deadline,
            Domain::create,
        )
        .await
    }

    async fn start_paused(&self, domain: Uuid) -> Result<()> {
        let deadline = self.settings.start_deadline;
        self.on_domain("start", domain, deadline, |d| {
            d.create_with_flags(sys::VIR_DOMAIN_START_PAUSED)
        })
        .await
    }

    async fn reboot(&self, domain: Uuid, how: Shutdown) -> Result<()> {
        match how {
            Shutdown::Agent => self.calls.agent_reboot(domain).await,
            Shutdown::Acpi => {
                let flag = sys::VIR_DOMAIN_REBOOT_ACPI_POWER_BTN;
                self.calls.rebooting.add(domain);
                self.urgently("reboot", domain, move |d| d.reboot(flag))
                    .await
            }
        }
    }

    async fn reset(&self, domain: Uuid) -> Result<()> {
        self.urgently("reset", domain, Domain::reset).await
    }

    async fn suspend(&self, domain: Uuid) -> Result<()> {
        self.urgently("suspend", domain, Domain::suspend).await
    }

    async fn resume(&self, domain: Uuid) -> Result<()> {
        self.urgently("resume", domain, memory::resume).await
    }

    async fn save(&self, domain: Uuid, file: PathBuf) -> Result<()> {
        self.calls.known.remove(domain);
        self.on_domain("save", domain, memory::DEADLINE, move |d| {
            ffi::save(d, &file)
        })
        .await
    }

    async fn abort_save(&self, domain: Uuid) -> Result<()> {
        self.urgently("abort", domain, ffi::abort_job).await
    }

    async fn restore(&self, xml: String, file: PathBuf) -> Result<()> {
        let context = Context {
            call: "restore",
            domain: None,
        };
        self.calls
            .run(context, memory::DEADLINE, move |connect| {
                memory::restore(connect, &xml, &file)
            })
            .await
    }

    async fn cable(&self, domain: Uuid, nic: String, cable: Cable) -> Result<()> {
        let command = monitor::cable(&nic, cable);
        let reply = self.urgently("set link", domain, move |d| {
            d.qemu_monitor_command(&command, 0)
        });
        monitor::check("set link", &reply.await?)
    }

    async fn power(&self, domain: Uuid) -> Result<Option<Power>> {
        match self.urgently("state", domain, ffi::state).await {
            Ok((state, reason)) => Ok(Some(event::power(state, reason))),
            Err(crate::Error::NoDomain(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn machine_type(&self, domain: Uuid) -> Result<Option<String>> {
        Ok(self
            .description(domain)
            .await?
            .as_deref()
            .and_then(read::machine_type))
    }

    async fn shutdown(&self, domain: Uuid, how: Shutdown) -> Result<()> {
        let reply = match how {
            Shutdown::Agent => {
                if self.calls.rebooting.has(domain) {
                    // Otherwise libvirt would boot the guest again.
                    absent_is_fine(self.press_to_power_off(domain).await)?;
                }
                self.calls.agent_shutdown(domain).await
            }
            Shutdown::Acpi => self.press_to_power_off(domain).await,
        };
        absent_is_fine(reply)
    }

    async fn destroy(&self, domain: Uuid) -> Result<()> {
        self.calls.known.remove(domain);
        self.calls.rebooting.remove(domain);
        let done = self.urgently("destroy", domain, |d| unless_off(d, d.destroy()));
        absent_is_fine(done.await)
    }

    async fn undefine(&self, domain: Uuid) -> Result<()> {
        self.calls.known.remove(domain);
        self.calls.rebooting.remove(domain);
        let done = self
            .on_domain("undefine", domain, self.settings.call_deadline, |d| {
                // libvirt would turn a running domain into one that it forgets at its end.
                if d.is_active()? {
                    Ok(false)
                } else {
                    forget(d).map(|()| true)
                }
            })
            .await;
        absent_is_fine(done.and_then(|forgotten| {
            if forgotten {
                return Ok(());
            }
            Err(crate::Error::Refused {
                call: "undefine",
                reason: "the domain is running".to_owned(),
            })
        }))
    }

    async fn state(&self, domain: Uuid) -> Result<Option<State>> {
        match self.urgently("state", domain, ffi::state).await {
            Ok((state, reason)) => Ok(Some(event::state(state, reason))),
            Err(crate::Error::NoDomain(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn list(&self) -> Result<Vec<DomainInfo>> {
        let context = Context {
            call: "list",
            domain: None,
        };
        self.calls
            .run(context, self.settings.call_deadline, listing::ours)
            .await
    }

    async fn console_file(&self, domain: Uuid) -> Result<Option<PathBuf>> {
        Ok(self
            .description(domain)
            .await?
            .as_deref()
            .and_then(read::console_file))
    }

    async fn stats(&self) -> Result<Vec<DomainStats>> {
        let context = Context {
            call: "stats",
            domain: None,
        };
        self.calls
            .run(context, self.settings.call_deadline, ffi::all_stats)
            .await
    }

    async fn pin(&self, domain: Uuid, cpus: Vec<u32>) -> Result<()> {
        self.on_domain("pin", domain, self.settings.call_deadline, move |d| {
            pin::machine(d, &cpus)
        })
        .await
    }

    async fn size(&self, domain: Uuid) -> Result<Size> {
        self.read_size(domain).await
    }

    async fn set_vcpus(&self, domain: Uuid, vcpus: u16) -> Result<()> {
        self.request_vcpus(domain, vcpus).await
    }

    async fn set_memory(&self, domain: Uuid, bytes: u64) -> Result<()> {
        self.request_memory(domain, bytes).await
    }

    async fn agent(&self, domain: Uuid, command: Value, deadline: Duration) -> Result<Value> {
        self.calls.agent_command(domain, &command, deadline).await
    }

    async fn versions(&self) -> Result<Versions> {
        let context = Context {
            call: "versions",
            domain: None,
        };
        self.calls
            .run_urgent(context, self.settings.call_deadline, listing::versions)
            .await
    }

    async fn machine_types(&self) -> Result<Vec<String>> {
        let context = Context {
            call: "capabilities",
            domain: None,
        };
        let xml = self
            .calls
            .run(context, self.settings.call_deadline, |c| c.capabilities());
        Ok(read::machine_types(&xml.await?))
    }

    fn is_connected(&self) -> bool {
        self.link.session().is_ok()
    }

    fn events(&self) -> broadcast::Receiver<Event> {
        self.link.events()
    }
}
