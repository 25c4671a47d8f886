//! Creates a container: checks the machine, pins the image, creates the root disk.
//!
//! Invariant: a container that is CREATED has its root disk; one that is refused leaves nothing. A
//! container that was never started gives way to a later attempt of the same name, as kubelet makes
//! one after a failed start.
//! Failure: a row in phase Creating without a request in progress is dropped by the next request
//! for its sandbox.

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use libvirt::Hypervisor;
use podspec::{Annotations, ContainerId, FastDeploy, Machine, Role, RootContent, SandboxId, names};

use super::request::{annotations, guest_data, instance, machine};
use crate::clock;
use crate::platform::Platform;
use crate::sandbox::Sandbox;
use crate::steps::{step, trace};
use crate::vm::disks::instance::Root;
use crate::vm::disks::overlay::{Choice, fast_deploy};
use crate::vm::disks::seed::SeedData;
use crate::vm::error::{Error, Result, hypervisor};
use crate::vm::file_disks::{self, FileDisk};
use crate::vm::lifecycle::Conflict;
use crate::vm::model::{
    BlockDisk, Container, ContainerConfig, ContainerMetadata, Exit, Part, Spec,
};
use crate::vm::service::Containers;
use crate::vm::shares::Supplies;
use crate::vm::state::{Event, Phase};
use crate::vm::unsupported::Given;

/// The event of a pod whose root disk is never replaced.
const UNUSED_ROOT_CONTENT: &str = "vmlet.dev/root-content has no effect: it is for a claim with \
     volumeMode Block as root disk, of a pod with an image and without a VirtualMachine; a file of a \
     volume is never written over: remove it to have it made of the image";

/// The pods of VirtualMachines state a user for Pod Security alone: their shares are accessed as if
/// none was requested.
fn as_requested(sandbox: &Sandbox, config: ContainerConfig) -> ContainerConfig {
    let is_of_cluster = sandbox.config.labels.contains_key(names::VM_UID_LABEL);
    let mut config = config;
    let user = &mut config.share_user.uid;
    user.take_if(|user| is_of_cluster && *user == names::MACHINE_USER);
    config
}

impl<P: Platform> Containers<P> {
    pub(in crate::vm) async fn create_to_end(
        &self,
        sandbox_id: &SandboxId,
        config: ContainerConfig,
        supplies: Supplies,
    ) -> Result<ContainerId> {
        let _lock = self.parts.locks.lock(sandbox_id.as_str()).await;
        let sandbox = self.ready_sandbox(sandbox_id)?;
        let config = as_requested(&sandbox, config);
        if let Some(id) = self.place_for(&sandbox, &config).await? {
            return Ok(id);
        }
        let row = self.create_machine(&sandbox, config, Part::Machine, supplies);
        let id = row.await?.id.clone();
        self.answer_is_due(&id);
        faultpoint::point("vm.create.created");
        tracing::info!(sandbox = %sandbox.id, container = %id, "container created");
        Ok(id)
    }

    /// Makes a container that is a machine, or holds the place of one; the caller holds the
    /// sandbox's lock.
    pub(in crate::vm) async fn create_machine(
        &self,
        sandbox: &Sandbox,
        config: ContainerConfig,
        part: Part,
        supplies: Supplies,
    ) -> Result<Arc<Container>> {
        let id = ContainerId::generate();
        let machine = machine(sandbox, &config, self.defaults())?;
        self.check_board(&machine).await?;
        let instance = instance(sandbox, &config)?;
        self.check_backup_claim(sandbox, &config, &instance)?;
        let blocks = self
            .wanted_blocks(&sandbox.id, &config, instance.role)
            .await?;
        file_disks::plan::check_paths(&supplies.file_disks, &blocks)?;
        let content = Annotations::new(&annotations(sandbox, &config)).root_content()?;
        let has_root = blocks.iter().any(BlockDisk::is_root)
            || supplies.file_disks.iter().any(FileDisk::is_root);
        let root = self
            .wanted_root(&sandbox.id, &instance, &config.image, has_root)
            .await?;
        let firmware = self.choose_firmware(&machine, &instance, &root).await?;
        let log_path = log_path(&sandbox.config.log_directory, &config.log_path)
            .unwrap_or_else(|| self.paths.default_log(&id));
        let unsupported = match instance.role {
            Role::Machine => {
                let shares = &supplies.shares;
                let disks = &supplies.file_disks;
                let pod = &sandbox.config;
                let given = Given::for_machine(&self.foreign, pod, &config, shares, disks).await;
                let given = (firmware.problem, given);
                let mut found = self.unsupported(sandbox, &config, &blocks, given);
                found.extend(unused_fast_deploy(sandbox, &config, &root)?);
                found.extend(supplies.data.as_ref().and_then(SeedData::finding));
                if content == RootContent::Replace && !is_replaceable(&root, sandbox, &blocks) {
                    found.push(UNUSED_ROOT_CONTENT.to_owned());
                }
                found.extend(root.choice().and_then(Choice::finding));
                found
            }
            Role::Provision | Role::BackupTarget => Vec::new(),
        };
        let Supplies {
            data,
            shares,
            file_disks,
        } = supplies;
        let given = guest_data(&sandbox.config, &config)?;
        let sysprep = given.is_some_and(|data| data.is_sysprep());
        let seed = data.is_some() || self.has_old_seed(&instance).await?;
        // Until the row shows it to the next choice.
        let turn = self.users.turn.lock().await;
        let user = match instance.role {
            Role::Machine => self.choose_user()?,
            Role::Provision | Role::BackupTarget => None,
        };
        let spec = Spec {
            unsupported,
            config,
            part,
            user,
            machine,
            seed,
            sysprep,
            uefi: firmware.uefi,
            instance,
            blocks,
            file_disks,
            shares,
            image_digest: root.digest(),
            log_path,
        };
        let row = Container::new(id.clone(), sandbox.id.clone(), spec);
        self.answer_is_due(&id);
        let row = self.parts.table.insert(row).await?;
        drop(turn);
        faultpoint::point("vm.create.recorded");
        let made = async {
            let disks = self.ensure_root(sandbox, &row, &root);
            let seed = self.make_seed(&row, data);
            if row.vm().is_some() {
                // That of a virtual machine belongs to the holder of its root disk.
                disks.await?;
                seed.await?;
            } else {
                // Both to their end: what is being made cannot be dropped.
                let (disks, seed) = tokio::join!(disks, seed);
                disks?;
                seed?;
            }
            self.settle_root(&row, &root, content).await
        };
        let step = step!("disk.prepare", sandbox = %row.sandbox, container = %row.id);
        let found = match trace(step, made).await {
            Ok(found) => found,
            Err(e) => {
                // What fails here, too, is dropped by the next request or by reconciliation.
                let _ = self.drop_creating(&row).await;
                return Err(e);
            }
        };
        faultpoint::point("vm.create.disk");
        let report = |row: &mut Container| row.spec.unsupported.extend(found);
        self.move_on(&row, Event::Prepared, "created", report).await
    }

    /// A user that no other container has.
    fn choose_user(&self) -> Result<Option<u32>> {
        let all = self.parts.table.all();
        let taken = all.iter().filter_map(|row| row.spec.user);
        let aside = self.parts.table.aside().rows().iter();
        let taken = taken.chain(aside.filter_map(|row| row.trace.user));
        Ok(self.users.choose(self.settings.uids, &taken.collect())?)
    }

    /// Refuses a board that the emulator does not have; `q35` it always has.
    async fn check_board(&self, machine: &Machine) -> Result<()> {
        let wanted = &machine.machine_type;
        if wanted.is_newest() {
            return Ok(());
        }
        let mut there = self
            .parts
            .hypervisor
            .machine_types()
            .await
            .map_err(hypervisor("ask about"))?;
        if there.iter().any(|name| name == wanted.as_str()) {
            return Ok(());
        }
        Err(Error::MachineType {
            wanted: wanted.clone(),
            newest: there.pop().unwrap_or_else(|| "q35".to_owned()),
        })
    }

    /// Makes sure that the sandbox has room for a machine, and had none of another name. Returns the
    /// container that was made from the same request when its client has no answer: it gave up, or
    /// the daemon ended.
    async fn place_for(
        &self,
        sandbox: &Sandbox,
        config: &ContainerConfig,
    ) -> Result<Option<ContainerId>> {
        let boots = instance(sandbox, config)?.role == Role::Machine;
        let is_machine = boots && !sandbox.config.has_processes();
        let name = &config.metadata.name;
        for row in self.of_sandbox(&sandbox.id) {
            match row.phase {
                // No other request works on it any more: this request holds the sandbox's lock.
                Phase::Creating => self.drop_creating(&row).await?,
                Phase::Created if self.is_repeated(&row, config) => {
                    return Ok(Some(row.id.clone()));
                }
                Phase::Created if is_later(&config.metadata, &row.spec.config.metadata) => {
                    self.give_way(&row, config.metadata.attempt).await?;
                }
                phase if phase.is_live() => return Err(self.live(&row)),
                // It would boot the disk that the other one has left.
                _ if is_machine && row.boots() && row.spec.config.metadata.name != *name => {
                    return Err(Conflict::OtherName {
                        pod: pod_of(sandbox),
                        name: name.clone(),
                        machine: row.spec.config.metadata.name.clone(),
                    }
                    .into());
                }
                _ => {}
            }
        }
        Ok(None)
    }

    /// Why a pod has no place for another machine.
    fn live(&self, row: &Container) -> Error {
        let sandbox = self.sandbox_of(row);
        Error::from(Conflict::Live {
            pod: sandbox.map_or_else(String::new, |sandbox| pod_of(&sandbox)),
            name: row.spec.config.metadata.name.clone(),
            container: row.id.clone(),
            phase: row.phase,
        })
    }

    /// Ends a container that never ran, and records why.
    async fn give_way(&self, row: &Container, attempt: u32) -> Result<()> {
        let now = clock::now();
        let message = format!("it was never started, and attempt {attempt} took its place");
        let exit = Exit::never_ran(message);
        let ended = |row: &mut Container| {
            row.finished_at = now;
            row.exit = Some(exit);
        };
        let gone = self
            .move_on(row, Event::Superseded, "superseded", ended)
            .await?;
        tracing::info!(container = %row.id, attempt, "container replaced by a newer attempt");
        self.let_go(&gone).await
    }

    /// Removes a container that never came to be, with what it has taken.
    pub(in crate::vm) async fn drop_creating(&self, row: &Container) -> Result<()> {
        self.undo_file_disks(row).await;
        self.give_disk_back(row).await?;
        self.settle_root_disk(&row.sandbox).await?;
        self.parts.images.unpin(row.id.as_str()).await?;
        self.forget_answer(&row.id);
        Ok(self.parts.table.remove(&row.id).await?)
    }
}

/// Namespace and name of a pod, for people.
fn pod_of(sandbox: &Sandbox) -> String {
    let pod = &sandbox.config.metadata;
    format!("{}/{}", pod.namespace, pod.name)
}

/// Whether the first is a later attempt at the same container as the second.
fn is_later(new: &ContainerMetadata, old: &ContainerMetadata) -> bool {
    new.name == old.name && new.attempt > old.attempt
}

/// Whether the content of the root disk can be that of another image, and can be written over.
fn is_replaceable(root: &Root, sandbox: &Sandbox, blocks: &[BlockDisk]) -> bool {
    let is_block = blocks.iter().any(BlockDisk::is_root);
    let is_kept = sandbox.config.labels.contains_key(names::VM_UID_LABEL);
    is_block && matches!(root, Root::Volume(Some(_))) && !is_kept
}

/// Requests for the making of a root disk that have no effect.
fn unused_fast_deploy(
    sandbox: &Sandbox,
    config: &ContainerConfig,
    root: &Root,
) -> Result<Vec<String>> {
    let mut found = Vec::new();
    if fast_deploy(sandbox)? == FastDeploy::Direct && !matches!(root, Root::Image(_)) {
        found.push(
            "vmlet.dev/fast-deploy has no effect: the root disk is a volume of the pod or that of \
             a virtual machine",
        );
    }
    if config.annotations.contains_key(names::FAST_DEPLOY) {
        found.push("vmlet.dev/fast-deploy of a container has no effect: annotate the pod");
    }
    Ok(found.into_iter().map(str::to_owned).collect())
}

/// The absolute path of the log; `None` when the client named none, or one that leads elsewhere.
pub(in crate::vm) fn log_path(directory: &str, path: &str) -> Option<PathBuf> {
    let directory = Path::new(directory);
    let path = Path::new(path);
    let plain = path
        .components()
        .all(|part| matches!(part, Component::Normal(_)));
    (directory.is_absolute() && plain && path.file_name().is_some()).then(|| directory.join(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_lies_below_the_directory_that_was_named() {
        let path = |d, p| log_path(d, p).map(|p| p.display().to_string());
        assert_eq!(
            path("/var/log/pods/a", "vm/0.log"),
            Some("/var/log/pods/a/vm/0.log".into())
        );
        assert_eq!(path("", "vm/0.log"), None);
        assert_eq!(path("/var/log", ""), None);
        assert_eq!(path("/var/log", "../../etc/passwd"), None);
        assert_eq!(path("/var/log", "/etc/passwd"), None);
    }
}
