//! Kubernetes Pod manifests, as far as a VM pod without Kubernetes can honour them.
//!
//! Invariant: a [`PodManifest`] has valid names, exactly one container and no feature that would be
//! silently left out; what is harmlessly left out is listed in its warnings.
//! Failure: [`ManifestError`] names the field and states what to write instead.

mod check;
mod document;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Larger than any manifest that a person writes.
const MAX_SIZE: u64 = 1 << 20;

/// Why a manifest cannot be run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ManifestError {
    #[error("read manifest {}", .path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("manifest {} is larger than {} KiB", .0.display(), MAX_SIZE / 1024)]
    TooLarge(PathBuf),
    #[error(
        "manifest has {0} documents: only one Pod can be run; write it to a file of its own, or, in a \
         cluster, apply all of them with kubectl apply -f"
    )]
    Several(usize),
    #[error("manifest is not a Pod in YAML or JSON")]
    Syntax(#[source] Box<serde_saphyr::Error>),
    #[error(
        "manifest has apiVersion {version:?} and kind {kind:?}: only v1 Pod can be run; of a \
         Deployment or Job, write out the pod template as a Pod"
    )]
    Kind { version: String, kind: String },
    #[error("{field} is not supported without Kubernetes: {advice}")]
    Unsupported { field: String, advice: &'static str },
    #[error("{field} = {value:?}: {reason}")]
    Invalid {
        field: String,
        value: String,
        reason: String,
    },
}

/// A pod that can be run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PodManifest {
    pub(crate) name: String,
    pub(crate) namespace: String,
    /// As in the manifest; made up when absent.
    pub(crate) uid: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
    /// Empty for the daemon's default.
    pub(crate) runtime_handler: String,
    pub(crate) hostname: String,
    /// `None` for the node's own resolver settings.
    pub(crate) dns: Option<Dns>,
    /// Seconds between the request to power off and the forced end of the guest.
    pub(crate) grace: u32,
    pub(crate) container: ContainerManifest,
    /// What is not acted on, one line each.
    pub(crate) warnings: Vec<String>,
}

/// The lines of resolv.conf.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Dns {
    pub(crate) servers: Vec<String>,
    pub(crate) searches: Vec<String>,
    pub(crate) options: Vec<String>,
}

/// The VM.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ContainerManifest {
    pub(crate) name: String,
    pub(crate) image: String,
    pub(crate) pull: PullPolicy,
    pub(crate) command: Vec<String>,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) stdin: bool,
    pub(crate) tty: bool,
    pub(crate) cpu: Share,
    pub(crate) memory: Share,
    /// Only those that are published on the node.
    pub(crate) ports: Vec<Port>,
}

/// What is asked of one resource; CPU in thousandths, memory in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Share {
    pub(crate) request: Option<u64>,
    pub(crate) limit: Option<u64>,
}

/// A port of the pod published on the node.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Port {
    pub(crate) protocol: Protocol,
    pub(crate) container: u16,
    pub(crate) host: u16,
    pub(crate) host_ip: String,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum PullPolicy {
    Always,
    IfNotPresent,
    Never,
}

impl PodManifest {
    /// Reads a file, or stdin when `path` is `-`.
    pub(crate) fn load(path: &Path) -> Result<Self, ManifestError> {
        let read = |source| ManifestError::Read {
            path: path.to_owned(),
            source,
        };
        let input: Box<dyn Read> = if path.as_os_str() == "-" {
            Box::new(io::stdin().lock())
        } else {
            Box::new(fs::File::open(path).map_err(read)?)
        };
        let mut text = String::new();
        input
            .take(MAX_SIZE + 1)
            .read_to_string(&mut text)
            .map_err(read)?;
        if text.len() as u64 > MAX_SIZE {
            return Err(ManifestError::TooLarge(path.to_owned()));
        }
        Self::parse(&text)
    }

    pub(crate) fn parse(text: &str) -> Result<Self, ManifestError> {
        let documents = documents(text);
        if documents > 1 {
            return Err(ManifestError::Several(documents));
        }
        let syntax = |error| ManifestError::Syntax(Box::new(error));
        let header: document::Header = serde_saphyr::from_str(text).map_err(syntax)?;
        if (header.api_version.as_str(), header.kind.as_str()) != ("v1", "Pod") {
            return Err(ManifestError::Kind {
                version: header.api_version,
                kind: header.kind,
            });
        }
        check::pod(serde_saphyr::from_str(text).map_err(syntax)?)
    }
}

/// Documents of YAML that are not empty.
fn documents(text: &str) -> usize {
    let mut count = 0;
    let mut is_empty = true;
    for line in text.lines() {
        if line.trim_end() == "---" || line.starts_with("--- ") {
            is_empty = true;
        } else if is_empty && !line.trim().is_empty() && !line.trim_start().starts_with('#') {
            is_empty = false;
            count += 1;
        }
    }
    count
}

#[cfg(test)]
mod tests;
