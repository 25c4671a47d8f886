//! Removes domains, files and image pins without a row.
//!
//! Invariant: only domains that carry our metadata element and this installation's id are touched.
//! Domains go before files, so that no machine loses a disk while it runs; a row is there before
//! what it accounts for and goes after it, so that whatever is found without one has no owner, also
//! while requests are served. A list says only where to look: containers of one virtual machine
//! have domain, disk and seed one after the other, so that the owner is read again, under the lock
//! without which no container takes the disk, right before anything is removed.
//! A row that cannot be read is an owner, and of everything if its key cannot be read either.
//! Failure: a domain that cannot be removed keeps all files where they are, until the next round.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use libvirt::{DomainInfo, Hypervisor};
use podspec::{ContainerId, Kind, SandboxId, VmUid};

use crate::files;
use crate::metadata::{LookupError, Row, Table};
use crate::platform::Platform;
use crate::vm::error::{Result, hypervisor};
use crate::vm::model::Container;
use crate::vm::paths::Paths;
use crate::vm::service::Containers;

impl<P: Platform> Containers<P> {
    /// Removes whatever has no owner; `domains` are all of ours.
    pub(in crate::vm) async fn collect(&self, domains: &[DomainInfo]) -> Result<()> {
        let mut outcome = Ok(());
        for domain in domains {
            outcome = outcome.and(self.collect_domain(domain).await);
        }
        outcome?;
        self.collect_root_disks().await?;
        collect_files(&self.paths.consoles(), &self.parts.table).await?;
        collect_files(&self.paths.seeds(), &self.parts.table).await?;
        collect_files(&self.paths.processes(), &self.parts.table).await?;
        self.collect_disks().await?;
        self.collect_pins().await
    }

    /// Removes the root disks of missing sandboxes, and their sizes, also those of disks that were
    /// removed when the size could not be.
    async fn collect_root_disks(&self) -> Result<()> {
        let pods = self.paths.pods();
        let sandboxes = &self.parts.sandboxes;
        collect_files(&pods, sandboxes).await?;
        // A sandbox is there before its disk has a size.
        let is_gone = |name: &str| {
            let owner = Paths::owner(name);
            owner.is_some_and(|beginning| !has_row(sandboxes, beginning))
        };
        Ok(self
            .parts
            .disks
            .qemu_img()
            .forget_gone(&pods, is_gone)
            .await?)
    }

    /// Removes a domain without a row: nothing else would ever end it.
    async fn collect_domain(&self, listed: &DomainInfo) -> Result<()> {
        if self.has_owner(listed) {
            return Ok(());
        }
        let vm: Option<VmUid> = listed.vm.as_ref().and_then(|vm| vm.parse().ok());
        let _turn = match vm {
            Some(vm) => Some(self.disk_lock(vm).await),
            None => None,
        };
        let domains = self.parts.hypervisor.list().await;
        let domains = domains.map_err(hypervisor("list"))?;
        let Some(domain) = domains.iter().find(|domain| domain.uuid == listed.uuid) else {
            return Ok(());
        };
        if domain.vm != listed.vm || self.has_owner(domain) || !self.is_ours(domain).await? {
            return Ok(());
        }
        tracing::warn!(domain = %domain.name, "domain without a container removed");
        self.forget_domain(domain.uuid).await
    }

    /// Whether a container accounts for a domain: it is in its metadata, or has its UUID to define.
    fn has_owner(&self, domain: &DomainInfo) -> bool {
        let named = domain.container.parse::<ContainerId>();
        let owns = |row: &Arc<Container>| row.domain() == domain.uuid && self.owns_domain(row);
        let aside = self.parts.table.aside();
        named.is_ok_and(|id| !self.is_gone(&id))
            || aside.is_anonymous()
            || self.parts.table.all().iter().any(owns)
    }

    /// Whether it is ours to remove: this installation made it, or one that had the same state
    /// directory, or an earlier version, which left no name. Another daemon on the same libvirt has
    /// files elsewhere.
    async fn is_ours(&self, domain: &DomainInfo) -> Result<bool> {
        if domain.installation.as_ref() == Some(&self.settings.installation) {
            return Ok(true);
        }
        let console = self.parts.hypervisor.console_file(domain.uuid).await;
        let console = console.map_err(hypervisor("describe"))?;
        Ok(console.is_some_and(|file| file.starts_with(self.paths.consoles())))
    }

    /// Takes devices and disks of virtual machines back from containers that no longer exist, their
    /// domains before them.
    async fn collect_disks(&self) -> Result<()> {
        for disk in self.parts.disks.all() {
            if self.lost_holder(disk.vm).is_none() {
                continue;
            }
            let _turn = self.disk_lock(disk.vm).await;
            if let Some(holder) = &self.lost_holder(disk.vm) {
                tracing::warn!(
                    vm = %disk.vm,
                    container = %holder,
                    "disk of a missing container released"
                );
                self.remove_machine_seed(disk.vm).await?;
                self.parts.disks.give_back(disk.vm, holder).await?;
            }
        }
        let blocks = &self.parts.blocks;
        for holder in blocks.holders() {
            if self.is_gone(&holder) {
                tracing::warn!(container = %holder, "devices of a missing container released");
                blocks.give_back(&holder).await?;
            }
        }
        blocks.collect().await?;
        Ok(self.parts.disks.collect().await?)
    }

    /// The container that has the disk of a virtual machine, if it no longer exists.
    fn lost_holder(&self, vm: VmUid) -> Option<ContainerId> {
        let holder = self.parts.disks.get(vm)?.holder.clone()?;
        self.is_gone(&holder).then_some(holder)
    }

    /// Lets the images of sandboxes, containers and disks go that no longer exist.
    async fn collect_pins(&self) -> Result<()> {
        for owner in self.parts.images.owners() {
            let sandbox = owner.parse::<SandboxId>();
            let container = owner.parse::<ContainerId>();
            let sandboxes = &self.parts.sandboxes;
            let has_sandbox = |id: SandboxId| {
                sandboxes.get(&id).is_some() || sandboxes.aside().may_have(id.as_str())
            };
            let needed =
                sandbox.is_ok_and(has_sandbox) || container.is_ok_and(|id| !self.is_gone(&id));
            if !needed && self.parts.disks.collect_pin(&owner).await? {
                tracing::warn!(sandbox = %owner, "image of a missing pod sandbox unpinned");
            }
        }
        Ok(())
    }
}

async fn collect_files<R: Row>(directory: &Path, table: &Table<R>) -> Result<()> {
    let failed = || files::failed("look through", directory);
    let mut entries = tokio::fs::read_dir(directory).await.map_err(failed())?;
    while let Some(entry) = entries.next_entry().await.map_err(failed())? {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        // A socket of a console that is just made.
        if name == format!(".{}", std::process::id()) {
            continue;
        }
        // Looked up after the file was found: the row is older than the file.
        if Paths::owner(&name).is_some_and(|beginning| has_row(table, beginning)) {
            continue;
        }
        tracing::warn!(file = %name, of = R::Kind::NOUN, "files without an owner removed");
        let path = entry.path();
        let kind = entry.file_type().await.map_err(failed())?;
        let removed = if kind.is_dir() {
            tokio::fs::remove_dir_all(&path).await
        } else {
            tokio::fs::remove_file(&path).await
        };
        match removed {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                return Err(files::failed("remove", &path)(e).into());
            }
            // Removed, or the last file of an owner who has just gone.
            _ => {}
        }
    }
    Ok(())
}

fn has_row<R: Row>(table: &Table<R>, beginning: &str) -> bool {
    let found = table.find(beginning, |_| true);
    table.aside().is_anonymous() || !matches!(found, Err(LookupError::NotFound { .. }))
}
