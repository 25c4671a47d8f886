//! Network configurations: the content of a file, checked once.
//!
//! Invariant: a [`NetworkConfig`] has at least one plugin, plain names, and a version that this
//! crate speaks; keys that this module does not use reach the plugins unchanged.
//! Failure: a configuration that does not hold is an error that states what is wrong with it.

mod load;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use rscni_types::version::SpecVersion;
use serde_json::{Map, Value};

pub(crate) use load::load;

use crate::text::{is_file_name, is_name};

/// Most plugins in one network.
const MAX_PLUGINS: usize = 32;

/// A network: an ordered chain of plugins.
#[derive(Debug, Clone, PartialEq)]
pub struct NetworkConfig {
    name: String,
    version: SpecVersion,
    file: Option<PathBuf>,
    disable_check: bool,
    disable_gc: bool,
    inlined_only: bool,
    plugins: Vec<Plugin>,
    raw: Map<String, Value>,
}

/// One plugin of a chain.
#[derive(Debug, Clone, PartialEq)]
pub struct Plugin {
    kind: String,
    config: Map<String, Value>,
}

/// Why a file is no usable network.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file or directory cannot be read.
    #[error("read {path}")]
    Read {
        /// Which.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// Larger than any sensible configuration.
    #[error("{path} is larger than {limit} bytes")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// What is allowed.
        limit: u64,
    },
    /// Not JSON.
    #[error("not JSON")]
    Json(#[source] serde_json::Error),
    /// JSON, but a key is missing or holds what it must not.
    #[error("{key}: {reason}")]
    Key {
        /// Where.
        key: String,
        /// What is wrong.
        reason: &'static str,
    },
    /// None of the versions named is one this crate speaks.
    #[error("no supported CNI version among {found:?}")]
    Version {
        /// What the configuration names.
        found: Vec<String>,
    },
    /// The directory holds no usable configuration.
    #[error("no usable CNI configuration in {dir}{}", Rejected::list(.rejected))]
    None {
        /// The directory.
        dir: PathBuf,
        /// Files that were checked, in order.
        rejected: Vec<Rejected>,
    },
}

/// A file that was passed over.
#[derive(Debug)]
pub struct Rejected {
    /// The file.
    pub file: PathBuf,
    /// Why.
    pub error: ConfigError,
}

impl Rejected {
    fn list(rejected: &[Self]) -> String {
        let one = |r: &Self| {
            let name = r
                .file
                .file_name()
                .unwrap_or(r.file.as_os_str())
                .to_string_lossy();
            let cause = std::error::Error::source(&r.error).map(|s| format!(": {s}"));
            format!("; {name}: {}{}", r.error, cause.unwrap_or_default())
        };
        rejected.iter().map(one).collect()
    }
}

impl NetworkConfig {
    /// Reads a configuration list, or a single plugin's configuration as a list of one.
    pub fn parse(bytes: &[u8]) -> Result<Self, ConfigError> {
        let config = Self::parse_part(bytes)?;
        if config.plugins.is_empty() {
            return Err(key("plugins", "no plugin"));
        }
        Ok(config)
    }

    /// As [`Self::parse`], but plugins may be missing because a folder brings them.
    fn parse_part(bytes: &[u8]) -> Result<Self, ConfigError> {
        let raw: Map<String, Value> = serde_json::from_slice(bytes).map_err(ConfigError::Json)?;
        let name = string(&raw, "name")?.ok_or_else(|| key("name", "is missing"))?;
        if !is_name(name) {
            return Err(key("name", "is not a valid network name"));
        }
        let plugins = match raw.get("plugins") {
            Some(Value::Array(list)) if list.len() <= MAX_PLUGINS => {
                list.iter().map(Plugin::new).collect::<Result<_, _>>()?
            }
            Some(Value::Array(_)) => return Err(key("plugins", "too many")),
            Some(_) => return Err(key("plugins", "is not a list")),
            None if raw.contains_key("type") => vec![Plugin::new(&Value::Object(raw.clone()))?],
            None => Vec::new(),
        };
        Ok(Self {
            name: name.to_owned(),
            version: best_version(&raw)?,
            file: None,
            disable_check: boolean(&raw, "disableCheck")?,
            disable_gc: boolean(&raw, "disableGC")?,
            inlined_only: boolean(&raw, "loadOnlyInlinedPlugins")? || raw.contains_key("type"),
            plugins,
            raw,
        })
    }

    /// Name of the network.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The version spoken with its plugins: the newest of those it names that this crate knows.
    pub fn version(&self) -> SpecVersion {
        self.version
    }

    /// The file it was read from, if any.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// The chain, in the order of ADD.
    pub fn plugins(&self) -> &[Plugin] {
        &self.plugins
    }

    /// Whether CHECK must not be called.
    pub fn disable_check(&self) -> bool {
        self.disable_check
    }

    /// Whether GC must not be called, because others share the network.
    pub fn disable_gc(&self) -> bool {
        self.disable_gc
    }

    /// The whole configuration as a list, such that [`Self::parse`] gives the same chain.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let single = self.raw.contains_key("type") && !self.raw.contains_key("plugins");
        let mut list = if single { Map::new() } else { self.raw.clone() };
        list.insert("name".into(), self.name.clone().into());
        list.insert("cniVersion".into(), self.version.to_string().into());
        let plugins = self
            .plugins
            .iter()
            .map(|p| Value::Object(p.config.clone()))
            .collect();
        list.insert("plugins".into(), Value::Array(plugins));
        Value::Object(list).to_string().into_bytes()
    }
}

impl Plugin {
    fn new(value: &Value) -> Result<Self, ConfigError> {
        let config = value
            .as_object()
            .ok_or_else(|| key("plugins", "holds what is no object"))?;
        let kind = string(config, "type")?.ok_or_else(|| key("type", "is missing"))?;
        if !is_file_name(kind) {
            return Err(key("type", "is not a plain file name"));
        }
        Ok(Self {
            kind: kind.to_owned(),
            config: config.clone(),
        })
    }

    /// The plugin's type, which is the name of its program.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// Whether it declares `capability`.
    pub fn has_capability(&self, capability: &str) -> bool {
        self.config
            .get("capabilities")
            .and_then(|c| c.get(capability))
            == Some(&Value::Bool(true))
    }

    /// Its configuration as written.
    pub(crate) fn config(&self) -> &Map<String, Value> {
        &self.config
    }
}

/// The newest supported one of `cniVersion` and `cniVersions`.
fn best_version(raw: &Map<String, Value>) -> Result<SpecVersion, ConfigError> {
    let mut found: Vec<String> = string(raw, "cniVersion")?
        .map(Into::into)
        .into_iter()
        .collect();
    match raw.get("cniVersions") {
        None | Some(Value::Null) => {}
        Some(Value::Array(list)) => {
            found.extend(list.iter().filter_map(Value::as_str).map(Into::into))
        }
        Some(_) => return Err(key("cniVersions", "is not a list")),
    }
    let supported = |v: &SpecVersion| v.is_supported() && *v <= SpecVersion::CURRENT;
    let best = found
        .iter()
        .filter_map(|v| v.parse().ok())
        .filter(supported)
        .max();
    best.ok_or(ConfigError::Version { found })
}

fn string<'a>(map: &'a Map<String, Value>, name: &str) -> Result<Option<&'a str>, ConfigError> {
    match map.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(key(name, "is not a string")),
    }
}

/// A switch, which the reference implementation also accepts as a string.
fn boolean(map: &Map<String, Value>, name: &str) -> Result<bool, ConfigError> {
    match map.get(name) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(value)) => Ok(*value),
        Some(Value::String(word)) if word.eq_ignore_ascii_case("true") => Ok(true),
        Some(Value::String(word)) if word.eq_ignore_ascii_case("false") => Ok(false),
        Some(_) => Err(key(name, "is neither true nor false")),
    }
}

fn key(key: &str, reason: &'static str) -> ConfigError {
    ConfigError::Key {
        key: key.into(),
        reason,
    }
}
