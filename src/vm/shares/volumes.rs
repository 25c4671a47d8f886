//! Volumes of the containers that are processes of a pod machine.
//!
//! The pod machine has one share, an empty directory of its own. When a process starts, its volumes
//! are mounted below that directory for the server of the share alone, and `vmlet-guest` shows them to
//! the process at their paths.
//!
//! Invariant: a name below the share belongs to one mount of one container. What is mounted ends with
//! the container, and with the server: the node sees none of it. The server is known by a record that
//! root alone can write.
//! Failure: [`ShareError::Volumes`]; nothing of the container's stays mounted.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::process::Output;
use std::time::Duration;

use guestapi::{POD_SHARE, Volume};
use podspec::{Annotations, ContainerId, Shares};

use super::{Protocol, Share, ShareUser, plan};
use crate::helper::{Service, Stream, Streams};
use crate::platform::Platform;
use crate::sandbox::Sandbox;
use crate::vm::error::{Error, Result};
use crate::vm::lifecycle::request;
use crate::vm::model::{Container, ContainerConfig, Mount, Part};
use crate::vm::service::Containers;
use crate::vm::shares::ShareError;

/// Time for all volumes of a container; a server of network storage may be slow.
const MOUNTED_WITHIN: Duration = Duration::from_secs(60);
/// Most bytes of what the program reports in a message.
const SHOWN: usize = 400;
/// CRI's `PROPAGATION_HOST_TO_CONTAINER` and `PROPAGATION_BIDIRECTIONAL`.
const FOLLOW: [i32; 2] = [1, 2];

impl Share {
    /// The share of a pod machine.
    pub(in crate::vm) fn of_pod() -> Self {
        Self {
            tag: POD_SHARE.to_owned(),
            host_path: String::new(),
            path: String::new(),
            read_only: false,
            protocol: Protocol::Virtiofs,
        }
    }

    /// Whether it is that of a pod machine, which nothing mounts by its path.
    pub(in crate::vm) fn is_of_pod(&self) -> bool {
        self.tag == POD_SHARE
    }
}

impl ShareUser {
    /// The user and group that own what the guest's root owns, where the pod requests none.
    pub(super) fn requested(&self) -> (Option<u32>, Option<u32>) {
        let other = |id: Option<u32>| id.filter(|id| *id != 0);
        (other(self.uid), other(self.gid))
    }
}

/// Whether the containers of a pod have their volumes, when they are processes.
pub(in crate::vm) fn are_shared(sandbox: &Sandbox, config: &ContainerConfig) -> Result<bool> {
    let annotations = request::annotations(sandbox, config);
    match Annotations::new(&annotations).shares()? {
        Shares::Auto => Ok(true),
        Shares::Off => Ok(false),
        Shares::NineP => Err(ShareError::NinePOfProcesses.into()),
    }
}

/// The volumes that a process has, those above others first.
pub(in crate::vm) fn wanted(config: &ContainerConfig) -> Vec<&Mount> {
    let mounts = config.mounts.iter();
    let mut all: Vec<_> = mounts.filter(|mount| plan::is_for_guest(mount)).collect();
    all.sort_by_key(|mount| mount.depth());
    all
}

/// Refuses more volumes than a process can have.
pub(in crate::vm) fn check(config: &ContainerConfig) -> Result<()> {
    let found = wanted(config).len();
    let most = guestapi::SETTINGS;
    if found > most {
        Err(ShareError::TooManyVolumes { found, most }.into())
    } else {
        Ok(())
    }
}

fn name(id: &ContainerId, number: usize) -> String {
    format!("{}-{number}", &id.as_str()[..20])
}

impl<P: Platform> Containers<P> {
    /// Mounts the volumes of a process that starts; what the guest is to do with them.
    pub(in crate::vm) async fn attach_volumes(&self, row: &Container) -> Result<Vec<Volume>> {
        let mounts = wanted(&row.spec.config);
        let machine = self.pod_machine(&row.sandbox);
        let Some(machine) = machine.filter(|machine| has_pod_share(machine)) else {
            return Ok(Vec::new());
        };
        if mounts.is_empty() {
            return Ok(Vec::new());
        }
        let failed = |source| Error::from(ShareError::Volumes { source });
        let server = self.server(&machine).await?;
        let server = server.ok_or_else(|| failed(io::Error::other("the server has no record")))?;
        let mut arguments = server.to_vec();
        let (uid, gid) = machine.spec.config.share_user.requested();
        let own = self.settings.shares.user;
        if uid.is_none() {
            arguments.push(format!("--root-uid={}", own.uid).into());
        }
        if gid.is_none() {
            arguments.push(format!("--root-gid={}", own.gid).into());
        }
        arguments.extend(["--root".into(), self.settings.shares.root.clone().into()]);
        for (number, mount) in mounts.iter().enumerate() {
            let text = format!(
                "{}:{}:{}",
                options(mount),
                name(&row.id, number),
                mount.host_path
            );
            arguments.extend(["--mount".into(), text.into()]);
        }
        let output = self
            .run_program("attach", arguments)
            .await
            .map_err(failed)?;
        faultpoint::point("process.start.volumes");
        let output = String::from_utf8_lossy(&output);
        let lines = output.lines().filter_map(|line| line.split_once(' '));
        let made: HashMap<_, _> = lines.collect();
        let volume = |(number, mount): (usize, &&Mount)| {
            let name = name(&row.id, number);
            let missing = || io::Error::other(format!("{} is not mounted", mount.host_path));
            let kind = made.get(&*name).copied().ok_or_else(missing)?;
            let (kind, note) = kind.split_once(' ').unwrap_or((kind, ""));
            if !note.is_empty() {
                let path = &mount.container_path;
                tracing::info!(container = %row.id, path, note, "users of a volume not mapped");
            }
            Ok(Volume {
                name,
                path: mount.container_path.clone(),
                is_directory: kind == "directory",
                read_only: mount.readonly && mount.recursive_read_only,
            })
        };
        let volumes: io::Result<_> = mounts.iter().enumerate().map(volume).collect();
        volumes.map_err(failed)
    }

    /// Unmounts the volumes of a process that has ended; may be repeated.
    pub(in crate::vm) async fn detach_volumes(&self, row: &Container) -> Result<()> {
        let count = wanted(&row.spec.config).len();
        let machine = self.pod_machine(&row.sandbox);
        let machine = machine.filter(|machine| has_pod_share(machine) && machine.phase.may_run());
        let Some(machine) = machine.filter(|_| count > 0) else {
            return Ok(());
        };
        let Some(server) = self.server(&machine).await? else {
            return Ok(());
        };
        let mut arguments = server.to_vec();
        arguments.extend((0..count).map(|number| name(&row.id, number).into()));
        let done = self.run_program("detach", arguments).await;
        done.map_err(|source| ShareError::Volumes { source })?;
        Ok(())
    }

    async fn run_program(&self, action: &str, arguments: Vec<OsString>) -> io::Result<Vec<u8>> {
        let mut command = Service::new(&self.settings.shares.program).command();
        command.arg(action).args(arguments);
        let streams = Streams {
            stdin: Stream::Null,
            stdout: Stream::Pipe,
            stderr: Stream::Pipe,
        };
        let ended = async {
            let child = self.start_program(command, streams).await?;
            child.wait_with_output().await
        };
        let ended = tokio::time::timeout(MOUNTED_WITHIN, ended).await;
        let late = |_| io::Error::other(format!("no end within {MOUNTED_WITHIN:?}"));
        let Output {
            status,
            stdout,
            stderr,
        } = ended.map_err(late)??;
        if status.success() {
            Ok(stdout)
        } else {
            Err(refusal(&stderr))
        }
    }
}

/// What the program reported.
pub(super) fn refusal(stderr: &[u8]) -> io::Error {
    let text = String::from_utf8_lossy(stderr);
    let text = text.trim().trim_start_matches("vmlet-virtiofsd: ");
    io::Error::other(text.chars().take(SHOWN).collect::<String>())
}

/// Whether processes of this machine have volumes.
pub(in crate::vm) fn has_pod_share(machine: &Container) -> bool {
    machine.spec.part == Part::PodMachine && machine.spec.shares.iter().any(Share::is_of_pod)
}

/// In the words of mount(8).
fn options(mount: &Mount) -> String {
    let access = match (mount.readonly, mount.recursive_read_only) {
        (true, true) => "rro",
        (true, false) => "ro",
        (false, _) => "rw",
    };
    let propagation = if FOLLOW.contains(&mount.propagation) {
        "rslave"
    } else {
        "rprivate"
    };
    format!("{access},{propagation}")
}
