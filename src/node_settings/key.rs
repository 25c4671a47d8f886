//! The settings that a cluster can give a node.
//!
//! Invariant: each has the name, and takes the values, that it has in the configuration file.
//! Failure: a sentence that states what is allowed.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde::de::IntoDeserializer as _;
use serde::de::value::{Error, StrDeserializer};

use crate::config::Config;

/// A setting that a cluster can give a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "each is described where its key of Config is")]
pub enum Key {
    LogLevel,
    Accelerator,
    DefaultVcpus,
    DefaultMemory,
    CpuModel,
    Protocol,
    MaxDownload,
    MaxVirtualSize,
}

impl Key {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::LogLevel,
        Self::Accelerator,
        Self::DefaultVcpus,
        Self::DefaultMemory,
        Self::CpuModel,
        Self::Protocol,
        Self::MaxDownload,
        Self::MaxVirtualSize,
    ];

    /// Its key in the configuration file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::LogLevel => "log.level",
            Self::Accelerator => "vm.accelerator",
            Self::DefaultVcpus => "vm.default_vcpus",
            Self::DefaultMemory => "vm.default_memory",
            Self::CpuModel => "vm.cpu_model",
            Self::Protocol => "images.protocol",
            Self::MaxDownload => "images.max_download",
            Self::MaxVirtualSize => "images.max_virtual_size",
        }
    }

    /// Its value as the configuration file has it, without quotes.
    pub(super) fn value(self, config: &Config) -> String {
        match self {
            Self::LogLevel => config.log.level.to_string(),
            Self::Accelerator => word_of(config.vm.accelerator),
            Self::DefaultVcpus => config.vm.default_vcpus.to_string(),
            Self::DefaultMemory => config.vm.default_memory.to_string(),
            Self::CpuModel => word_of(config.vm.cpu_model),
            Self::Protocol => word_of(config.images.protocol),
            Self::MaxDownload => config.images.max_download.to_string(),
            Self::MaxVirtualSize => config.images.max_virtual_size.to_string(),
        }
    }

    /// Gives it this value.
    pub(super) fn set(self, config: &mut Config, text: &str) -> Result<(), String> {
        match self {
            Self::LogLevel => config.log.level = text.parse()?,
            Self::Accelerator => config.vm.accelerator = word(text)?,
            Self::DefaultVcpus => config.vm.default_vcpus = text.parse()?,
            Self::DefaultMemory => config.vm.default_memory = text.parse()?,
            Self::CpuModel => config.vm.cpu_model = word(text)?,
            Self::Protocol => config.images.protocol = word(text)?,
            Self::MaxDownload => config.images.max_download = text.parse()?,
            Self::MaxVirtualSize => config.images.max_virtual_size = text.parse()?,
        }
        Ok(())
    }
}

/// One of the words that a setting can be.
fn word<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let text: StrDeserializer<'_, Error> = text.into_deserializer();
    T::deserialize(text).map_err(|e| e.to_string())
}

fn word_of(value: impl Serialize) -> String {
    let value = serde_json::to_value(value).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}
