//! Layers of options, and how the last one that speaks wins.
//!
//! Invariant: every layer is a [`PartialConfig`](super::PartialConfig), whatever it was read from.
//! Failure: an error of the layer that holds the bad value; later layers do not hide it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use service::settings;

use super::flags::Overrides;
use super::schema::Setting;
use super::value::Value;
use super::{Config, DEFAULT_FILE, Error, PartialConfig, Result};

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The program.
    Default,
    /// A configuration file.
    File(PathBuf),
    /// An environment variable.
    Environment,
    /// The command line.
    Flags,
}

/// One layer and its source.
#[derive(Debug)]
pub(super) struct Layer {
    source: Source,
    values: PartialConfig,
}

/// The configuration in force, and where each value came from.
#[derive(Debug)]
pub struct Effective {
    /// The values.
    pub config: Config,
    pub(super) origins: Origins,
}

/// Sources by key.
#[derive(Debug, Default)]
pub(super) struct Origins(BTreeMap<&'static str, Source>);

/// Values of a layer as texts, not yet parsed.
pub(super) struct Texts<'a> {
    source: &'a Source,
    lookup: &'a dyn Fn(&Setting) -> Option<OsString>,
}

impl Source {
    /// Who gives the value of `setting`, in words.
    pub(super) fn describe(&self, setting: &Setting) -> String {
        match self {
            Self::Default => "default".to_owned(),
            Self::File(path) => format!("file {}", path.display()),
            Self::Environment => format!("environment {}", setting.variable),
            Self::Flags => format!("flag --{}", setting.flag),
        }
    }
}

impl Layer {
    pub(super) fn defaults() -> Result<Self> {
        Self::from_texts(Source::Default, &|setting| Some(setting.default.into()))
    }

    /// The file that was named, or the usual one if it is there.
    pub(super) fn file(named: Option<&Path>) -> Result<Self> {
        let values = settings::load(named, DEFAULT_FILE)?;
        let source = Source::File(named.unwrap_or(Path::new(DEFAULT_FILE)).into());
        Ok(Self { source, values })
    }

    /// Variables that belong to no setting are left to others.
    pub(super) fn environment(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
        Self::from_texts(Source::Environment, &|setting| variable(&setting.variable))
    }

    pub(super) fn flags(given: &Overrides) -> Result<Self> {
        Self::from_texts(Source::Flags, &|setting| given.get(setting.key))
    }

    fn from_texts(source: Source, lookup: &dyn Fn(&Setting) -> Option<OsString>) -> Result<Self> {
        let texts = Texts {
            source: &source,
            lookup,
        };
        let values = PartialConfig::from_texts(&texts)?;
        Ok(Self { source, values })
    }
}

impl Origins {
    /// The value of the last layer that has one; remembers which layer that was.
    pub(super) fn pick<T: Clone>(
        &mut self,
        key: &'static str,
        layers: &[Layer],
        get: impl Fn(&PartialConfig) -> Option<&T>,
    ) -> Result<T> {
        let speaks = |layer: &Layer| Some((get(&layer.values)?.clone(), layer.source.clone()));
        let (value, source) = layers
            .iter()
            .rev()
            .find_map(speaks)
            .ok_or(Error::Missing(key))?;
        self.0.insert(key, source);
        Ok(value)
    }

    /// Where the value of `key` came from.
    pub(super) fn of(&self, key: &str) -> &Source {
        self.0.get(key).unwrap_or(&Source::Default)
    }
}

impl Texts<'_> {
    /// The value of `key`, if this layer has one.
    pub(super) fn parse<T: Value>(&self, key: &'static str) -> Result<Option<T>> {
        let setting = Setting::named(key).ok_or(Error::Missing(key))?;
        let Some(text) = (self.lookup)(setting) else {
            return Ok(None);
        };
        let refuse = |text: &str, reason: &str| {
            let origin = self.source.describe(setting);
            Error::Value(settings::refusal(&origin, text, reason))
        };
        match text.to_str() {
            Some(text) => text.parse().map(Some).map_err(|e: String| refuse(text, &e)),
            None => Err(refuse(&text.to_string_lossy(), "it is not UTF-8")),
        }
    }
}

impl fmt::Debug for Texts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Texts").field(self.source).finish()
    }
}
