//! Starts the machine of a container.
//!
//! Invariant: before libvirt gets a call, the phase is Starting; a machine that runs
//! under a row in Starting is adopted, one that does not is undone, by the next request or at
//! start-up.
//! Failure: when a helper is missing the container stays CREATED and the call may be repeated; when
//! the machine itself cannot start the container is EXITED with reason `StartError`.

use std::time::{Duration, Instant};

use libvirt::Hypervisor;
use podspec::ContainerId;
use tapmanager::wire::StartRequest;

use super::describe::fitting_accelerator;
use crate::clock;
use crate::network::PodNetwork;
use crate::platform::Platform;
use crate::sandbox::{Sandbox, SandboxConfig};
use crate::steps::{step, trace};
use crate::vm::console;
use crate::vm::domain::xml;
use crate::vm::error::{Error, Result, hypervisor};
use crate::vm::model::Container;
use crate::vm::resources::want_size_of_pod;
use crate::vm::service::Containers;
use crate::vm::state::{Event, Phase};
use crate::vm::stops::Stop;

mod hardware;
mod settle;
mod sockets;

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
        let saved = self.saved_description(&row.spec.instance).await?;
        let accelerator = fitting_accelerator(accelerator, saved.as_deref());
        let generation = self.generation(row, sandbox, saved.as_deref()).await?;
        let uefi = self.flash(row, saved.as_deref()).await?;
        let parts = (accelerator, permit, (generation, uefi));
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
