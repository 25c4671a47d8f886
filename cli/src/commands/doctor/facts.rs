//! Collects facts: calls the daemon and reads the node.
//!
//! Invariant: nothing is changed, nothing is judged.
//! Failure: what cannot be found out is a fact of its own.

use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};
use nix::sys::statvfs::statvfs;

use super::apparmor::AppArmor;
use super::hardening::Hardening;
use super::info::Info;
use super::kernel::{Device, Feature, Sources, device};
use crate::context::{ConnectError, Endpoint};
use crate::runtime::CallError;

/// Where CNI keeps its files when there is no daemon to ask.
const CNI_CONFIG_DIR: &str = "/etc/cni/net.d";
const CNI_BIN_DIRS: [&str; 2] = ["/opt/cni/bin", "/usr/lib/cni"];

/// The emulator of libvirt when there is no daemon to ask.
const WRAPPER: &str = "/usr/libexec/vmlet/vmwrapper";

/// Everything that the checks judge.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) daemon: Daemon,
    pub(super) kvm: Device,
    pub(super) tun: Device,
    /// Kernel features by the name of their module.
    pub(super) features: Vec<(&'static str, Feature)>,
    pub(super) cgroup: Cgroup,
    pub(super) apparmor: AppArmor,
    pub(super) hardening: Hardening,
    /// Of the file system that holds images; `None` when it is not known.
    pub(super) disk: Option<Disk>,
    /// Both are empty when the daemon responds and does not report its paths.
    pub(super) cni_config: Option<CniDir>,
    pub(super) cni_plugins: Vec<CniDir>,
}

#[derive(Debug)]
pub(super) enum Daemon {
    Absent {
        error: String,
        advice: &'static str,
    },
    /// It answers, but not this question.
    Mute(String),
    Answers(Box<Answers>),
}

#[derive(Debug, Default)]
pub(super) struct Answers {
    pub(super) version: String,
    pub(super) conditions: Vec<Condition>,
    pub(super) info: Info,
    pub(super) image_directory: Option<PathBuf>,
}

#[derive(Debug, Clone)]
pub(super) struct Condition {
    pub(super) name: String,
    pub(super) is_met: bool,
    pub(super) message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cgroup {
    V2,
    V1,
    Absent,
}

#[derive(Debug, Clone)]
pub(super) struct Disk {
    pub(super) directory: PathBuf,
    pub(super) available_bytes: u64,
}

/// A directory of CNI, and how many files of use are in it.
#[derive(Debug, Clone)]
pub(super) struct CniDir {
    pub(super) path: PathBuf,
    /// `None` when it cannot be read.
    pub(super) files: Option<usize>,
}

pub(super) async fn daemon(endpoint: &Endpoint) -> Daemon {
    match answers(endpoint).await {
        Ok(daemon) => daemon,
        Err(error) => Daemon::Absent {
            error: with_cause(&error),
            advice: error.advice(),
        },
    }
}

async fn answers(endpoint: &Endpoint) -> Result<Daemon, ConnectError> {
    let runtime = endpoint.connect().await?;
    let requested = async {
        let version = runtime.version(crate::runtime::QUERY).await?;
        let status = runtime.status().await?;
        let image_fs = runtime.image_filesystem().await.ok();
        let conditions = status.status.unwrap_or_default().conditions;
        let condition = |c: cri_proto::v1::RuntimeCondition| Condition {
            name: c.r#type,
            is_met: c.status,
            message: if c.message.is_empty() {
                c.reason
            } else {
                c.message
            },
        };
        Ok::<_, CallError>(Answers {
            version: format!("{} {}", version.runtime_name, version.runtime_version),
            conditions: conditions.into_iter().map(condition).collect(),
            info: status
                .info
                .get("info")
                .map(|text| Info::parse(text))
                .unwrap_or_default(),
            image_directory: image_fs
                .and_then(|fs| fs.fs_id)
                .map(|id| id.mountpoint.into()),
        })
    };
    Ok(match requested.await {
        Ok(answers) => Daemon::Answers(Box::new(answers)),
        Err(error) => Daemon::Mute(error.to_string()),
    })
}

/// Looks at the node; blocks.
pub(super) fn node(daemon: Daemon) -> Facts {
    let answers = match &daemon {
        Daemon::Answers(answers) => Some(answers.as_ref()),
        Daemon::Absent { .. } | Daemon::Mute(_) => None,
    };
    let sources = Sources::read();
    let features = [
        ("bridge", "br_add_bridge"),
        ("veth", "veth_newlink"),
        ("nf_tables", "nft_do_chain"),
    ];
    let features = features.map(|(module, symbol)| (module, sources.feature(module, symbol)));
    let (config, plugins) = match answers {
        Some(answers) => (
            answers.info.cni_config_dir.clone(),
            answers.info.cni_bin_dirs.clone(),
        ),
        None => (
            Some(CNI_CONFIG_DIR.to_owned()),
            CNI_BIN_DIRS.map(str::to_owned).to_vec(),
        ),
    };
    let wrapper = answers.and_then(|answers| answers.info.wrapper.as_deref());
    let wrapper = wrapper.unwrap_or(WRAPPER);
    let seen = answers.and_then(|answers| answers.info.node["kernel"]["appArmor"].as_str());
    let is_config = |name: &str| {
        [".conflist", ".conf", ".json"]
            .iter()
            .any(|e| name.ends_with(e))
    };
    Facts {
        kvm: device(Path::new("/dev/kvm")),
        tun: device(Path::new("/dev/net/tun")),
        features: features.to_vec(),
        cgroup: cgroup(Path::new("/sys/fs/cgroup")),
        apparmor: AppArmor::look(Path::new("/"), Path::new(wrapper)).or_of_daemon(seen),
        hardening: Hardening::look(Path::new("/")),
        disk: answers
            .and_then(|a| a.image_directory.as_deref())
            .and_then(disk),
        cni_config: config.map(|dir| cni_dir(&dir, is_config)),
        cni_plugins: plugins.iter().map(|dir| cni_dir(dir, |_| true)).collect(),
        daemon,
    }
}

fn cgroup(root: &Path) -> Cgroup {
    match statfs(root) {
        Ok(fs) if fs.filesystem_type() == CGROUP2_SUPER_MAGIC => Cgroup::V2,
        Ok(_) if root.join("memory").is_dir() || root.join("cpu").is_dir() => Cgroup::V1,
        _ => Cgroup::Absent,
    }
}

fn disk(directory: &Path) -> Option<Disk> {
    let fs = statvfs(directory).ok()?;
    let available_bytes = fs.blocks_available().saturating_mul(fs.fragment_size());
    Some(Disk {
        directory: directory.to_owned(),
        available_bytes,
    })
}

fn cni_dir(path: &str, is_of_use: impl Fn(&str) -> bool) -> CniDir {
    let count = |entries: fs::ReadDir| {
        entries
            .flatten()
            .filter(|e| e.file_name().to_str().is_some_and(&is_of_use))
            .count()
    };
    CniDir {
        path: path.into(),
        files: fs::read_dir(path).ok().map(count),
    }
}

fn with_cause(error: &ConnectError) -> String {
    let source = std::error::Error::source(error);
    source.map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_counts_only_what_is_of_use() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["10-a.conflist", "b.conf", "readme"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        let path = dir.path().to_str().unwrap();
        assert_eq!(cni_dir(path, |name| name.contains("conf")).files, Some(2));
        assert_eq!(cni_dir("/no/such/dir", |_| true).files, None);
    }

    #[test]
    fn the_disk_of_a_directory_has_a_size_and_that_of_nothing_has_none() {
        let dir = tempfile::tempdir().unwrap();
        assert!(disk(dir.path()).unwrap().available_bytes > 0);
        assert!(disk(Path::new("/no/such/dir")).is_none());
        assert_eq!(cgroup(dir.path()), Cgroup::Absent);
    }
}
