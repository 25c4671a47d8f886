//! Settings of the image store.
//!
//! Invariant: plain values; the store checks what depends on files.
//! Failure: none here.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use service::settings::Timespan;

use super::addresses::{AddressRange, PrivateAddresses, RawData};
use super::translation::Translation;
use super::value::{AbsolutePath, ConvertedFormat, OptionalPath, Protocol, Size, UnknownId};

/// Public registries, which serve nothing else.
const REGISTRIES: [&str; 7] = [
    "docker.io",
    "gcr.io",
    "ghcr.io",
    "mcr.microsoft.com",
    "public.ecr.aws",
    "quay.io",
    "registry.k8s.io",
];

/// The image store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Images {
    /// Scheme of image names that contain none and match no translation: `https` or `http`.
    pub protocol: Protocol,
    /// Maximum size of a downloaded image file.
    pub max_download: Size,
    /// Maximum virtual size of a disk in an image.
    pub max_virtual_size: Size,
    /// Formats beside qcow2 and raw in which images are accepted: `vmdk` (one file with its
    /// descriptor inside) and `vhdx` (without a parent). The daemon converts them to qcow2 with
    /// `qemu-img`, which reads the file confined, as a user of its own. Empty: such images are refused.
    pub convert: Vec<ConvertedFormat>,
    /// Maximum sum of all downloads: those in progress with the size that they will have, and those
    /// that a later pull may continue, of which the oldest make room. A value below `max_download`
    /// counts as that.
    pub max_partial: Size,
    /// Bytes of the file systems of images and disks that all downloads and copies in progress
    /// together leave free.
    pub reserve: Size,
    /// Percentage of the file system of the images that is in use from which on the daemon removes
    /// images without users, the least recently used first; 0 turns it off. From 1 to 100. A pull
    /// that does not fit removes images, too, unless this is 0.
    pub high_water_percent: u8,
    /// Percentage of the file system of the images at which that removal stops. Below
    /// `high_water_percent`, if that is not 0.
    pub low_water_percent: u8,
    /// Time after which an image without users is removed, at least 5m; 0s turns it off.
    pub max_unused_age: Timespan,
    /// Minimum number of bytes per second from a server, on average over `stall_timeout`; a slower
    /// download fails.
    pub min_rate: Size,
    /// Maximum time without data from a server during a download, from 1s to 24h.
    pub stall_timeout: Timespan,
    /// PEM file with certificate authorities that are trusted in addition to those of the system;
    /// empty for none.
    pub ca_file: OptionalPath,
    /// How the daemon treats a container whose image ID is not in this store because another
    /// runtime assigned it: `pull` the image by its name in the pod, or `refuse` the container.
    pub unknown_id: UnknownId,
    /// Addresses (`192.0.2.7`) and ranges (`192.0.2.0/24`) that images are fetched from although
    /// they are refused by their kind: loopback, link-local and multicast addresses, those of
    /// metadata services and those of the node itself are refused after resolution, also at each
    /// redirect. Allowed addresses are open to every user whose image URLs the node fetches.
    pub allowed_addresses: Vec<AddressRange>,
    /// Whether images are fetched from private addresses (RFC 1918, `100.64.0.0/10`, `fc00::/7`):
    /// `allow`, or `refuse` all that `allowed_addresses` does not list. The files of a new
    /// installation (`deploy/node/vmlet.toml`, `deploy/systemd/vmlet.toml`) say `refuse`.
    pub private_addresses: PrivateAddresses,
    /// Whether a raw file is a disk that has no boot sector, partition table, ISO 9660, ext2 to ext4 or
    /// XFS file system at its beginning: `refuse`, since every answer of a server would be a raw disk
    /// otherwise, or `allow`. An empty or other disk is accepted in the format qcow2 in any case.
    pub raw_data: RawData,
    /// Hosts of OCI registries, with their port where it is not 443: an image whose name has such a
    /// host is pulled from the registry; others are files on web servers.
    pub registries: Vec<String>,
    /// Directory of the servers, mirrors and certificates of registries, in containerd's format:
    /// `HOST/hosts.toml`, or certificates in `HOST`. A host that has a directory there is that of a
    /// registry. Each pull reads it again.
    pub registries_dir: AbsolutePath,
    /// Image names that are translated to URLs. Each entry has a `url` and one of `name`, for this
    /// name only, `prefix`, for all names below it, or `regexp`, for all names in which the
    /// expression matches. An exact name beats a prefix, a longer prefix a shorter one, and a prefix
    /// an expression. An image that is specified by its URL has the name `host[:port]/path` here,
    /// which expressions do not apply to. A URL `oci://host[:port]/repository` is in a registry; it
    /// has the tag or the digest of the image's name unless it has a tag of its own.
    pub translations: Vec<Translation>,
    /// Directory of YAML files with more translations, in the format of Virtlet. Each pull reads it
    /// again. Where a name matches rules of the same kind, those of the settings count first, then
    /// those of the files in the order of their names.
    pub translations_dir: AbsolutePath,
}

impl Default for Images {
    fn default() -> Self {
        Self {
            protocol: Protocol::default(),
            max_download: Size::usual(64 << 30),
            max_virtual_size: Size::usual(2 << 40),
            convert: Vec::new(),
            max_partial: Size::usual(128 << 30),
            reserve: Size::usual(1 << 30),
            high_water_percent: 90,
            low_water_percent: 85,
            max_unused_age: Timespan::from_secs(0),
            min_rate: Size::usual(16 << 10),
            stall_timeout: Timespan::from_secs(60),
            ca_file: OptionalPath::none(),
            unknown_id: UnknownId::default(),
            allowed_addresses: Vec::new(),
            private_addresses: PrivateAddresses::default(),
            raw_data: RawData::default(),
            registries: REGISTRIES.map(str::to_owned).to_vec(),
            registries_dir: AbsolutePath::usual("/etc/vmlet/certs.d"),
            translations: Vec::new(),
            translations_dir: AbsolutePath::usual("/etc/vmlet/translations.d"),
        }
    }
}
