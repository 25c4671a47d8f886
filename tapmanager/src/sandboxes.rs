//! All sandboxes with a network, and the operations on them.
//!
//! ```text
//!            ┌── failed, crashed ──┐
//!  ADD ─► Adding ─────► Up ─────► Removing ─► gone
//!                        DEL, namespace lost
//! ```
//!
//! Invariant: a task that works on a sandbox holds its slot's lock, so requests for one sandbox are
//! serialised and others continue; the journal says at least what exists.
//! Failure: a step that fails leaves an entry that DEL, a repeated ADD or the next start finishes.

mod add;
mod check;
mod collect;
mod counters;
mod del;
mod recover;
mod routes;
mod serve;
mod sockets;
mod start;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use netns::{Namespace, ipv6};
use service::boot_id;
use service::telemetry::one_line;
use tapmanager::wire::{Network, Status};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, RwLock, Semaphore};

use crate::config::Config;
use crate::failure::Failure;
use crate::journal::{Entry, Journal, Phase};
use crate::metrics::Shared;
use crate::network;
pub(crate) use sockets::{Arrival, StartSockets};

/// A sandbox with its open parts.
#[derive(Debug)]
pub(crate) struct Live {
    entry: Entry,
    ns: Option<Namespace>,
    servers: Option<serve::Servers>,
}

impl Live {
    fn closed(entry: Entry) -> Self {
        Self {
            entry,
            ns: None,
            servers: None,
        }
    }
}

/// The right to work on one sandbox; empty when it has no network.
type Slot = OwnedMutexGuard<Option<Live>>;

/// All sandboxes.
#[derive(Debug)]
pub(crate) struct Sandboxes {
    journal: Journal,
    pub(crate) metrics: Shared,
    runtime: cni::Runtime,
    /// Whether plugins may be asked to collect.
    plugin_gc: bool,
    netns_dir: PathBuf,
    /// Our own network namespace.
    node_ns: Namespace,
    /// The same as the place of the gateways of pods.
    node: ipv6::Node,
    cgroup_root: PathBuf,
    /// Which boot of the node this is; empty when the node does not say.
    boot: String,
    slots: Mutex<HashMap<String, Arc<AsyncMutex<Option<Live>>>>>,
    /// Allowed starts by token. A hint: the slot's entry decides.
    tokens: Mutex<HashMap<String, start::Allowed>>,
    /// Where the machines of allowed starts show their tokens.
    sockets: StartSockets,
    /// Turns of tasks that run plugins. A task that has one waits for no slot.
    turns: Semaphore,
    /// Held for reading while plugins attach, for writing while they collect.
    attaching: RwLock<()>,
    /// Sandboxes of the journal that are not recovered yet.
    recovering: AtomicUsize,
}

const NODE: &str = "/proc/self/ns/net";
/// Sandboxes whose plugins run at once.
const PLUGIN_CALLS: usize = 128;

/// Longest id; the CNI cache makes file names of it.
const MAX_ID: usize = 100;

impl Sandboxes {
    /// No sandboxes yet; see [`Self::load`].
    ///
    /// # Errors
    /// When our own network namespace cannot be opened.
    pub(crate) fn new(
        config: &Config,
        journal: Journal,
        metrics: Shared,
        sockets: StartSockets,
    ) -> Result<Self, Failure> {
        let settings = cni::Settings {
            conf_dir: config.cni_conf_dir.clone(),
            bin_dirs: config.cni_bin_dir.clone(),
            cache_dir: config.cni_cache_dir.clone(),
            timeout: config.cni_timeout.get(),
        };
        let runtime = cni::Runtime::new(settings)
            .with_neighbours(neighbours(&config.cni_cache_dir))
            .with_observer(Arc::clone(&metrics) as Arc<dyn cni::Observer>);
        let node = Namespace::open(Path::new(NODE))?
            .ok_or_else(|| Failure::Changed(format!("{NODE} is no namespace")))?;
        Ok(Self {
            journal,
            metrics,
            runtime,
            plugin_gc: config.cni_plugin_gc,
            netns_dir: config.netns_dir.clone(),
            node: ipv6::Node::new(node.clone()),
            node_ns: node,
            cgroup_root: config.cgroup_root.clone(),
            boot: boot(&config.boot_id_file),
            slots: Mutex::default(),
            tokens: Mutex::default(),
            sockets,
            turns: Semaphore::new(PLUGIN_CALLS),
            attaching: RwLock::default(),
            recovering: AtomicUsize::new(0),
        })
    }

    /// The network of a sandbox that is up.
    pub(crate) async fn get(&self, id: &str) -> Result<Network, Failure> {
        let slot = self.lock(id).await?;
        let network = up(&slot, id)?.network.clone();
        network.ok_or_else(|| Failure::NotFound(id.to_owned()))
    }

    /// Ids of every sandbox with a network or a part of one, sorted.
    pub(crate) fn list(&self) -> Vec<String> {
        let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let occupied = |slot: &Arc<AsyncMutex<Option<Live>>>| {
            // Another request works on it: it has, had or will have a part of a network.
            slot.try_lock().map_or(true, |live| live.is_some())
        };
        let mut ids: Vec<String> = slots
            .iter()
            .filter(|(_, slot)| occupied(slot))
            .map(|(id, _)| id.clone())
            .collect();
        ids.sort_unstable();
        ids
    }

    /// Whether a network could be made now.
    pub(crate) async fn status(&self) -> Status {
        let mut status = Status::default();
        status
            .details
            .insert("networks".to_owned(), self.list().len().to_string());
        match self.recovering.load(Ordering::Relaxed) {
            0 => {}
            left => {
                let left = left.to_string();
                status.details.insert("recovering".to_owned(), left);
            }
        }
        match self.runtime.network().await {
            Err(error) => status.message = one_line(&error),
            Ok(network) => {
                status.config_file = network.file().map(ToOwned::to_owned);
                network.name().clone_into(&mut status.network);
                status.plugins = network
                    .plugins()
                    .iter()
                    .map(|p| p.kind().to_owned())
                    .collect();
                status
                    .details
                    .insert("cniVersion".to_owned(), network.version().to_string());
                let kinds = network.plugins().iter().map(|p| p.kind());
                match (
                    network::obstacle(kinds),
                    self.runtime.status(&network).await,
                ) {
                    (Some(words), _) => status.message = words,
                    (None, Ok(())) => status.ready = true,
                    (None, Err(error)) => status.message = one_line(&error),
                }
            }
        }
        if let Err(missing) = requirements() {
            status.ready = false;
            status.message = missing;
        }
        status
    }

    async fn lock(&self, id: &str) -> Result<Slot, Failure> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        if id.is_empty()
            || id.len() > MAX_ID
            || id.starts_with(['-', '_'])
            || !id.chars().all(plain)
        {
            let shown: String = id.chars().take(MAX_ID).collect();
            return Err(Failure::Invalid(format!("{shown:?} is no sandbox id")));
        }
        let slot = {
            let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
            // Empty ones without waiting requests are removed; they would pile up.
            slots.retain(|_, slot| {
                Arc::strong_count(slot) > 1 || slot.try_lock().map_or(true, |live| live.is_some())
            });
            Arc::clone(slots.entry(id.to_owned()).or_default())
        };
        Ok(slot.lock_owned().await)
    }

    fn netns_path(&self, id: &str) -> PathBuf {
        self.netns_dir.join(format!("vmlet-{id}"))
    }
}

fn up<'a>(slot: &'a Slot, id: &str) -> Result<&'a Entry, Failure> {
    match slot.as_ref() {
        Some(Live { entry, .. }) if entry.phase == Phase::Up => Ok(entry),
        _ => Err(Failure::NotFound(id.to_owned())),
    }
}

/// The node's identifier of this boot, or nothing.
fn boot(file: &Path) -> String {
    match boot_id::read(file) {
        Ok(id) => id.chars().take(MAX_ID).collect(),
        Err(error) => {
            tracing::warn!(file = %file.display(), error = %error, "boot ID not available");
            String::new()
        }
    }
}

/// Caches of other runtimes on the node, whose attachments must not be collected.
fn neighbours(own: &Path) -> Vec<PathBuf> {
    ["/var/lib/cni"]
        .into_iter()
        .map(PathBuf::from)
        .filter(|dir| dir != own)
        .collect()
}

/// What every network needs of the node besides CNI, or a sentence about what is missing.
fn requirements() -> Result<(), String> {
    if !Path::new("/dev/net/tun").exists() {
        return Err("/dev/net/tun is missing (kernel module tun)".to_owned());
    }
    if !netns::filter_available() {
        return Err("the program nft is not installed (package nftables)".to_owned());
    }
    Ok(())
}
