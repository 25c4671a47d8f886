//! Records the end of a machine, and removes what only a running machine needs.
//!
//! Invariant: the log is complete before the container is EXITED; the end is recorded once, and
//! before libvirt removes the domain with the cause of the end.
//! Failure: an end that cannot be recorded is found again by reconciliation.

use std::sync::Arc;
use std::time::Duration;

use libvirt::{End, Event as HypervisorEvent, Hypervisor, State};
use podspec::ContainerId;
use service::boot_clock;
use uuid::Uuid;

use crate::clock;
use crate::files;
use crate::locks::Guard;
use crate::metadata::TableError;
use crate::platform::Platform;
use crate::vm::error::{Error, Result, hypervisor};
use crate::vm::model::{Container, Exit};
use crate::vm::service::Containers;
use crate::vm::state::{Event, Phase};

/// Exit code of whatever is killed, as a shell gives it for SIGKILL.
const KILLED: i32 = 137;

impl<P: Platform> Containers<P> {
    /// The emulator of a container ended.
    pub(in crate::vm) async fn ended(&self, id: &ContainerId, end: End) -> Result<()> {
        let killed = match end {
            End::Crashed | End::Unknown => self.was_killed_for_memory(id).await,
            End::GuestShutdown | End::Destroyed | End::Saved => false,
        };
        let unresponsive = self.unresponsive(|all| all.get(id).cloned());
        let now = boot_clock::now();
        let end = |row: &Container| exit(end, killed, unresponsive.as_deref(), row, now);
        let recorded = self.record_end(id, end).await?;
        self.unresponsive(|all| all.remove(id));
        match recorded {
            Some(row) => self.let_go(&row).await,
            None => Ok(()),
        }
    }

    /// Records the end of a container that runs, once; returns its row if it was this call that did
    /// so.
    pub(in crate::vm) async fn record_end(
        &self,
        id: &ContainerId,
        exit: impl Fn(&Container) -> Exit,
    ) -> Result<Option<Arc<Container>>> {
        // Events, stops and reconciliation may all see the same end.
        let _once = self.end_lock(id).await;
        let Some(row) = self.running(id) else {
            return Ok(None);
        };
        let finished_at = clock::now();
        self.drain(&row).await;
        let row = loop {
            let Some(row) = self.running(id) else {
                return Ok(None);
            };
            let exit = exit(&row);
            let record = |row: &mut Container| {
                row.finished_at = finished_at;
                row.exit = Some(exit);
            };
            match self.move_on(&row, Event::Ended, "ended", record).await {
                // A stop request was recorded meanwhile.
                Err(Error::Table(TableError::Raced { .. })) => {}
                recorded => break recorded?,
            }
        };
        if let Some(Exit { code, reason, .. }) = &row.exit {
            tracing::info!(container = %id, code, reason, "container exited");
        }
        faultpoint::point("vm.stop.exited");
        Ok(Some(row))
    }

    fn running(&self, id: &ContainerId) -> Option<Arc<Container>> {
        let row = self.parts.table.get(id)?;
        row.phase.runs().then_some(row)
    }

    /// Acts on events of the hypervisor; unknown domains belong to other programs.
    pub async fn on_event(self: &Arc<Self>, event: HypervisorEvent) {
        match event {
            HypervisorEvent::Stopped(domain, end) => {
                let Some(row) = self.running_as(domain) else {
                    return;
                };
                if let Err(e) = self.on_stopped(&row, end).await {
                    tracing::warn!(container = %row.id, error = crate::one_line(&e), "container exit not recorded");
                }
            }
            HypervisorEvent::Reset(domain) => {
                if let Some(row) = self.running_as(domain) {
                    self.note_reset(&row);
                    self.guests.end(&row.id);
                    self.booted_again(&row).await;
                    self.settle_reset(&row).await;
                }
            }
            HypervisorEvent::AgentConnected(domain) => {
                if let Some(row) = self.running_as(domain) {
                    self.catch_up(&row.id);
                }
            }
            HypervisorEvent::Connected
            | HypervisorEvent::Disconnected
            | HypervisorEvent::Started(_)
            | HypervisorEvent::Power(_) => {}
        }
    }

    pub(in crate::vm) fn running_as(&self, domain: Uuid) -> Option<Arc<Container>> {
        let mut all = self.parts.table.all().into_iter();
        all.find(|row| row.phase.runs() && row.boots() && row.domain() == domain)
    }

    async fn on_stopped(&self, row: &Container, end: End) -> Result<()> {
        let state = self.parts.hypervisor.state(row.domain()).await;
        match state.map_err(hypervisor("look for"))? {
            // The event is of an earlier start, which was undone.
            Some(State::Active) => Ok(()),
            // The event says more than the state does.
            Some(State::Inactive(_)) | None => self.ended(&row.id, end).await,
        }
    }

    /// Queries libvirt whether the machine still runs, and records its end if not.
    pub(in crate::vm) async fn end_if_inactive(&self, row: &Container) -> Result<()> {
        let id = &row.id;
        // The domain of a virtual machine is that of the container that has its disk.
        if row.vm().is_some() && !self.owns_domain(row) {
            return self.ended(id, End::Unknown).await;
        }
        let state = self.parts.hypervisor.state(row.domain()).await;
        match state.map_err(hypervisor("look for"))? {
            Some(State::Active) => Ok(()),
            Some(State::Inactive(end)) => self.ended(id, end).await,
            None => self.ended(id, End::Unknown).await,
        }
    }

    /// Writes what is left of the console to the log and stops following.
    pub(in crate::vm) async fn drain(&self, row: &Container) {
        if row.is_process() {
            return;
        }
        if let Err(e) = self.follow(row).await {
            tracing::warn!(container = %row.id, error = crate::one_line(&e), "console not reopened");
        }
        if let Err(e) = self.consoles.finish(&row.id).await {
            tracing::warn!(
                container = %row.id,
                error = crate::one_line(&e),
                "end of the console output not written"
            );
        }
    }

    /// Removes domain, console file and sockets of a container whose machine is not to run, and
    /// gives the disk back that it has; may be repeated, and waits for another call that does the
    /// same. A machine that is left alone keeps all of it.
    pub(in crate::vm) async fn let_go(&self, row: &Container) -> Result<()> {
        if self.is_left_alone(row) {
            return Ok(());
        }
        // Else the slower of two could remove what the next container has taken meanwhile.
        let _turn = self
            .parts
            .locks
            .lock(&format!("release of {}", row.id))
            .await;
        if row.is_process() {
            if !self.is_followed(&row.id) {
                self.forget_session(row).await;
            }
            if let Err(e) = self.detach_volumes(row).await {
                // They stay until the pod machine ends.
                tracing::warn!(container = %row.id, error = crate::one_line(&e), "volumes of a process stay mounted");
            }
            return self.remove_process_files(&row.id).await;
        }
        self.clean_up(row).await?;
        self.give_disk_back(row).await
    }

    /// Lets go of what a container still has whose end is recorded: a client that saw it EXITED
    /// may come with the next container before the last steps of the end are done.
    pub(in crate::vm) async fn finish_end(&self, id: &ContainerId) -> Result<()> {
        match self.parts.table.get(id) {
            Some(row) if row.phase == Phase::Exited => self.let_go(&row).await,
            _ => Ok(()),
        }
    }

    /// Removes domain, console file and sockets of a container whose machine is not to run; may be
    /// repeated.
    pub(in crate::vm) async fn clean_up(&self, row: &Container) -> Result<()> {
        {
            let _turn = self.domain_turn(row).await;
            if self.owns_domain(row) {
                self.forget_domain(row.domain()).await?;
            }
        }
        self.remove_console(row).await
    }

    /// Held from the look whether a domain is a container's until it was destroyed: no other
    /// container takes the disk of their virtual machine meanwhile, and with it the domain's UUID.
    pub(in crate::vm) async fn domain_turn(&self, row: &Container) -> Option<Guard> {
        match row.vm() {
            Some(vm) => Some(self.disk_lock(vm).await),
            None => None,
        }
    }

    /// Removes console file and sockets; may be repeated.
    pub(in crate::vm) async fn remove_console(&self, row: &Container) -> Result<()> {
        self.end_shares(row);
        self.servers.forget(&row.id);
        self.remove_share_files(row).await?;
        crate::vm::console::remove(&self.console(row)).await?;
        let sockets = self.paths.sockets(&row.id);
        match tokio::fs::remove_dir_all(&sockets).await {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(files::failed("remove", &sockets)(e).into())
            }
            _ => Ok(()),
        }
    }

    /// Removes a domain, and kills its emulator if it runs against all expectation.
    pub(in crate::vm) async fn forget_domain(&self, domain: Uuid) -> Result<()> {
        let driver = &self.parts.hypervisor;
        driver.destroy(domain).await.map_err(hypervisor("stop"))?;
        let undefined = driver.undefine(domain).await;
        undefined.map_err(hypervisor("undefine"))
    }
}

/// Whether the grace period of a stop is over, so long after the start of the node.
fn is_due(row: &Container, now: Duration) -> bool {
    row.kill_at.is_none_or(|at| at.left_at(now).is_zero())
}

/// The end as clients see it, so long after the start of the node.
fn exit(
    end: End,
    killed_for_memory: bool,
    unresponsive: Option<&str>,
    row: &Container,
    now: Duration,
) -> Exit {
    let error = |message: &str| Exit {
        code: KILLED,
        reason: "Error".to_owned(),
        message: message.to_owned(),
    };
    match end {
        End::Crashed | End::Unknown if killed_for_memory => Exit {
            code: KILLED,
            reason: "OOMKilled".to_owned(),
            message: "the kernel killed the emulator because the pod had used up its memory limit"
                .to_owned(),
        },
        End::GuestShutdown => Exit {
            code: 0,
            reason: "Completed".to_owned(),
            message: String::new(),
        },
        End::Saved => Exit {
            code: 0,
            reason: "Saved".to_owned(),
            message: "the memory of the virtual machine was saved".to_owned(),
        },
        End::Destroyed if let Some(reason) = unresponsive => error(&format!(
            "killed: the guest is paused and could not power off: {reason}"
        )),
        End::Destroyed if row.phase == Phase::Stopping && is_due(row, now) => {
            error("killed: the guest had not powered off when the grace period ended")
        }
        End::Destroyed => error("killed: another client destroyed the libvirt domain"),
        End::Crashed => error("the emulator died"),
        End::Unknown => {
            error("the emulator ended while the daemon was not connected; the cause is unknown")
        }
    }
}

#[cfg(test)]
mod tests {
    use podspec::{CpuModel, Machine, Mib, SandboxId, Vcpus};
    use service::boot_clock::Deadline;

    use super::*;
    use crate::vm::model::Spec;

    fn row(phase: Phase, kill_at: u64) -> Container {
        let machine = Machine {
            vcpus: Vcpus::ONE,
            memory: Mib::new(64),
            max_vcpus: None,
            max_memory: None,
            cpu_model: CpuModel::Default,
            machine_type: podspec::MachineType::default(),
            firmware: None,
            root_size: None,
            system_uuid: None,
            guest_agent: podspec::GuestAgent::Auto,
        };
        Container {
            id: ContainerId::generate(),
            sandbox: SandboxId::generate(),
            phase,
            created_at: 1,
            started_at: 2,
            finished_at: 0,
            kill_at: Some(Deadline::at(Duration::from_secs(kill_at))),
            held: false,
            probe: None,
            exit: None,
            oom_kills: 0,
            updated: None,
            wanted: None,
            spec: Spec {
                seed: false,
                sysprep: false,
                uefi: false,
                shares: Vec::new(),
                user: None,
                part: Default::default(),
                config: Default::default(),
                machine,
                instance: Default::default(),
                blocks: Vec::new(),
                file_disks: Vec::new(),
                image_digest: String::new(),
                log_path: "/log".into(),
                unsupported: Vec::new(),
            },
        }
    }

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_requested_power_off_is_success() {
        for phase in [Phase::Running, Phase::Stopping] {
            let exit = exit(End::GuestShutdown, true, None, &row(phase, 10), at(5));
            assert_eq!(
                (exit.code, exit.reason.as_str(), exit.message.as_str()),
                (0, "Completed", "")
            );
        }
    }

    #[test]
    fn every_other_end_has_code_137_and_a_reason() {
        let ends = [
            (End::Destroyed, Phase::Stopping, 10, "grace period"),
            (
                End::Destroyed,
                Phase::Stopping,
                9,
                "another client destroyed",
            ),
            (
                End::Destroyed,
                Phase::Running,
                20,
                "another client destroyed",
            ),
            (End::Crashed, Phase::Running, 20, "emulator died"),
            (End::Unknown, Phase::Running, 20, "cause is unknown"),
        ];
        for (end, phase, now, word) in ends {
            let exit = exit(end, false, None, &row(phase, 10), at(now));
            assert_eq!((exit.code, exit.reason.as_str()), (137, "Error"));
            assert!(exit.message.contains(word), "{}", exit.message);
        }
    }

    #[test]
    fn a_kill_of_ours_is_never_taken_for_want_of_memory() {
        for (end, reason) in [
            (End::Crashed, "OOMKilled"),
            (End::Unknown, "OOMKilled"),
            (End::Destroyed, "Error"),
        ] {
            let exit = exit(end, true, None, &row(Phase::Stopping, 10), at(20));
            assert_eq!((exit.code, exit.reason.as_str()), (137, reason));
        }
    }
}
