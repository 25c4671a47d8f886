//! Creates a process and, before the first one of a pod, the pod machine.
//!
//! Invariant: what the process is started with is in a file of its own, readable by root only, and
//! never in the database: environment variables may be secrets.
//! Failure: a container that is refused leaves no row of its own; the pod machine stays, for the
//! next one.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use guestapi::Setting;
use podspec::{ContainerId, GuestAgent, SandboxId};
use prost::Message;

use super::{limits, seccomp::Profile};
use crate::files;
use crate::guest::{Start, View};
use crate::platform::Platform;
use crate::sandbox::{DnsConfig, Sandbox, SandboxConfig};
use crate::vm::disks::seed::SeedData;
use crate::vm::error::Result;
use crate::vm::lifecycle::Conflict;
use crate::vm::lifecycle::log_path;
use crate::vm::lifecycle::request::machine;
use crate::vm::model::{Container, ContainerConfig, ContainerMetadata, Part, Spec, Unused};
use crate::vm::process::PodMachineError;
use crate::vm::service::Containers;
use crate::vm::shares::{Share, Supplies, volumes};
use crate::vm::state::{Event, Phase};

/// The name of the pod machine where it is shown.
const POD_MACHINE: &str = "vmlet-pod-machine";

/// What a client requests of a process.
#[derive(Debug, Clone, PartialEq)]
pub struct Process {
    /// The command and its surroundings; the session has no number and no name yet.
    pub start: Start,
    /// What system calls it may make, and the numbers of its capabilities.
    pub seccomp: (Profile, Vec<u32>),
    /// The end of the first client's input is that of the process.
    pub stdin_once: bool,
    /// Linux's number of the signal that ends it.
    pub stop_signal: i32,
}

/// Adds what the process has of its pod.
fn surround(start: &mut Start, pod: &SandboxConfig, config: &ContainerConfig) {
    let parameters = pod.sysctls.iter();
    start.sysctls = parameters
        .map(|(name, value)| Setting {
            name: name.clone(),
            value: value.clone(),
        })
        .collect();
    start.limits = limits::settings(&config.resources);
    let score = config.resources.oom_score_adj.clamp(-1000, 1000);
    start.oom_score_adj = i32::try_from(score).unwrap_or(0);
    let resolver = pod.dns.as_ref().map(resolver).unwrap_or_default();
    if !resolver.is_empty() {
        start.view.get_or_insert_with(View::default).resolver = resolver;
    }
}

/// What is written before it replaces a file; a daemon that is killed leaves it.
fn new_file(path: &Path) -> PathBuf {
    path.with_extension("new")
}

/// The text of `resolv.conf`; empty when the client requests none.
fn resolver(dns: &DnsConfig) -> String {
    let line = |name: &str, words: &[String]| match words {
        [] => String::new(),
        words => format!("{name} {}\n", words.join(" ")),
    };
    let servers = dns
        .servers
        .iter()
        .map(|server| format!("nameserver {server}\n"));
    let servers: String = servers.collect();
    [
        line("search", &dns.searches),
        servers,
        line("options", &dns.options),
    ]
    .concat()
}

impl<P: Platform> Containers<P> {
    pub(in crate::vm) async fn create_process(
        self: Arc<Self>,
        sandbox: &SandboxId,
        mut config: ContainerConfig,
        mut process: Process,
        files: Option<SeedData>,
    ) -> Result<ContainerId> {
        let (profile, capabilities) = std::mem::take(&mut process.seccomp);
        let filter = self.compiled(profile, capabilities).await?;
        if let Some(confinement) = &mut process.start.confinement {
            confinement.seccomp = filter;
        }
        let _lock = self.parts.locks.lock(sandbox.as_str()).await;
        let sandbox = self.ready_sandbox(sandbox)?;
        // They reach the process.
        config.unused = Unused {
            cdi_devices: config.unused.cdi_devices,
            ..Unused::default()
        };
        surround(&mut process.start, &sandbox.config, &config);
        if let Some(id) = self
            .process_made_before(&sandbox, &config, &process)
            .await?
        {
            return Ok(id);
        }
        let machine = self.ensure_pod_machine(&sandbox, &config, files).await?;
        let id = ContainerId::generate();
        let spec = Spec {
            part: Part::Process {
                stdin_once: process.stdin_once,
                stop_signal: process.stop_signal,
            },
            log_path: log_path(&sandbox.config.log_directory, &config.log_path)
                .unwrap_or_else(|| self.paths.default_log(&id)),
            unsupported: self.unsupported_by_process(&sandbox, &config)?,
            config,
            blocks: Vec::new(),
            file_disks: Vec::new(),
            shares: Vec::new(),
            seed: false,
            sysprep: false,
            uefi: false,
            user: None,
            ..machine.spec.clone()
        };
        let row = Container::new(id.clone(), sandbox.id.clone(), spec);
        self.answer_is_due(&id);
        let row = self.parts.table.insert(row).await?;
        faultpoint::point("process.create.recorded");
        if let Err(e) = self.write_start(&row.id, &process.start).await {
            let _ = self.drop_creating(&row).await;
            return Err(e);
        }
        self.move_on(&row, Event::Prepared, "created", |_| {})
            .await?;
        faultpoint::point("process.create.created");
        self.answer_is_due(&id);
        tracing::info!(sandbox = %sandbox.id, container = %id, "container created");
        Ok(id)
    }

    /// The filter of a profile, which may be a file of the node.
    async fn compiled(&self, profile: Profile, capabilities: Vec<u32>) -> Result<Bytes> {
        let file = match &profile {
            Profile::Localhost(path) => Some(path.display().to_string()),
            Profile::Unconfined | Profile::RuntimeDefault => None,
        };
        let compile = move || profile.filter(&capabilities);
        Ok(match file {
            Some(path) => self.foreign.look(&path, compile).await??,
            None => {
                let compiled = tokio::task::spawn_blocking(compile).await;
                compiled.map_err(crate::tasks::Aborted::from)??
            }
        })
    }

    /// The container that was made from the same request when its client has no answer: it gave up,
    /// or the daemon ended.
    async fn process_made_before(
        &self,
        sandbox: &Sandbox,
        config: &ContainerConfig,
        process: &Process,
    ) -> Result<Option<ContainerId>> {
        for row in self.of_sandbox(&sandbox.id) {
            let has_name = row.spec.config.metadata == config.metadata;
            if !row.is_process() || !has_name {
                continue;
            }
            match row.phase {
                Phase::Creating => self.drop_creating(&row).await?,
                Phase::Created if self.is_repeated(&row, config) => {
                    self.write_start(&row.id, &process.start).await?;
                    return Ok(Some(row.id.clone()));
                }
                phase if phase.is_live() => {
                    return Err(Conflict::NameTaken {
                        name: config.metadata.name.clone(),
                        attempt: config.metadata.attempt,
                        container: row.id.clone(),
                    }
                    .into());
                }
                _ => {}
            }
        }
        Ok(None)
    }

    /// The pod machine of a sandbox, made from the image of this container when there is none; the
    /// caller holds the sandbox's lock.
    async fn ensure_pod_machine(
        &self,
        sandbox: &Sandbox,
        config: &ContainerConfig,
        files: Option<SeedData>,
    ) -> Result<Arc<Container>> {
        if let Some(machine) = self.pod_machine(&sandbox.id) {
            // The pin of the sandbox stays that of the pod machine.
            let wanted = self.known(&sandbox.id, &config.image);
            let digest = wanted.map(|digest| digest.to_string());
            if digest.as_deref() != Some(machine.spec.image_digest.as_str()) {
                return Err(Conflict::OtherImage {
                    sandbox: sandbox.id.clone(),
                    image: config.image.image.clone(),
                }
                .into());
            }
            return Ok(machine);
        }
        let config = ContainerConfig {
            metadata: ContainerMetadata {
                name: POD_MACHINE.to_owned(),
                attempt: 0,
            },
            image: config.image.clone(),
            // Processes have one server of volumes.
            share_user: config.share_user.clone(),
            ..ContainerConfig::default()
        };
        // Limits of a process are not those of the machine.
        let port = machine(sandbox, &config, self.defaults())?.guest_agent;
        if port == GuestAgent::Off {
            return Err(PodMachineError::PortOff(sandbox.id.clone()).into());
        }
        let shares = if volumes::are_shared(sandbox, &config)? {
            vec![Share::of_pod()]
        } else {
            Vec::new()
        };
        let supplies = Supplies {
            data: files,
            shares,
            ..Supplies::default()
        };
        self.create_machine(sandbox, config, Part::PodMachine, supplies)
            .await
    }

    /// The machine that the processes of a sandbox run in: the container without a command while
    /// there is one, else the pod machine, which may have ended.
    pub(in crate::vm) fn pod_machine(&self, sandbox: &SandboxId) -> Option<Arc<Container>> {
        let mut all = self.of_sandbox(sandbox);
        all.retain(|row| row.boots() && !matches!(row.phase, Phase::Creating | Phase::Removing));
        let live = all.iter().find(|row| row.phase.is_live());
        let made = || all.iter().find(|row| row.spec.part == Part::PodMachine);
        live.or_else(made).cloned()
    }

    pub(super) async fn write_start(&self, id: &ContainerId, start: &Start) -> Result<()> {
        let path = self.paths.process(id);
        let start = Start {
            keep: id.to_string(),
            ..start.clone()
        };
        let bytes = start.encode_to_vec();
        let work = {
            let path = path.clone();
            move || {
                // The file of a container that runs is replaced as a whole.
                let new = new_file(&path);
                let mut options = std::fs::OpenOptions::new();
                let options = options.write(true).create(true).truncate(true).mode(0o600);
                options.open(&new)?.write_all(&bytes)?;
                faultpoint::point("process.settings.written");
                std::fs::rename(&new, &path)
            }
        };
        let written = tokio::task::spawn_blocking(work).await;
        let written = written.map_err(crate::tasks::Aborted::from)?;
        Ok(written.map_err(files::failed("write", &path))?)
    }

    /// What a process was created with.
    pub(in crate::vm) async fn read_start(&self, id: &ContainerId) -> Result<Start> {
        let path = self.paths.process(id);
        let bytes = tokio::fs::read(&path).await;
        let bytes = bytes.map_err(files::failed("read", &path))?;
        let start = Start::decode(&bytes[..]).map_err(std::io::Error::other);
        Ok(start.map_err(files::failed("read", &path))?)
    }

    /// Removes the files of a process; may be repeated.
    pub(in crate::vm) async fn remove_process_files(&self, id: &ContainerId) -> Result<()> {
        let start = self.paths.process(id);
        let paths = [new_file(&start), start, self.paths.process_position(id)];
        for path in paths {
            match tokio::fs::remove_file(&path).await {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    return Err(files::failed("remove", &path)(e).into());
                }
                _ => {}
            }
        }
        Ok(())
    }
}
