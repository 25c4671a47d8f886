//! The commands of the specification for whole chains.
//!
//! Invariant: an attachment is in the cache from before its first plugin runs until its last DEL
//! has succeeded; ADD goes forward, DEL backward, CHECK forward, each with the attachment's own
//! configuration.
//! Failure: a failed ADD is undone as far as plugins allow; what could not be undone stays in the
//! cache for the next [`Runtime::del`] or [`Runtime::gc`]. A dropped future does the same.

mod chain;
mod collect;
mod error;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rscni_types::types::Cmd;
use rscni_types::version::SpecVersion;

use crate::cache::{Cache, Entry};
use crate::config::load;
use crate::invoke::{Call, Invoker, Observer};
use crate::{AddResult, Attachment, CacheError, CachedAttachment, NetworkConfig};
use chain::{Walk, plugin_input};
pub use collect::GcOutcome;
pub use error::{Error, ErrorKind, Result};

/// Where things are, and how long plugins may take.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Directory of network configurations, `/etc/cni/net.d` as a rule.
    pub conf_dir: PathBuf,
    /// Directories of plugins, searched in order.
    pub bin_dirs: Vec<PathBuf>,
    /// Directory of the cache. It belongs to this runtime alone: entries that the caller does not
    /// list is taken down.
    pub cache_dir: PathBuf,
    /// What each plugin call is given.
    pub timeout: Duration,
}

/// Attaches containers to networks.
///
/// Calls for one container must not overlap; calls for different containers may.
#[derive(Debug, Clone)]
pub struct Runtime {
    conf_dir: PathBuf,
    invoker: Invoker,
    cache: Cache,
    neighbours: Vec<Cache>,
}

impl Runtime {
    /// A runtime; touches nothing yet.
    pub fn new(settings: Settings) -> Self {
        Self {
            conf_dir: settings.conf_dir,
            invoker: Invoker {
                bin_dirs: settings.bin_dirs,
                deadline: settings.timeout,
                observer: None,
            },
            cache: Cache::new(settings.cache_dir),
            neighbours: Vec::new(),
        }
    }

    /// Caches of other runtimes on the node (`/var/lib/cni`) whose attachments plugins must not
    /// collect when [`Self::gc`] passes the valid attachments to plugins. They are only read.
    #[must_use]
    pub fn with_neighbours(mut self, cache_dirs: impl IntoIterator<Item = PathBuf>) -> Self {
        self.neighbours = cache_dirs.into_iter().map(Cache::new).collect();
        self
    }

    /// `observer` notices each call of a plugin.
    #[must_use]
    pub fn with_observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.invoker.observer = Some(observer);
        self
    }

    /// The network that new attachments get: the first usable file of the directory, read afresh.
    pub async fn network(&self) -> Result<NetworkConfig> {
        let dir = self.conf_dir.clone();
        tokio::task::spawn_blocking(move || load(&dir))
            .await
            .map_err(Error::Interrupted)?
            .map_err(Error::Network)
    }

    /// Attaches a container. What an unfinished earlier ADD left is taken down first.
    ///
    /// [`Error::Attached`] when the container's link is attached already.
    pub async fn add(&self, network: &NetworkConfig, attachment: &Attachment) -> Result<AddResult> {
        attachment.validate().map_err(Error::Attachment)?;
        let kinds = network.plugins().iter().map(|p| p.kind());
        self.invoker
            .require(network.name(), Cmd::Add, kinds)
            .await
            .map_err(Error::plugin)?;
        let id = attachment.id();
        for old in self.on_disk(move |cache| cache.find(&id)).await? {
            if old.result.is_some() {
                return Err(Error::Attached {
                    id: old.id(),
                    network: old.network_name,
                });
            }
            self.del_entry(old).await?;
        }
        let entry = Entry::pending(network, attachment);
        self.put(entry.clone()).await?;
        let error = match self.add_chain(network, attachment).await {
            Ok(result) => {
                let complete = entry.completed(result.raw.clone());
                match self.put(complete).await {
                    Ok(()) => return Ok(result),
                    Err(error) => error,
                }
            }
            Err(error) => error,
        };
        self.undo(network, attachment).await;
        Err(error)
    }

    /// Asks the plugins whether an attachment is as they left it. Does nothing for networks that
    /// cannot be asked: those before version 0.4.0, and those with `disableCheck`.
    pub async fn check(&self, attachment: &Attachment) -> Result<()> {
        attachment.validate().map_err(Error::Attachment)?;
        let id = attachment.id();
        let found = self.on_disk(move |cache| cache.find(&id)).await?;
        let complete = found.into_iter().find(|entry| entry.result.is_some());
        let entry = complete.ok_or_else(|| Error::NotAttached {
            id: attachment.id(),
        })?;
        let network = entry.network().map_err(Error::Network)?;
        if network.disable_check() || network.version().allows(Cmd::Check).is_err() {
            return Ok(());
        }
        let requested = Attachment {
            netns: attachment.netns.clone(),
            ..entry.attachment()
        };
        for plugin in network.plugins() {
            let config = plugin_input(
                &network,
                plugin,
                Some(&requested),
                entry.result.as_ref(),
                None,
            );
            self.invoker
                .run(&Call {
                    command: Cmd::Check,
                    network: network.name(),
                    plugin: plugin.kind(),
                    attachment: Some(&requested),
                    config,
                })
                .await
                .map_err(Error::plugin)?;
        }
        Ok(())
    }

    /// Detaches a container, with the configuration and arguments that ADD was called with. When
    /// the cache knows nothing, the chain of `fallback` is called, if given; success when there is
    /// nothing to do. May be repeated. See [`Error::is_record_only`] for a disk that takes no
    /// writes.
    pub async fn del(
        &self,
        attachment: &Attachment,
        fallback: Option<&NetworkConfig>,
    ) -> Result<()> {
        attachment.validate().map_err(Error::Attachment)?;
        let id = attachment.id();
        let entries = self.on_disk(move |cache| cache.find(&id)).await?;
        if entries.is_empty()
            && let Some(network) = fallback
        {
            return self
                .del_chain(network, attachment, None, Walk::StopAtFirst)
                .await;
        }
        let mut outcome = Ok(());
        for entry in entries {
            match self.del_entry(entry).await {
                Err(error) if error.is_record_only() => outcome = Err(error),
                other => other?,
            }
        }
        outcome
    }

    /// Whether new attachments can be made: every plugin is there, and from version 1.1.0 on each
    /// reports it itself.
    pub async fn status(&self, network: &NetworkConfig) -> Result<()> {
        let kinds = network.plugins().iter().map(|p| p.kind());
        self.invoker
            .require(network.name(), Cmd::Status, kinds)
            .await
            .map_err(Error::plugin)?;
        if network.version().allows(Cmd::Status).is_err() {
            return Ok(());
        }
        for plugin in network.plugins() {
            let config = plugin_input(network, plugin, None, None, None);
            let command = Cmd::Status;
            let name = network.name();
            let call = Call {
                command,
                network: name,
                plugin: plugin.kind(),
                attachment: None,
                config,
            };
            self.invoker.run(&call).await.map_err(Error::plugin)?;
        }
        Ok(())
    }

    /// Every attachment in the cache, finished or not.
    pub async fn cached(&self) -> Result<Vec<CachedAttachment>> {
        let entries = self.on_disk(Cache::all).await?;
        Ok(entries.iter().map(Entry::summary).collect())
    }

    async fn put(&self, entry: Entry) -> Result<()> {
        self.on_disk(move |cache| cache.put(&entry)).await
    }

    /// Works on the cache away from the asynchronous workers.
    async fn on_disk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Cache) -> Result<T, CacheError> + Send + 'static,
    ) -> Result<T> {
        let cache = self.cache.clone();
        tokio::task::spawn_blocking(move || work(&cache))
            .await
            .map_err(Error::Interrupted)?
            .map_err(Error::Cache)
    }
}

/// Whether a version carries results to DEL.
fn del_has_result(version: SpecVersion) -> bool {
    version >= SpecVersion::new(0, 4, 0)
}
