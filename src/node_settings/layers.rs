//! The settings of the cluster between the defaults and those of the node itself.
//!
//! Invariant: pure. What is accepted passed the check of all settings; what a later version recorded
//! and this one cannot use is left out.
//! Failure: a sentence that states what is allowed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use service::settings::{Effective, Settings as _, Source};
use service::telemetry::Level;

use super::key::Key;
use crate::config::Config;
use crate::metadata::{self, Db};

/// Longest value, and longest name of an object.
const LONGEST_VALUE: usize = 256;
const LONGEST_NAME: usize = 253;

/// A setting of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Given {
    /// As the configuration file has it, without quotes.
    pub value: String,
    /// Name of the `NodeConfig` that it is from.
    pub from: String,
}

/// The settings of the cluster that were accepted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Accepted(BTreeMap<Key, Given>);

/// A setting as it is in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InForce {
    /// Which one.
    pub key: Key,
    /// As the configuration file has it.
    pub value: String,
    /// Who set it.
    pub source: String,
}

/// The settings of the node itself.
#[derive(Debug, Clone, Default)]
pub struct Local {
    config: Config,
    /// Those that the node sets, and where.
    sources: BTreeMap<Key, String>,
    level: Option<Level>,
}

impl From<&Config> for Local {
    /// None of the settings is the node's own.
    fn from(config: &Config) -> Self {
        Self {
            config: config.clone(),
            ..Self::default()
        }
    }
}

impl From<&Effective<Config>> for Local {
    fn from(effective: &Effective<Config>) -> Self {
        let own = Key::ALL.into_iter().filter_map(|key| {
            let source = effective.source(key.name());
            (*source != Source::Default).then(|| (key, source.to_string()))
        });
        Self {
            sources: own.collect(),
            ..Self::from(&effective.config)
        }
    }
}

impl Local {
    /// With what changes the level of the log.
    #[must_use]
    pub fn with_level(self, level: Option<Level>) -> Self {
        Self { level, ..self }
    }

    /// What changes the level of the log, if anything does.
    pub(crate) fn level(&self) -> Option<Level> {
        self.level.clone()
    }

    /// Without the settings of the cluster.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Where the node sets it, if it does.
    pub(super) fn source(&self, key: Key) -> Option<&str> {
        self.sources.get(&key).map(String::as_str)
    }

    /// All settings that a cluster can give, as they are with those of the cluster.
    pub(super) fn in_force(&self, accepted: &Accepted) -> Vec<InForce> {
        let config = self.with(accepted);
        let in_force = |key: Key| InForce {
            key,
            value: key.value(&config),
            source: self.source_with(key, accepted),
        };
        Key::ALL.into_iter().map(in_force).collect()
    }

    /// What sets a setting when these are accepted: the node, a NodeConfig, or the default.
    fn source_with(&self, key: Key, accepted: &Accepted) -> String {
        let given = accepted.get(key);
        match (self.source(key), given) {
            (Some(source), _) => source.to_owned(),
            (None, Some(given)) => format!("NodeConfig {}", given.from),
            (None, None) => Source::Default.to_string(),
        }
    }

    /// All settings with those of the cluster.
    pub fn with(&self, accepted: &Accepted) -> Config {
        let mut config = self.config.clone();
        let ours = accepted.0.iter();
        for (key, given) in ours.filter(|(key, _)| self.source(**key).is_none()) {
            // It was checked.
            let _ = key.set(&mut config, &given.value);
        }
        config
    }

    /// Refuses what cannot be used on this node.
    pub(super) fn check(&self, key: Key, given: &Given) -> Result<(), String> {
        if given.value.len() > LONGEST_VALUE || given.from.len() > LONGEST_NAME {
            return Err(format!(
                "a value has at most {LONGEST_VALUE} bytes, and the name of an object {LONGEST_NAME}"
            ));
        }
        let mut config = self.config.clone();
        key.set(&mut config, &given.value)?;
        config.check().map_err(|problem| problem.to_string())?;
        let images = &config.images;
        let most = images.max_download;
        let all = images.max_partial;
        if key == Key::MaxDownload && most.bytes() > all.bytes() {
            return Err(format!(
                "it is above images.max_partial of the node, which is {all}: lower it, or raise that"
            ));
        }
        Ok(())
    }
}

impl Accepted {
    /// What was recorded last, as far as this version can use it.
    ///
    /// # Errors
    ///
    /// Those of the database.
    pub async fn load(db: &Db, local: &Local) -> metadata::Result<Self> {
        let text = metadata::node::settings(db).await?;
        Ok(text.map_or_else(Self::default, |text| Self::from_text(&text, local)))
    }

    fn from_text(text: &str, local: &Local) -> Self {
        let recorded: BTreeMap<String, Given> = match serde_json::from_str(text) {
            Ok(recorded) => recorded,
            Err(error) => {
                let error = error.to_string();
                tracing::warn!(error, "recorded settings of the cluster not usable");
                return Self::default();
            }
        };
        let mut accepted = Self::default();
        for (name, given) in recorded {
            let key = Key::ALL.into_iter().find(|key| key.name() == name);
            let unknown = || "this version has no such setting".to_owned();
            let checked = key.ok_or_else(unknown);
            match checked.and_then(|key| local.check(key, &given).map(|()| key)) {
                Ok(key) => accepted.put(key, Some(given)),
                Err(error) => {
                    tracing::warn!(
                        setting = name,
                        error,
                        "recorded settings of the cluster not usable"
                    );
                }
            }
        }
        accepted
    }

    pub(super) fn to_text(&self) -> String {
        let named = self.0.iter().map(|(key, given)| (key.name(), given));
        let named: BTreeMap<_, _> = named.collect();
        serde_json::to_string(&named).unwrap_or_default()
    }

    pub(super) fn get(&self, key: Key) -> Option<&Given> {
        self.0.get(&key)
    }

    pub(super) fn put(&mut self, key: Key, given: Option<Given>) {
        match given {
            Some(given) => drop(self.0.insert(key, given)),
            None => drop(self.0.remove(&key)),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
