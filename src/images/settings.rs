//! The settings of the image store.
//!
//! Invariant: plain values without behaviour; `Images::open` checks them once.
//! Failure: none here.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use service::boot_id;

use super::addresses::Private;
use super::collect::Collection;
use super::conversion::Converter;
use super::convertible::Convertible;
use super::format::{RawData, Rules};
use super::reference::presentable;
use crate::metrics::Metrics;
use crate::space::Space;

/// Settings of the image store.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Directory of the store; made if missing. Its parents must be searchable by QEMU's user.
    pub dir: PathBuf,
    /// Group that may read the images; `None`: ours.
    pub readers: Option<u32>,
    /// File that states which boot of the node this is: only what was written in it is continued.
    pub boot_id_file: PathBuf,
    /// How names are fetched that give no scheme and match no translation.
    pub protocol: Protocol,
    /// Names that refer to other URLs.
    pub translations: Vec<Translation>,
    /// Directory of files with more of them, in Virtlet's format.
    pub translations_dir: PathBuf,
    /// Directory of the mappings of the cluster; made if missing.
    pub cluster_mappings_dir: PathBuf,
    /// Hosts of OCI registries: images with these hosts are pulled from them.
    pub registries: Vec<String>,
    /// Directory of the registries' servers, certificates and mirrors, in containerd's format. A
    /// host with a directory there is that of a registry.
    pub registries_dir: PathBuf,
    /// Largest file that is downloaded, in bytes.
    pub max_download_bytes: u64,
    /// Largest disk that an image may present to a guest, in bytes.
    pub max_virtual_bytes: u64,
    /// Formats of other programs that are accepted and converted to qcow2.
    pub convert: Vec<Convertible>,
    /// What converts them; without it, none is accepted.
    pub converter: Option<Arc<dyn Converter>>,
    /// Most bytes that downloads in progress and those to be continued take together.
    pub max_partial_bytes: u64,
    /// Free space of the node, with what downloads leave free.
    pub space: Space,
    /// Least number of bytes per second from a server, on average over the stall time.
    pub min_rate: u64,
    /// Longest time for a connection to come up, TLS included.
    pub connect_timeout: Duration,
    /// Longest time in which a server may send nothing.
    pub stall_timeout: Duration,
    /// Wait before the first repetition of a failed transfer; doubles with each of the three.
    pub retry_wait: Duration,
    /// PEM file of certificate authorities that are trusted beside the system's.
    pub ca_file: Option<PathBuf>,
    /// Whether the proxy variables of the environment are honoured.
    pub proxy: Proxy,
    /// Addresses that images may be fetched from although they are refused by their kind.
    pub allowed_addresses: Vec<IpNet>,
    /// Whether images are fetched from private addresses.
    pub private_addresses: Private,
    /// Whether raw files are images that do not begin as disks do.
    pub raw_data: RawData,
    /// When images that nothing uses are collected.
    pub collection: Collection,
    /// What is counted.
    pub metrics: Arc<Metrics>,
}

impl Settings {
    /// The defaults, for a store in `dir`.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        let dir = dir.into();
        Self {
            cluster_mappings_dir: dir.with_file_name("image-mappings"),
            dir,
            readers: None,
            boot_id_file: boot_id::KERNEL.into(),
            protocol: Protocol::Https,
            translations: Vec::new(),
            translations_dir: PathBuf::from("/etc/vmlet/translations.d"),
            registries: Vec::new(),
            registries_dir: PathBuf::from("/etc/vmlet/certs.d"),
            max_download_bytes: 64 << 30,
            max_virtual_bytes: 2 << 40,
            convert: Vec::new(),
            converter: None,
            max_partial_bytes: 128 << 30,
            space: Space::default(),
            min_rate: 0,
            connect_timeout: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(60),
            retry_wait: Duration::from_millis(500),
            ca_file: None,
            proxy: Proxy::Environment,
            allowed_addresses: Vec::new(),
            private_addresses: Private::Allow,
            raw_data: RawData::Refuse,
            collection: Collection::default(),
            metrics: Arc::default(),
        }
    }
}

/// What the settings say about the files that are accepted.
impl From<&Settings> for Rules {
    fn from(settings: &Settings) -> Self {
        Self {
            max_virtual_bytes: settings.max_virtual_bytes,
            convert: match settings.converter {
                Some(_) => settings.convert.clone(),
                None => Vec::new(),
            },
            raw_data: settings.raw_data,
        }
    }
}

/// Scheme of untranslated names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Without encryption: for a node's own network.
    Http,
    /// The default.
    Https,
}

impl Protocol {
    /// `http` or `https`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

/// Which proxy downloads go through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proxy {
    /// The one that `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY` give.
    Environment,
    /// None.
    Direct,
}

/// A rule that turns names into a URL.
#[derive(Clone, PartialEq, Eq)]
pub struct Translation {
    /// Names that it is for.
    pub pattern: Pattern,
    /// Where they are. Without a scheme, [`Settings::protocol`] is put in front. May hold
    /// credentials and a query; they appear in no message, log or file.
    pub url: String,
}

/// Without the secrets of the URL.
impl fmt::Debug for Translation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Translation")
            .field("pattern", &self.pattern)
            .field("url", &presentable(&self.url))
            .finish()
    }
}

/// Names that a translation is for, written without tag and digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pattern {
    /// This one name.
    Exact(String),
    /// All names of which this is a prefix that ends at a `/`; the rest of the name is appended to
    /// the URL.
    Prefix(String),
    /// All names in which this regular expression matches, without the prefix that only routes a pod
    /// here; the URL refers to its groups.
    Expression(String),
}
