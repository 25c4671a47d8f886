//! Starts the machine of a container.
//!
//! Invariant: before libvirt is requested anything, the phase is Starting; a machine that runs
//! under a row in Starting is adopted, one that does not is undone, by the next request or at
//! start-up.
//! Failure: when a helper is missing the container stays CREATED and the call may be repeated; when
//! the machine itself cannot start the container is EXITED with reason `StartError`.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libvirt::{End, Hypervisor, State};
use podspec::{ContainerId, FastDeploy};
use tapmanager::wire::{Permit, StartRequest};
use uuid::Uuid;

use super::describe::{Parts, describe, fitting_accelerator};
use crate::clock;
use crate::files;
use crate::images::Format;
use crate::network::PodNetwork;
use crate::platform::Platform;
use crate::sandbox::{Sandbox, SandboxConfig};
use crate::steps::{step, trace};
use crate::vm::console;
use crate::vm::disks::overlay::fast_deploy;
use crate::vm::domain::{Disk, DiskDevice, DiskFormat, DiskSource, DomainSpec, xml};
use crate::vm::error::{Error, Result, hypervisor};
use crate::vm::host::accelerator::Accelerator;
use crate::vm::model::{Container, Exit};
use crate::vm::resources::want_size_of_pod;
use crate::vm::service::Containers;
use crate::vm::state::{Event, Phase};
use crate::vm::stops::Stop;
use crate::vm::users::Owner;

/// Time for the tapmanager to show that it is there.
const ANSWER: Duration = Duration::from_secs(5);

/// How long a start waited for libvirt.
#[derive(Debug, Clone, Copy)]
struct Waits {
    define: Duration,
    start: Duration,
}

impl<P: Platform> Containers<P> {
    pub(in crate::vm) async fn start_to_end(&self, id: &ContainerId) -> Result<()> {
        let sandbox = self.row(id)?.sandbox.clone();
        let _lock = self.parts.locks.lock(sandbox.as_str()).await;
        self.start_locked(id).await
    }

    /// Starts a machine, unless it runs; the caller holds the sandbox's lock.
    pub(in crate::vm) async fn start_locked(&self, id: &ContainerId) -> Result<()> {
        let mut row = self.row(id)?;
        let sandbox = row.sandbox.clone();
        if row.phase == Phase::Starting {
            row = self.settle_starting(&row).await?;
        }
        if row.phase == Phase::Running {
            return Ok(());
        }
        let sandbox = self.ready_sandbox(&sandbox)?;
        if !row.boots() {
            return self.hold_place(&row).await;
        }
        self.check_disk(&row)?;
        self.check_landlock().await?;
        self.check_connected("start").await?;
        let begun = Instant::now();
        let oom_kills = self.oom_kills(&sandbox).await;
        let row = self
            .move_on(&row, Event::StartRequested, "started", |row| {
                row.oom_kills = oom_kills;
            })
            .await?;
        faultpoint::point("vm.start.recorded");
        let waits = match self.launch(&row, &sandbox).await {
            Ok(waits) => waits,
            Err(e) => {
                self.parts.metrics.booted(begun, false);
                return Err(self.failed_start(&row, e).await);
            }
        };
        self.parts.metrics.booted(begun, true);
        faultpoint::point("vm.start.started");
        let now = clock::now();
        let row = self
            .move_on(&row, Event::Started, "started", |row| {
                row.started_at = now;
                want_size_of_pod(row);
            })
            .await?;
        faultpoint::point("vm.start.running");
        let took = begun.elapsed();
        let Waits { define, start } = waits;
        tracing::info!(container = %id, ?took, ?define, ?start, "container started");
        let score = row.resources().oom_score_adj;
        if score != 0 {
            self.prefer_for_kill(&row, score).await;
        }
        // Its end may have come before the start was recorded.
        if let Err(e) = self.end_if_inactive(&row).await {
            tracing::warn!(container = %id, error = crate::one_line(&e), "container start not verified");
        }
        Ok(())
    }

    /// Starts the machine; returns what libvirt took of the time.
    async fn launch(&self, row: &Container, sandbox: &Sandbox) -> Result<Waits> {
        let accelerator = self.choose_accelerator().await?;
        let request = StartRequest {
            id: sandbox.id.to_string(),
            cgroup_parent: sandbox.config.cgroup_parent.clone(),
            memory_bytes: least_memory(&sandbox.config, self.settings.memory_overhead),
            uid: row.spec.user,
        };
        let permit = self.parts.network.prepare_start(request).await;
        let permit = permit.map_err(|source| Error::Network {
            id: sandbox.id.clone(),
            source,
        })?;
        faultpoint::point("vm.start.token");
        self.prepare_sockets(row).await?;
        self.serve_shares(row, sandbox).await?;
        let console = self.offer_console(row).await;
        let files = self.offer_files(row).await?;
        self.follow(row).await?;
        self.give_sockets(row).await?;
        let saved = self.saved_description(row).await?;
        let accelerator = fitting_accelerator(accelerator, saved.as_deref());
        let generation = self.generation(row, sandbox, saved.as_deref()).await?;
        let parts = (accelerator, permit, generation);
        let spec = self.domain(row, sandbox, parts, saved.as_deref())?;
        let xml = xml::to_xml(&spec).map_err(Error::Describe)?;
        let requested = Instant::now();
        // The stop of the pod ends the waits for libvirt's turns.
        let stop = self.stops.watch(&row.sandbox);
        let driver = &self.parts.hypervisor;
        let defined = driver.define_unless(xml.clone(), stop.requested());
        trace(step!("libvirt.define", container = %row.id), defined)
            .await
            .map_err(|e| self.unless_stopped(row, "define", e))?;
        let define = requested.elapsed();
        faultpoint::point("vm.start.defined");
        let requested = Instant::now();
        let run = self.run(row, xml, &stop);
        let started = trace(step!("libvirt.start", container = %row.id), run).await;
        drop(stop);
        if let Err(refused) = started {
            return Err(self.error_of_start(row, refused).await);
        }
        let start = requested.elapsed();
        let is_collected = console.is_some_and(|offer| offer.is_over());
        if !(is_collected && self.is_typed_at(row).await) {
            tracing::warn!(container = %row.id, "console stays at the socket of libvirt");
        }
        drop(files);
        Ok(Waits { define, start })
    }

    /// Lets libvirt start the emulator.
    async fn run(&self, row: &Container, xml: String, stop: &Stop) -> Result<()> {
        let instance = &row.spec.instance;
        if let Some(vm) = instance.vm
            && instance.restore
        {
            return self.resume_memory(row, vm, xml, stop).await;
        }
        let driver = &self.parts.hypervisor;
        let domain = row.domain();
        let started = if instance.start_paused {
            driver.start_paused_unless(domain, stop.requested()).await
        } else {
            driver.start_unless(domain, stop.requested()).await
        };
        started.map_err(|e| self.unless_stopped(row, "start", e))
    }

    /// What a call of a start failed with: where the stop of the pod is requested, that is the cause.
    pub(in crate::vm) fn unless_stopped(
        &self,
        row: &Container,
        call: &'static str,
        error: libvirt::Error,
    ) -> Error {
        if self.stops.is_requested(&row.sandbox) {
            return Error::Stopped(row.id.clone());
        }
        hypervisor(call)(error)
    }

    fn domain(
        &self,
        row: &Container,
        sandbox: &Sandbox,
        (accelerator, permit, generation): (Accelerator, Permit, Option<Uuid>),
        saved: Option<&str>,
    ) -> Result<DomainSpec> {
        let further = row.spec.blocks.iter().filter(|disk| !disk.is_root());
        let disks = further
            .map(|disk| self.block_disk(row, disk))
            .chain(self.further_files(row).map(Ok))
            .chain(self.seed_disk(row).map(Ok));
        let parts = Parts {
            settings: &self.settings,
            paths: &self.paths,
            accelerator,
            permit,
            saved,
            root: self.root(row, sandbox)?,
            disks: disks.collect::<Result<_>>()?,
            layers: row.vm().map(|vm| self.parts.disks.layers_directory(vm)),
            disk_bytes: self.disk_bytes(row),
            generation,
            owner: row.spec.user.map(|_| self.owner(row)),
        };
        Ok(describe(row, sandbox, parts))
    }

    fn root(&self, row: &Container, sandbox: &Sandbox) -> Result<Disk> {
        if let Some(disk) = row.root_block() {
            return self.block_disk(row, disk);
        }
        if let Some(disk) = self.root_in_file(row) {
            return Ok(disk);
        }
        if let Some(vm) = row.vm() {
            return self.root_of(vm);
        }
        let image = self.parts.images.pinned(sandbox.id.as_str());
        let image = image.ok_or_else(|| Error::ImageLost(sandbox.id.clone()))?;
        let path = self.paths.root_disk(&sandbox.id);
        let source = match fast_deploy(sandbox)? {
            FastDeploy::Direct => DiskSource::File(path),
            FastDeploy::Linked => DiskSource::Overlay {
                path,
                base: image.path,
                base_format: match image.format {
                    Format::Qcow2 => DiskFormat::Qcow2,
                    Format::Raw => DiskFormat::Raw,
                },
            },
        };
        Ok(Disk {
            device: DiskDevice::Virtio,
            source,
            format: DiskFormat::Qcow2,
            discard: true,
            read_only: false,
            serial: None,
        })
    }

    /// A new directory for the machine's sockets. The machine's user cannot change it until everything
    /// that the daemon makes there is made: nothing of an earlier start is left in it.
    async fn prepare_sockets(&self, row: &Container) -> Result<()> {
        let directory = self.paths.sockets(&row.id);
        let path = directory.clone();
        let prepare = move || {
            match std::fs::remove_dir_all(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            DirBuilder::new().recursive(true).mode(0o700).create(&path)
        };
        let done = tokio::task::spawn_blocking(prepare)
            .await
            .map_err(crate::tasks::Aborted::from)?;
        Ok(done.map_err(files::failed("prepare", &directory))?)
    }

    /// Lets QEMU make its sockets in the directory. From here on no name in it is followed.
    async fn give_sockets(&self, row: &Container) -> Result<()> {
        let directory = self.paths.sockets(&row.id);
        let Owner { uid, gid } = self.owner(row);
        let path = directory.clone();
        let give = move || std::os::unix::fs::lchown(&path, Some(uid), Some(gid));
        let done = tokio::task::spawn_blocking(give)
            .await
            .map_err(crate::tasks::Aborted::from)?;
        Ok(done.map_err(files::failed("prepare", &directory))?)
    }

    /// Follows the console of a container into its log, unless that is done already. The caller
    /// holds the sandbox's lock, or the end's once the machine runs, so that no follower starts for
    /// an ended machine.
    pub(in crate::vm) async fn follow(&self, row: &Container) -> Result<()> {
        Ok(self.consoles.follow(&row.id, self.console(row)).await?)
    }

    /// Whether an emulator reads what clients of its console type; the daemon has closed its own
    /// end.
    async fn is_typed_at(&self, row: &Container) -> bool {
        matches!(self.consoles.attach(&row.id).await, Ok(Some(_)))
    }

    pub(in crate::vm) fn console(&self, row: &Container) -> console::Paths {
        console::Paths {
            raw: self.paths.console_file(&row.id),
            log: row.spec.log_path.clone(),
        }
    }

    /// Undoes a start that failed; decides whether it may be repeated.
    async fn failed_start(&self, row: &Container, error: Error) -> Error {
        let id = &row.id;
        // The tapmanager may have restarted during the hand-off.
        let repeat = error.is_transient() || !self.network_answers().await;
        let settled = if repeat {
            self.undo_start(row).await.map(drop)
        } else {
            self.record_start_error(row, &error).await
        };
        if let Err(e) = settled {
            tracing::warn!(
                container = %id,
                error = crate::one_line(&e),
                "failed container start not settled yet"
            );
        }
        tracing::warn!(container = %id, repeat, error = crate::one_line(&error), "container start failed");
        error
    }

    async fn network_answers(&self) -> bool {
        let status = tokio::time::timeout(ANSWER, self.parts.network.status());
        matches!(status.await, Ok(Ok(_)))
    }

    async fn record_start_error(&self, row: &Container, error: &Error) -> Result<()> {
        let exit = Exit::never_ran(crate::one_line(error));
        self.drain(row).await;
        let now = clock::now();
        let ended = |row: &mut Container| {
            row.finished_at = now;
            row.exit = Some(exit);
        };
        let row = self.move_on(row, Event::Ended, "ended", ended).await?;
        self.let_go(&row).await
    }

    /// Back to CREATED, with nothing left of the machine.
    async fn undo_start(&self, row: &Container) -> Result<Arc<Container>> {
        {
            let _turn = self.domain_turn(row).await;
            if self.owns_domain(row) {
                let destroyed = self.parts.hypervisor.destroy(row.domain()).await;
                destroyed.map_err(hypervisor("stop"))?;
            }
        }
        self.drain(row).await;
        self.clean_up(row).await?;
        self.move_on(row, Event::StartUndone, "given back", |_| {})
            .await
    }

    /// Ends a start that was cut short, for a stop; the caller holds the sandbox's lock. A guest that
    /// was restored and has not run keeps its memory.
    pub(in crate::vm) async fn give_start_up(&self, row: &Container) -> Result<Arc<Container>> {
        if row.spec.instance.restore && self.has_unused_memory(row) {
            return self.undo_start(row).await;
        }
        self.settle_starting(row).await
    }

    /// Finishes or undoes a start that was cut short; the caller holds the sandbox's lock.
    pub(in crate::vm) async fn settle_starting(&self, row: &Container) -> Result<Arc<Container>> {
        if !row.boots() {
            return self.undo_start(row).await;
        }
        self.check_connected("look for").await?;
        let state = self.parts.hypervisor.state(row.domain()).await;
        let state = state.map_err(hypervisor("look for"))?;
        match state {
            Some(State::Active) => {
                self.follow(row).await?;
                self.watch_servers(row).await;
                self.settle_resume(row).await?;
            }
            // It ran, and ended before its start was recorded.
            Some(State::Inactive(End::GuestShutdown | End::Crashed | End::Saved)) => {}
            // It was never started, or destroyed by an undoing that was cut short.
            Some(State::Inactive(End::Destroyed | End::Unknown)) | None => {
                return self.undo_start(row).await;
            }
        }
        let now = clock::now();
        let row = self
            .move_on(row, Event::Started, "adopted", |row| {
                row.started_at = now;
                want_size_of_pod(row);
            })
            .await?;
        tracing::info!(container = %row.id, "running container adopted");
        if let Some(State::Inactive(end)) = state {
            self.ended(&row.id, end).await?;
        }
        Ok(row)
    }
}

/// The memory that a pod needs when no RuntimeClass gives it any for QEMU; 0: its limit stays, or
/// it has none.
pub(in crate::vm) fn least_memory(pod: &SandboxConfig, overhead: u64) -> u64 {
    let limit = u64::try_from(pod.resources.memory_limit).unwrap_or(0);
    let is_routed_by_class = !pod.runtime_handler.is_empty();
    if limit == 0 || is_routed_by_class || pod.memory_overhead > 0 {
        return 0;
    }
    limit.saturating_add(overhead)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_limit_without_a_runtime_class_and_overhead_is_raised() {
        let pod = |handler: &str, limit, overhead| SandboxConfig {
            runtime_handler: handler.to_owned(),
            resources: podspec::PodResources {
                memory_limit: limit,
                ..podspec::PodResources::default()
            },
            memory_overhead: overhead,
            ..SandboxConfig::default()
        };
        assert_eq!(least_memory(&pod("", 100, 0), 7), 107);
        assert_eq!(least_memory(&pod("", 0, 0), 7), 0);
        assert_eq!(least_memory(&pod("", -1, 0), 7), 0);
        assert_eq!(least_memory(&pod("", 100, 5), 7), 0);
        assert_eq!(least_memory(&pod("vmlet", 100, 0), 7), 0);
    }
}
