//! Settings that the cluster gives this node by `NodeConfig` objects, which the agent merges.
//!
//! ```text
//! defaults  <  settings of the cluster  <  file, environment and flags of the node
//! ```
//!
//! Invariant: what is accepted is recorded before it has an effect, and counts after a restart, also
//! while no agent runs. A setting of the node itself always wins. Machines that run stay as they are.
//! Failure: a setting that is refused keeps its earlier value, and the others are used; the reason is
//! a sentence for the agent.

mod key;
mod layers;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::sync::Mutex;

pub use key::Key;
pub use layers::{Accepted, Given, InForce, Local};

use crate::config::Config;
use crate::metadata::{self, Db};
use crate::tasks::{Aborted, Tasks};

/// Time that a caller waits for new settings: a probe of KVM may take longer. The work goes on.
const DEADLINE: Duration = Duration::from_secs(8);
/// Most settings of a request.
const MOST: usize = 64;

/// What uses the settings.
#[tonic::async_trait]
pub trait Target: Debug + Send + Sync {
    /// Finds out whether machines can run with the accelerator of these settings; nothing changes.
    async fn try_accelerator(&self, config: &Config) -> Result<(), String>;

    /// Uses these settings from now on.
    async fn apply(&self, config: &Config);
}

/// New settings could not be used; those of before still are.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// More than any agent sends.
    #[error("a request has at most {MOST} settings")]
    TooMany,
    /// They are still being tried.
    #[error("the settings are still being applied: send them again")]
    Slow,
    /// They could not be recorded.
    #[error("failed to record the settings of the cluster")]
    Record(#[from] metadata::Error),
    /// The daemon is stopping.
    #[error(transparent)]
    Aborted(#[from] Aborted),
}

/// What became of a setting of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It counts.
    InUse,
    /// The node itself has this setting, from this source.
    Overridden(String),
    /// It cannot be used; why.
    Refused(String),
}

/// The settings of the cluster by the name of their key.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// All of them.
    pub settings: BTreeMap<String, Given>,
    /// Which settings stay that are not in here.
    pub kept: Kept,
}

/// Which settings stay although a request does not have them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Kept {
    /// None.
    #[default]
    None,
    /// Those that these objects gave, by name.
    Of(BTreeSet<String>),
    /// All of them.
    All,
}

impl Kept {
    fn has(&self, given: &Given) -> bool {
        match self {
            Self::None => false,
            Self::Of(names) => names.contains(&given.from),
            Self::All => true,
        }
    }
}

/// What became of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    /// By the key of the request.
    pub outcomes: BTreeMap<String, Outcome>,
    /// All settings that a cluster can give.
    pub in_force: Vec<InForce>,
}

/// The settings of the cluster on this node.
#[derive(Debug)]
pub struct NodeSettings {
    db: Db,
    local: Local,
    target: Arc<dyn Target>,
    tasks: Tasks,
    /// Held while new ones are tried, recorded and applied.
    accepted: Mutex<Accepted>,
    in_force: std::sync::Mutex<Vec<InForce>>,
}

impl NodeSettings {
    /// Continues with what was accepted; the target uses that already.
    pub fn new(
        db: Db,
        local: Local,
        accepted: Accepted,
        target: Arc<dyn Target>,
        tasks: Tasks,
    ) -> Self {
        Self {
            in_force: std::sync::Mutex::new(local.in_force(&accepted)),
            db,
            local,
            target,
            tasks,
            accepted: Mutex::new(accepted),
        }
    }

    /// All settings that a cluster can give, as they were applied last.
    pub fn in_force(&self) -> Vec<InForce> {
        let known = self.in_force.lock();
        known.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts these settings of the cluster in the place of those before, also if the caller
    /// disconnects. Repeatable.
    ///
    /// # Errors
    ///
    /// [`Error`] when nothing is known of their effect; they are to be sent again.
    pub async fn replace(self: &Arc<Self>, request: Request) -> Result<Answer, Error> {
        if request.settings.len() > MOST {
            return Err(Error::TooMany);
        }
        let this = Arc::clone(self);
        let work = async move { this.replace_in_turn(request).await };
        let replaced = tokio::time::timeout(DEADLINE, self.tasks.finish(work)).await;
        replaced.unwrap_or(Err(Error::Slow))
    }

    async fn replace_in_turn(&self, request: Request) -> Result<Answer, Error> {
        let mut accepted = self.accepted.lock().await;
        let Request { settings, kept } = request;
        let mut refused = BTreeMap::new();
        let mut next = Accepted::default();
        for key in Key::ALL {
            let before = accepted.get(key);
            let given = settings.get(key.name());
            let checked = given.map(|given| self.local.check(key, given).map(|()| given));
            let chosen = match checked {
                Some(Ok(given)) => Some(given),
                Some(Err(reason)) => {
                    refused.insert(key, reason);
                    before
                }
                None => before.filter(|given| kept.has(given)),
            };
            next.put(key, chosen.cloned());
        }
        let before = self.local.with(&accepted);
        let mut config = self.local.with(&next);
        let key = Key::Accelerator;
        let is_requested = settings.contains_key(key.name()) && !refused.contains_key(&key);
        let is_other = is_requested && config.vm.accelerator != before.vm.accelerator;
        if is_other && let Err(reason) = self.target.try_accelerator(&config).await {
            refused.insert(key, reason);
            next.put(key, accepted.get(key).cloned());
            config = self.local.with(&next);
        }
        if next != *accepted {
            metadata::node::set_settings(&self.db, next.to_text()).await?;
            *accepted = next;
            tracing::info!(settings = accepted.len(), "settings of the cluster changed");
        }
        if config != before {
            self.target.apply(&config).await;
        }
        let in_force = self.local.in_force(&accepted);
        let known = self.in_force.lock();
        known
            .unwrap_or_else(PoisonError::into_inner)
            .clone_from(&in_force);
        Ok(Answer {
            in_force,
            outcomes: self.outcomes(&settings, &refused),
        })
    }

    fn outcomes(
        &self,
        settings: &BTreeMap<String, Given>,
        refused: &BTreeMap<Key, String>,
    ) -> BTreeMap<String, Outcome> {
        let outcome = |name: &String| {
            let Some(key) = Key::ALL.into_iter().find(|key| key.name() == name) else {
                let reason = "this daemon has no such setting that a NodeConfig can give";
                return Outcome::Refused(reason.to_owned());
            };
            match (refused.get(&key), self.local.source(key)) {
                (Some(reason), _) => Outcome::Refused(reason.clone()),
                (None, Some(source)) => Outcome::Overridden(source.to_owned()),
                (None, None) => Outcome::InUse,
            }
        };
        settings.keys().map(|k| (k.clone(), outcome(k))).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests;
