//! Implements [`crate::Hypervisor`] on the state of the fake.
//!
//! Invariant: one lock, never held while an event is sent.
//! Failure: the errors that the real hypervisor gives in the same place.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::broadcast;
use uuid::Uuid;

use super::{FakeDomain, FakeHypervisor, Inner, absence, silence};
use crate::error::readable;
use crate::guest::AgentReply;
use crate::read::{console_file, is_emulated, machine_type};
use crate::{
    BlockCommit, BlockJob, BlockJobEnd, Cable, DomainInfo, DomainStats, DomainType, End, Error,
    Event, FailedDisk, Hypervisor, MemorySwitch, OpenFile, Pause, Power, Result, Shutdown, Size,
    State, Versions,
};

impl Inner {
    pub(super) fn check(&self) -> Result<()> {
        if self.connected {
            return Ok(());
        }
        Err(Error::Unavailable {
            reason: "disconnected by the test".to_owned(),
        })
    }

    pub(super) fn domain(&mut self, domain: Uuid) -> Result<&mut FakeDomain> {
        self.check()?;
        self.domains.get_mut(&domain).ok_or(Error::NoDomain(domain))
    }

    fn answer(&mut self, domain: Uuid, command: Value, deadline: Duration) -> Result<Value> {
        if self.domain(domain)?.state != State::Active {
            return Err(Error::NoAgent {
                reason: "domain is not running".to_owned(),
            });
        }
        self.commands.push(command);
        let Some(replies) = self.agent.as_mut() else {
            return Err(absence());
        };
        let reply = replies.pop_front().ok_or_else(|| silence(deadline))?;
        match reply.get("error") {
            Some(reason) => Err(Error::Refused {
                call: "guest agent command",
                reason: readable(&reason.to_string()),
            }),
            None => Ok(reply),
        }
    }
}

impl Hypervisor for FakeHypervisor {
    async fn define_unless(
        &self,
        xml: String,
        _given_up: impl Future<Output = ()> + Send,
    ) -> Result<()> {
        let domain = Uuid::nil();
        self.in_time("define", domain, async { self.keep_definition(xml) })
            .await
    }

    async fn start_unless(
        &self,
        domain: Uuid,
        given_up: impl Future<Output = ()> + Send,
    ) -> Result<()> {
        self.in_time("start", domain, self.begin(domain, given_up))
            .await
    }

    async fn start_paused_unless(
        &self,
        domain: Uuid,
        given_up: impl Future<Output = ()> + Send,
    ) -> Result<()> {
        self.start_unless(domain, given_up).await?;
        self.pause(domain, Some(Pause::Asked))
    }

    async fn reboot(&self, domain: Uuid, how: Shutdown) -> Result<()> {
        self.request_reboot(domain, how)
    }

    async fn reset(&self, domain: Uuid) -> Result<()> {
        let mut inner = self.lock();
        inner.domain(domain)?;
        inner.reboots.push((domain, None));
        drop(inner);
        self.emit(Event::Reset(domain));
        Ok(())
    }

    async fn suspend(&self, domain: Uuid) -> Result<()> {
        let pause = async { self.pause(domain, Some(Pause::Asked)) };
        self.in_time("suspend", domain, pause).await
    }

    async fn resume(&self, domain: Uuid) -> Result<()> {
        let resume = async { self.pause(domain, None) };
        self.in_time("resume", domain, resume).await
    }

    async fn save(&self, domain: Uuid, file: PathBuf) -> Result<()> {
        let save = async { self.write_memory(domain, file) };
        self.in_time("save", domain, save).await
    }

    async fn abort_save(&self, domain: Uuid) -> Result<()> {
        self.stop_saving(domain).map(drop)
    }

    async fn end_save(&self, domain: Uuid) -> Result<bool> {
        match self.stop_saving(domain) {
            Err(Error::NoDomain(_)) => Ok(false),
            ended => ended,
        }
    }

    async fn restore(
        &self,
        xml: String,
        file: PathBuf,
        given_up: impl Future<Output = ()> + Send,
    ) -> Result<()> {
        let restore = self.read_memory(xml, file, given_up);
        self.in_time("restore", Uuid::nil(), restore).await
    }

    async fn cable(&self, domain: Uuid, nic: String, cable: Cable) -> Result<()> {
        let mut inner = self.lock();
        let runs = inner.domain(domain)?.paused.is_none();
        inner.cables.push((nic, cable, runs));
        Ok(())
    }

    async fn power(&self, domain: Uuid) -> Result<Option<Power>> {
        let _turn = self.looks.lock().await;
        match self.lock().domain(domain) {
            Ok(found) => Ok(Some(match (found.state, found.paused) {
                (State::Inactive(_), _) => Power::Off,
                (State::Active, Some(pause)) => Power::Paused(pause),
                (State::Active, None) => Power::On,
            })),
            Err(Error::NoDomain(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn failed_disks(&self, domain: Uuid) -> Result<Vec<FailedDisk>> {
        Ok(self
            .lock()
            .domain(domain)?
            .fails
            .clone()
            .into_iter()
            .collect())
    }

    async fn switch_root(&self, domain: Uuid, file: PathBuf) -> Result<()> {
        drop(self.switches.read().await);
        self.lock().switch(domain, file)
    }

    async fn switch_root_with_memory(&self, domain: Uuid, to: MemorySwitch) -> Result<()> {
        drop(self.switches.read().await);
        self.write_memory_and_switch(domain, to).await
    }

    async fn root_file(&self, domain: Uuid) -> Result<Option<PathBuf>> {
        let files = self.lock().files(domain);
        self.switch_late(domain);
        Ok(files?.and_then(|files| files.into_iter().next()))
    }

    async fn commit_root(&self, domain: Uuid, commit: BlockCommit) -> Result<()> {
        self.lock().commit(domain, commit)
    }

    async fn pull_root(&self, domain: Uuid, _bytes_per_second: u64) -> Result<()> {
        let is_held = self.lock().holds_pull();
        if is_held {
            std::future::pending::<()>().await;
        }
        self.lock().pull(domain)
    }

    async fn flush_root(&self, domain: Uuid) -> Result<()> {
        self.lock().domain(domain).map(drop)
    }

    async fn root_job(&self, domain: Uuid) -> Result<Option<BlockJob>> {
        self.lock().job(domain)
    }

    async fn end_root_job(&self, domain: Uuid, end: BlockJobEnd) -> Result<()> {
        self.lock().end_job(domain, end)
    }

    async fn disk_files(&self, domain: Uuid) -> Result<Option<Vec<OpenFile>>> {
        let files = self.lock().files(domain)?;
        let open = |(number, path)| OpenFile {
            path,
            is_read_only: number > 0,
        };
        Ok(files.map(|files| files.into_iter().enumerate().map(open).collect()))
    }

    async fn machine_type(&self, domain: Uuid) -> Result<Option<String>> {
        match self.lock().domain(domain) {
            Ok(found) => Ok(machine_type(&found.xml)),
            Err(Error::NoDomain(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn is_emulated(&self, domain: Uuid) -> Result<Option<bool>> {
        match self.lock().domain(domain) {
            Ok(found) => Ok(is_emulated(&found.xml)),
            Err(Error::NoDomain(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn shutdown(&self, domain: Uuid, how: Shutdown) -> Result<()> {
        if how == Shutdown::Agent {
            self.order_turn().await?;
        }
        self.request_shutdown(domain, how)
    }

    async fn destroy(&self, domain: Uuid) -> Result<()> {
        let destroy = async {
            self.lock().check()?;
            self.forget_late_starts(domain);
            self.end(domain, End::Destroyed);
            Ok(())
        };
        self.in_time("destroy", domain, destroy).await
    }

    async fn undefine(&self, domain: Uuid) -> Result<()> {
        let undefine = async { self.forget(domain) };
        self.in_time("undefine", domain, undefine).await
    }

    async fn state(&self, domain: Uuid) -> Result<Option<State>> {
        let _turn = self.looks.lock().await;
        match self.lock().domain(domain) {
            Ok(found) => Ok(Some(found.state)),
            Err(Error::NoDomain(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn list(&self) -> Result<Vec<DomainInfo>> {
        let inner = self.lock();
        inner.check()?;
        let ours = inner.domains.iter().filter_map(|(uuid, domain)| {
            let mark = domain.mark.as_ref()?;
            Some(DomainInfo {
                uuid: *uuid,
                name: domain.name.clone(),
                state: domain.state,
                container: mark.container.clone(),
                installation: mark.installation.clone(),
                vm: mark.vm.clone(),
            })
        });
        Ok(ours.collect())
    }

    async fn console_file(&self, domain: Uuid) -> Result<Option<PathBuf>> {
        match self.lock().domain(domain) {
            Ok(found) => Ok(console_file(&found.xml)),
            Err(Error::NoDomain(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn stats(&self) -> Result<Vec<DomainStats>> {
        self.lock().stats_calls += 1;
        if self.lock().hangs {
            std::future::pending::<()>().await;
        }
        let inner = self.lock();
        inner.check()?;
        let active = inner
            .domains
            .iter()
            .filter(|(_, d)| d.state == State::Active);
        let stats = active.map(|(uuid, domain)| DomainStats {
            domain: *uuid,
            cpu_nanoseconds: Some(domain.cpu_nanoseconds),
        });
        Ok(stats.collect())
    }

    async fn pin(&self, domain: Uuid, cpus: Vec<u32>) -> Result<()> {
        self.lock().domain(domain)?.cpus = cpus;
        Ok(())
    }

    async fn size(&self, domain: Uuid) -> Result<Size> {
        self.lock().size(domain)
    }

    async fn set_vcpus(&self, domain: Uuid, vcpus: u16) -> Result<()> {
        self.lock().set_vcpus(domain, vcpus)
    }

    async fn set_memory(&self, domain: Uuid, bytes: u64) -> Result<()> {
        self.lock().set_memory(domain, bytes)
    }

    async fn agent(&self, domain: Uuid, command: Value, deadline: Duration) -> Result<AgentReply> {
        let pause = self.lock().agent_pause;
        if pause > deadline {
            tokio::time::sleep(deadline).await;
            return Err(silence(deadline));
        }
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        let answer = self.lock().answer(domain, command, deadline);
        answer.map(|content| AgentReply::returning(&content))
    }

    async fn versions(&self) -> Result<Versions> {
        self.lock().check()?;
        Ok(Versions {
            libvirt: "9.0.0".to_owned(),
            qemu: "7.2.22".to_owned(),
        })
    }

    async fn machine_types(&self) -> Result<Vec<String>> {
        self.lock().check()?;
        Ok(["pc-q35-7.1", "pc-q35-7.2"].map(str::to_owned).into())
    }

    async fn cpu_models(&self, _emulator: PathBuf, kind: DomainType) -> Result<Vec<String>> {
        self.lock().check()?;
        let models: &[&str] = match kind {
            DomainType::Kvm => &["EPYC", "qemu64"],
            DomainType::Qemu => &["qemu64"],
        };
        Ok(models.iter().map(ToString::to_string).collect())
    }

    async fn check_emulator(&self, _program: PathBuf) -> Result<()> {
        let inner = self.lock();
        inner.check()?;
        let refused = |reason| Error::Refused {
            call: "check emulator",
            reason,
        };
        inner.refusal.clone().map_or(Ok(()), |r| Err(refused(r)))
    }

    fn is_connected(&self) -> bool {
        self.lock().connected
    }

    fn events(&self) -> broadcast::Receiver<Event> {
        self.events.subscribe()
    }
}
