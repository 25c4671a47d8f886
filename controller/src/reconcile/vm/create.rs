//! From a wish to a root disk.
//!
//! Invariant: no pass waits for a copy; the task that makes the disk is the only record that one is being made.
//! Failure: `VirtualMachineCreated` is False with the reason, and the pass is repeated.

use std::sync::Arc;

use crds::VirtualMachineTask;
use crds::conditions::{self, Status};
use crds::vm::ProviderStatus;
use lifecycle::Volumes;

use super::need::{self, Needs};
use super::pass::Pass;
use super::slots::{Limits, Slot};
use super::{cache, config, find, identity, observe, provision, tasks, unsupported};
use crate::outcome::{Outcome, Stop};

/// One step towards the root disk.
pub(crate) async fn run(pass: &mut Pass<'_>) -> Outcome<()> {
    observe::look(pass, None, Volumes::Provisioning);
    if let Some(pod) = find::provisioner(pass) {
        observe::look_at_provisioner(pass, &pod);
    }
    observe::decide(pass);
    let result = steps(pass).await;
    if let Err(Stop::Failed(error)) = &result {
        let message = format!("{error:#}");
        pass.condition(conditions::CREATED, Status::False, "Error", &message);
    }
    result
}

async fn steps(pass: &mut Pass<'_>) -> Outcome<()> {
    let task = provision::task(pass);
    if task.as_ref().is_some_and(|t| !tasks::is_final(t)) {
        return Err(Stop::InProgress);
    }
    if let Some(task) = task.filter(|t| succeeded(t)) {
        pass.status().image.clone_from(&task.spec.image);
        return done(pass).await;
    }
    let node = pass.node_name();
    let slot = take_slot(pass, node.as_deref())?;
    let needs = need::all(pass).await?;
    unsupported::report(pass, &needs.unsupported.clone());
    need::disks(pass).await?;
    if pass.root_claim().is_some() {
        return done(pass).await;
    }
    wait_for_cache(pass, &needs)?;
    provision::run(pass, &needs, slot).await
}

fn succeeded(task: &VirtualMachineTask) -> bool {
    let state = task.status.as_ref().and_then(|s| s.state);
    state == Some(crds::TaskState::Success)
}

/// A slot, or the word that all are taken.
pub(crate) fn take_slot(pass: &Pass<'_>, node: Option<&str>) -> Outcome<Slot> {
    let tasks: Vec<Arc<VirtualMachineTask>> = pass.ctx.stores.tasks.state();
    let limits = Limits {
        cluster: pass.ctx.config.create_slots(),
        node: pass.ctx.config.machines.creates_per_node,
    };
    let slots = &pass.ctx.shared.slots;
    let uid = pass.disk_uid();
    slots
        .take(&uid, node, &tasks, limits, pass.seconds())
        .ok_or(Stop::TooManyCreates)
}

fn wait_for_cache(pass: &Pass<'_>, needs: &Needs) -> Outcome<()> {
    if !pass.ctx.config.machines.image_caches || !pass.mode.is_fast() {
        return Ok(());
    }
    let name = cache_name(&needs.image.name);
    if cache::knows(pass, &name) {
        return Ok(());
    }
    let location = None;
    Err(Stop::CacheNotReady { name, location })
}

/// Name of the cache of an image: its own name is no name of an object.
pub(crate) fn cache_name(image: &str) -> String {
    use sha2::{Digest, Sha256};
    let digest = Sha256::digest(image.as_bytes());
    let hash: String = digest.iter().take(16).map(|b| format!("{b:02x}")).collect();
    format!("vmi-{hash}")
}

/// The root disk is there.
async fn done(pass: &mut Pass<'_>) -> Outcome<()> {
    exists(pass);
    config::first_size(pass)?;
    provision::clean_up(pass).await?;
    pass.acted = true;
    Err(Stop::quiet("created"))
}

/// Puts on record that the machine exists.
pub(crate) fn exists(pass: &mut Pass<'_>) {
    pass.condition(conditions::CREATED, Status::True, "", "");
    let (_, uuid) = identity::of(pass);
    let node = pass.node_name().filter(|_| pass.root_claim().is_none());
    let place = node.unwrap_or_else(|| "pvc".to_owned());
    let now = pass.now.clone();
    let status = pass.status();
    status.unique_id = Some(format!("{place}/{uuid}"));
    let provider = status.provider.get_or_insert_with(ProviderStatus::default);
    provider.creation_timestamp.get_or_insert(now);
}
