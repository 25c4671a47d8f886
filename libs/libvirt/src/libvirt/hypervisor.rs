//! The calls of [`Hypervisor`], each with its lane and its deadline.
//!
//! Invariant: a call that changes something waits for its turn; one whose answer is of use for a short time is a look.
//! Failure: libvirt's own error; a domain that is gone is success where that is what the call is for.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::broadcast;
use uuid::Uuid;
use virt::connect::Connect;
use virt::domain::Domain;
use virt::error::ErrorNumber;
use virt::sys;

use super::domains::forget;
use super::{
    Access, Key, Lane, Libvirt, Plan, absent_is_fine, find, listing, memory, monitor, pin,
    unless_off,
};
use crate::guest::AgentReply;
use crate::{
    BlockCommit, BlockJob, BlockJobEnd, Cable, DomainInfo, DomainStats, DomainType, Event,
    FailedDisk, Hypervisor, MemorySwitch, OpenFile, Power, Result, Shutdown, Size, State, Versions,
    capabilities, event, ffi, read,
};

impl Hypervisor for Libvirt {
    async fn define_unless(
        &self,
        xml: String,
        given_up: impl Future<Output = ()> + Send,
    ) -> Result<()> {
        let plan = self.change("define", None);
        let define = move |c: &Connect| c.define_domain_xml(&xml).map(drop);
        self.calls.run_unless(plan, define, given_up).await
    }

    async fn start_unless(
        &self,
        domain: Uuid,
        given_up: impl Future<Output = ()> + Send,
    ) -> Result<()> {
        let start = move |c: &Connect| find(c, domain)?.create();
        let plan = self.starting(domain);
        self.calls.run_unless(plan, start, given_up).await
    }

    async fn start_paused_unless(
        &self,
        domain: Uuid,
        given_up: impl Future<Output = ()> + Send,
    ) -> Result<()> {
        let flags = sys::VIR_DOMAIN_START_PAUSED;
        let start = move |c: &Connect| find(c, domain)?.create_with_flags(flags);
        let plan = self.starting(domain);
        self.calls.run_unless(plan, start, given_up).await
    }

    async fn reboot(&self, domain: Uuid, how: Shutdown) -> Result<()> {
        match how {
            Shutdown::Agent => self.calls.agent_reboot(domain).await,
            Shutdown::Acpi => {
                let flag = sys::VIR_DOMAIN_REBOOT_ACPI_POWER_BTN;
                self.calls.rebooting.add(domain);
                self.ask_emulator("reboot", domain, move |d| d.reboot(flag))
                    .await
            }
        }
    }

    async fn reset(&self, domain: Uuid) -> Result<()> {
        self.ask_emulator("reset", domain, Domain::reset).await
    }

    async fn suspend(&self, domain: Uuid) -> Result<()> {
        self.ask_emulator("suspend", domain, Domain::suspend).await
    }

    async fn resume(&self, domain: Uuid) -> Result<()> {
        self.ask_emulator("resume", domain, memory::resume).await
    }

    async fn save(&self, domain: Uuid, file: PathBuf) -> Result<()> {
        self.calls.known.remove(domain);
        self.write_memory("save", domain, move |d| ffi::save(d, &file))
            .await
    }

    async fn abort_save(&self, domain: Uuid) -> Result<()> {
        if self.calls.waiting_saves.remove(domain) {
            return Ok(());
        }
        self.ask_emulator("abort", domain, ffi::abort_job).await
    }

    async fn end_save(&self, domain: Uuid) -> Result<bool> {
        let end = |d: &Domain| match ffi::abort_job(d) {
            Ok(()) => Ok(true),
            // There is no such job, or no emulator.
            Err(error) if error.code().is(ErrorNumber::OperationInvalid) => Ok(false),
            Err(error) => Err(error),
        };
        match self.ask_emulator("abort", domain, end).await {
            Err(crate::Error::NoDomain(_)) => Ok(false),
            ended => ended,
        }
    }

    async fn restore(
        &self,
        xml: String,
        file: PathBuf,
        given_up: impl Future<Output = ()> + Send,
    ) -> Result<()> {
        let plan = self.moving_memory("restore", None);
        let restore = move |c: &Connect| memory::restore(c, &xml, &file);
        self.calls.run_unless(plan, restore, given_up).await
    }

    async fn cable(&self, domain: Uuid, nic: String, cable: Cable) -> Result<()> {
        let command = monitor::cable(&nic, cable);
        let reply = self.ask_emulator("set link", domain, move |d| {
            d.qemu_monitor_command(&command, 0)
        });
        monitor::check("set link", &reply.await?)
    }

    async fn power(&self, domain: Uuid) -> Result<Option<Power>> {
        let plan = self.look("state", Some(domain));
        match self.about(domain, plan, ffi::state).await {
            Ok((state, reason)) => Ok(Some(event::power(state, reason))),
            Err(crate::Error::NoDomain(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn failed_disks(&self, domain: Uuid) -> Result<Vec<FailedDisk>> {
        // libvirt asks the emulator, which may hang. As with every look, a late answer is of no use.
        let plan = Plan {
            lane: Lane::Emulators,
            access: Access::Alone(Key::Emulator(domain)),
            ..self.look("look at disks", Some(domain))
        };
        self.about(domain, plan, ffi::failed_disks).await
    }

    async fn switch_root(&self, domain: Uuid, file: PathBuf) -> Result<()> {
        self.switch_first_disk(domain, file).await
    }

    async fn switch_root_with_memory(&self, domain: Uuid, to: MemorySwitch) -> Result<()> {
        self.switch_with_memory(domain, to).await
    }

    async fn root_file(&self, domain: Uuid) -> Result<Option<PathBuf>> {
        self.first_disk(domain).await
    }

    async fn commit_root(&self, domain: Uuid, commit: BlockCommit) -> Result<()> {
        self.commit_first_disk(domain, commit).await
    }

    async fn pull_root(&self, domain: Uuid, bytes_per_second: u64) -> Result<()> {
        self.pull_first_disk(domain, bytes_per_second).await
    }

    async fn flush_root(&self, domain: Uuid) -> Result<()> {
        self.flush_first_disk(domain).await
    }

    async fn root_job(&self, domain: Uuid) -> Result<Option<BlockJob>> {
        self.first_disk_job(domain).await
    }

    async fn end_root_job(&self, domain: Uuid, end: BlockJobEnd) -> Result<()> {
        self.end_first_disk_job(domain, end).await
    }

    async fn disk_files(&self, domain: Uuid) -> Result<Option<Vec<OpenFile>>> {
        self.open_files(domain).await
    }

    async fn machine_type(&self, domain: Uuid) -> Result<Option<String>> {
        Ok(self
            .description(domain)
            .await?
            .as_deref()
            .and_then(read::machine_type))
    }

    async fn is_emulated(&self, domain: Uuid) -> Result<Option<bool>> {
        Ok(self
            .description(domain)
            .await?
            .as_deref()
            .and_then(read::is_emulated))
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
        let plan = Plan {
            lane: Lane::Kills,
            access: Access::Alone(Key::Kill(domain)),
            ..self.change("destroy", Some(domain))
        };
        let done = self.about(domain, plan, |d| unless_off(d, d.destroy()));
        absent_is_fine(done.await)
    }

    async fn undefine(&self, domain: Uuid) -> Result<()> {
        self.calls.known.remove(domain);
        self.calls.rebooting.remove(domain);
        self.calls.late.remove(domain);
        self.calls.namespaces.remove(domain);
        // A start that is given up is undone without a wait for other starts.
        let plan = Plan {
            lane: Lane::Removals,
            ..self.change("undefine", Some(domain))
        };
        let done = self.about(domain, plan, |d| {
            // libvirt would turn a running domain into one that it forgets at its end.
            if d.is_active()? {
                Ok(false)
            } else {
                forget(d).map(|()| true)
            }
        });
        absent_is_fine(done.await.and_then(|forgotten| {
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
        let plan = self.look("state", Some(domain));
        match self.about(domain, plan, ffi::state).await {
            Ok((state, reason)) => Ok(Some(event::state(state, reason))),
            Err(crate::Error::NoDomain(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn list(&self) -> Result<Vec<DomainInfo>> {
        let plan = self.look("list", None);
        self.calls.run(plan, listing::ours).await
    }

    async fn console_file(&self, domain: Uuid) -> Result<Option<PathBuf>> {
        Ok(self
            .description(domain)
            .await?
            .as_deref()
            .and_then(read::console_file))
    }

    async fn stats(&self) -> Result<Vec<DomainStats>> {
        let plan = self.look("stats", None);
        self.calls.run(plan, ffi::all_stats).await
    }

    async fn pin(&self, domain: Uuid, cpus: Vec<u32>) -> Result<()> {
        self.ask_emulator("pin", domain, move |d| pin::machine(d, &cpus))
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

    async fn agent(&self, domain: Uuid, command: Value, deadline: Duration) -> Result<AgentReply> {
        self.calls.agent_command(domain, &command, deadline).await
    }

    fn set_namespace(&self, domain: Uuid, namespace: &Arc<str>) {
        self.calls.namespaces.set(domain, namespace);
    }

    async fn versions(&self) -> Result<Versions> {
        let plan = self.look("versions", None);
        self.calls.run(plan, listing::versions).await
    }

    async fn machine_types(&self) -> Result<Vec<String>> {
        let plan = self.change("capabilities", None);
        let xml = self.calls.run(plan, |c| c.capabilities());
        Ok(capabilities::machine_types(&xml.await?))
    }

    async fn cpu_models(&self, emulator: PathBuf, kind: DomainType) -> Result<Vec<String>> {
        let plan = self.change("domain capabilities", None);
        let look = move |c: &Connect| listing::of_emulator(c, &emulator, Some(kind));
        let xml = self.calls.run(plan, look).await?;
        Ok(capabilities::cpu_models(&xml))
    }

    async fn check_emulator(&self, program: PathBuf) -> Result<()> {
        let plan = self.change("check emulator", None);
        let check = move |c: &Connect| listing::of_emulator(c, &program, None);
        self.calls.run(plan, check).await.map(drop)
    }

    fn is_connected(&self) -> bool {
        self.link.session().is_ok()
    }

    fn events(&self) -> broadcast::Receiver<Event> {
        self.link.events()
    }
}
