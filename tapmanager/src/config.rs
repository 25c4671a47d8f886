//! Settings: defaults, then a file, then the environment, then flags.
//!
//! Invariant: every layer is a [`Settings`] of options; [`Config`] has none left and was validated once.
//! Nothing else of the program reads the environment.
//! Failure: unknown keys, in the file or in the environment, and impossible values are errors.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, Parser};
use nix::unistd::{Uid, User};
use serde::Deserialize;
use service::boot_id;
use service::settings;
use service::telemetry::{Filter, Format, Log};

const ENVIRONMENT_PREFIX: &str = "VMLET_TAPMANAGER_";
/// Names after the prefix; the file's keys are the same in lower case.
const KEYS: [&str; 14] = [
    "CONFIG",
    "CONTROL_SOCKET",
    "HANDOFF_SOCKET",
    "STATE_DIR",
    "NETNS_DIR",
    "CNI_CONF_DIR",
    "CNI_BIN_DIR",
    "CNI_CACHE_DIR",
    "CGROUP_ROOT",
    "BOOT_ID_FILE",
    "QEMU_USER",
    "CNI_TIMEOUT_SECS",
    "LOG_FORMAT",
    "LOG_LEVEL",
];

/// Manages the networks of Vmlet's pods: namespaces, CNI attachments, bridges, taps and DHCP.
#[derive(Debug, Parser)]
#[command(name = "vmlet-tapmanager", version)]
pub(crate) struct Flags {
    /// TOML file with the same settings, with underscores instead of dashes.
    #[arg(long, env = "VMLET_TAPMANAGER_CONFIG")]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
}

/// One layer.
#[derive(Debug, Clone, Default, Args, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Settings {
    /// Socket for the daemon [default: /run/vmlet/tapmanager.sock].
    #[arg(long, env = "VMLET_TAPMANAGER_CONTROL_SOCKET")]
    control_socket: Option<PathBuf>,
    /// Socket for vmwrapper [default: /run/vmlet/handoff.sock].
    #[arg(long, env = "VMLET_TAPMANAGER_HANDOFF_SOCKET")]
    handoff_socket: Option<PathBuf>,
    /// Directory of the journal [default: /var/lib/vmlet/network].
    #[arg(long, env = "VMLET_TAPMANAGER_STATE_DIR")]
    state_dir: Option<PathBuf>,
    /// Directory where namespaces are mounted [default: /run/netns].
    #[arg(long, env = "VMLET_TAPMANAGER_NETNS_DIR")]
    netns_dir: Option<PathBuf>,
    /// Directory of CNI network configurations [default: /etc/cni/net.d].
    #[arg(long, env = "VMLET_TAPMANAGER_CNI_CONF_DIR")]
    cni_conf_dir: Option<PathBuf>,
    /// Directory of CNI plugins; may be repeated [default: /opt/cni/bin, /usr/lib/cni].
    #[arg(long, env = "VMLET_TAPMANAGER_CNI_BIN_DIR", value_delimiter = ':')]
    cni_bin_dir: Option<Vec<PathBuf>>,
    /// Directory of the CNI cache; no other runtime may use it [default: /var/lib/vmlet/cni].
    #[arg(long, env = "VMLET_TAPMANAGER_CNI_CACHE_DIR")]
    cni_cache_dir: Option<PathBuf>,
    /// Mount point of the cgroup file system [default: /sys/fs/cgroup].
    #[arg(long, env = "VMLET_TAPMANAGER_CGROUP_ROOT")]
    cgroup_root: Option<PathBuf>,
    /// File that contains the boot ID of the node; only tests need another file [default:
    /// /proc/sys/kernel/random/boot_id].
    #[arg(long, env = "VMLET_TAPMANAGER_BOOT_ID_FILE")]
    boot_id_file: Option<PathBuf>,
    /// User that runs QEMU and vmwrapper [default: libvirt-qemu].
    #[arg(long, env = "VMLET_TAPMANAGER_QEMU_USER", value_name = "NAME")]
    qemu_user: Option<String>,
    /// Timeout of each CNI plugin call, in seconds [default: 60].
    #[arg(long, env = "VMLET_TAPMANAGER_CNI_TIMEOUT_SECS")]
    cni_timeout_secs: Option<u64>,
    /// Log format on standard error: text or json [default: text].
    #[arg(long, env = "VMLET_TAPMANAGER_LOG_FORMAT")]
    log_format: Option<Format>,
    /// Minimum severity that is logged, or a filter as in RUST_LOG [default: info].
    #[arg(long, env = "VMLET_TAPMANAGER_LOG_LEVEL")]
    log_level: Option<Filter>,
}

/// Everything, validated.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) control_socket: PathBuf,
    pub(crate) handoff_socket: PathBuf,
    pub(crate) state_dir: PathBuf,
    pub(crate) netns_dir: PathBuf,
    pub(crate) cni_conf_dir: PathBuf,
    pub(crate) cni_bin_dirs: Vec<PathBuf>,
    pub(crate) cni_cache_dir: PathBuf,
    pub(crate) cgroup_root: PathBuf,
    pub(crate) boot_id_file: PathBuf,
    pub(crate) qemu_uid: Uid,
    pub(crate) cni_timeout: Duration,
    pub(crate) log: Log,
}

/// Reads file and environment below `flags`.
///
/// # Errors
/// In words for people.
pub(crate) fn load(flags: Flags) -> Result<Config> {
    refuse_unknown_variables(
        std::env::vars_os().map(|(key, _)| key.to_string_lossy().into_owned()),
    )?;
    let file = match &flags.config {
        Some(path) => settings::read(path)?,
        None => Settings::default(),
    };
    validate(flags.settings.over(file))
}

fn refuse_unknown_variables(names: impl Iterator<Item = String>) -> Result<()> {
    for name in names {
        if let Some(key) = name.strip_prefix(ENVIRONMENT_PREFIX) {
            ensure!(
                KEYS.contains(&key),
                "unknown setting {name} in the environment"
            );
        }
    }
    Ok(())
}

impl Settings {
    /// Our values, and those of `below` where we have none.
    fn over(self, below: Self) -> Self {
        Self {
            control_socket: self.control_socket.or(below.control_socket),
            handoff_socket: self.handoff_socket.or(below.handoff_socket),
            state_dir: self.state_dir.or(below.state_dir),
            netns_dir: self.netns_dir.or(below.netns_dir),
            cni_conf_dir: self.cni_conf_dir.or(below.cni_conf_dir),
            cni_bin_dir: self.cni_bin_dir.or(below.cni_bin_dir),
            cni_cache_dir: self.cni_cache_dir.or(below.cni_cache_dir),
            cgroup_root: self.cgroup_root.or(below.cgroup_root),
            boot_id_file: self.boot_id_file.or(below.boot_id_file),
            qemu_user: self.qemu_user.or(below.qemu_user),
            cni_timeout_secs: self.cni_timeout_secs.or(below.cni_timeout_secs),
            log_format: self.log_format.or(below.log_format),
            log_level: self.log_level.or(below.log_level),
        }
    }
}

fn validate(s: Settings) -> Result<Config> {
    let seconds = s.cni_timeout_secs.unwrap_or(60);
    ensure!(
        (1..=600).contains(&seconds),
        "cni-timeout-secs is {seconds}, must be from 1 to 600"
    );
    let bin_dirs = s
        .cni_bin_dir
        .unwrap_or_else(|| vec!["/opt/cni/bin".into(), "/usr/lib/cni".into()]);
    ensure!(!bin_dirs.is_empty(), "cni-bin-dir names no directory");
    let user = s.qemu_user.unwrap_or_else(|| "libvirt-qemu".to_owned());
    let Some(User { uid, .. }) =
        User::from_name(&user).with_context(|| format!("look up user {user}"))?
    else {
        bail!("user {user} does not exist (setting qemu-user)");
    };
    Ok(Config {
        control_socket: absolute(
            "control-socket",
            s.control_socket,
            "/run/vmlet/tapmanager.sock",
        )?,
        handoff_socket: absolute(
            "handoff-socket",
            s.handoff_socket,
            "/run/vmlet/handoff.sock",
        )?,
        state_dir: absolute("state-dir", s.state_dir, "/var/lib/vmlet/network")?,
        netns_dir: absolute("netns-dir", s.netns_dir, "/run/netns")?,
        cni_conf_dir: absolute("cni-conf-dir", s.cni_conf_dir, "/etc/cni/net.d")?,
        cni_bin_dirs: bin_dirs
            .into_iter()
            .map(|dir| absolute("cni-bin-dir", Some(dir), ""))
            .collect::<Result<_>>()?,
        cni_cache_dir: absolute("cni-cache-dir", s.cni_cache_dir, "/var/lib/vmlet/cni")?,
        cgroup_root: absolute("cgroup-root", s.cgroup_root, "/sys/fs/cgroup")?,
        boot_id_file: absolute("boot-id-file", s.boot_id_file, boot_id::KERNEL)?,
        qemu_uid: uid,
        cni_timeout: Duration::from_secs(seconds),
        log: Log {
            level: s.log_level.unwrap_or_default(),
            format: s.log_format.unwrap_or_default(),
        },
    })
}

fn absolute(name: &str, value: Option<PathBuf>, default: &str) -> Result<PathBuf> {
    let path = value.unwrap_or_else(|| default.into());
    ensure!(
        path.is_absolute(),
        "{name} is {}, must be absolute",
        path.display()
    );
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn flags(arguments: &[&str]) -> Flags {
        let all = ["vmlet-tapmanager", "--qemu-user", "root"]
            .iter()
            .chain(arguments);
        Flags::try_parse_from(all).unwrap()
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_defaults() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.toml");
        std::fs::write(
            &file,
            "state_dir = '/file'\nnetns_dir = '/file'\ncni_bin_dir = ['/a', '/b']\n",
        )
        .unwrap();
        let file = file.to_str().unwrap();
        let config = load(flags(&["--config", file, "--state-dir", "/flag"])).unwrap();
        assert_eq!(config.state_dir, Path::new("/flag"));
        assert_eq!(config.netns_dir, Path::new("/file"));
        assert_eq!(config.cni_bin_dirs, [Path::new("/a"), Path::new("/b")]);
        assert_eq!(config.cni_conf_dir, Path::new("/etc/cni/net.d"));
        assert_eq!(config.cni_timeout, Duration::from_secs(60));
    }

    #[test]
    fn directories_of_plugins_may_be_repeated() {
        let config = load(flags(&["--cni-bin-dir", "/a", "--cni-bin-dir", "/b"])).unwrap();
        assert_eq!(config.cni_bin_dirs, [Path::new("/a"), Path::new("/b")]);
    }

    #[test]
    fn unknown_keys_and_impossible_values_are_errors() {
        assert!(toml::from_str::<Settings>("state-dir = '/x'").is_err());
        let names = [
            "PATH",
            "VMLET_TAPMANAGER_STATE_DIR",
            "VMLET_TAPMANAGER_STATEDIR",
        ];
        let error = refuse_unknown_variables(names.iter().map(ToString::to_string)).unwrap_err();
        assert!(error.to_string().contains("STATEDIR"));
        for wrong in [
            ["--state-dir", "relative"],
            ["--cni-timeout-secs", "0"],
            ["--qemu-user", "no-such-user-here"],
        ] {
            let mut arguments = vec!["vmlet-tapmanager", "--qemu-user", "root"];
            if wrong[0] == "--qemu-user" {
                arguments.truncate(1);
            }
            arguments.extend(wrong);
            assert!(
                load(Flags::try_parse_from(arguments).unwrap()).is_err(),
                "{wrong:?}"
            );
        }
    }

    #[test]
    fn every_setting_is_known_as_a_variable() {
        use clap::CommandFactory;
        let command = Flags::command();
        let mut named: Vec<_> = command
            .get_arguments()
            .filter_map(|a| a.get_env())
            .map(|env| {
                env.to_str()
                    .unwrap()
                    .strip_prefix(ENVIRONMENT_PREFIX)
                    .unwrap()
                    .to_owned()
            })
            .collect();
        let mut keys = KEYS.to_vec();
        named.sort();
        keys.sort_unstable();
        assert_eq!(named, keys);
    }
}
