//! Settings of the tapmanager.
//!
//! Invariant: a [`Config`] that was checked has absolute paths and names a user that exists.
//! Failure: a sentence that names the key.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail, ensure};
use nix::unistd::User;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use service::admin_http::Endpoint;
use service::boot_id;
use service::settings::{Problem, Settings, Timespan};
use service::telemetry::Log;

/// Minimum and maximum timeout of a call of a CNI plugin.
const TIMEOUTS: std::ops::RangeInclusive<Timespan> =
    Timespan::from_secs(1)..=Timespan::from_secs(600);

/// Settings of the tapmanager.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    /// Unix socket for the daemon. Only root can connect.
    pub(crate) control_socket: PathBuf,
    /// Unix socket for `vmwrapper`. Only the user that runs QEMU, and root, can connect.
    pub(crate) handoff_socket: PathBuf,
    /// Directory of the journal.
    pub(crate) state_dir: PathBuf,
    /// Directory where network namespaces are mounted.
    pub(crate) netns_dir: PathBuf,
    /// Directory of CNI network configurations.
    pub(crate) cni_conf_dir: PathBuf,
    /// Directories of CNI plugins, in the order in which they are searched.
    pub(crate) cni_bin_dir: Vec<PathBuf>,
    /// Directory of the CNI cache. No other runtime may use it.
    pub(crate) cni_cache_dir: PathBuf,
    /// Directory of the daemon's console files, which are bounded here while the daemon is away.
    pub(crate) console_dir: PathBuf,
    /// Ask plugins to free what belongs to no attachment (CNI GC), for a network that only virtual
    /// machines use. In one that another runtime uses too, a pod that it is attaching at that moment
    /// would lose its address.
    pub(crate) cni_plugin_gc: bool,
    /// Timeout of each CNI plugin call, from 1s to 10m.
    pub(crate) cni_timeout: Timespan,
    /// Mount point of the cgroup file system.
    pub(crate) cgroup_root: PathBuf,
    /// File that contains the boot ID of the node. Only tests need another file.
    pub(crate) boot_id_file: PathBuf,
    /// User that runs QEMU and `vmwrapper`.
    pub(crate) qemu_user: String,
    /// Metrics.
    pub(crate) metrics: Metrics,
    /// Log output on standard error.
    pub(crate) log: Log,
}

/// Metrics.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Metrics {
    /// Where `/metrics` is served: a loopback address with a port, or the path of a Unix socket for
    /// root; not served if unset.
    pub(crate) listen: Option<Endpoint>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            control_socket: "/run/vmlet/tapmanager.sock".into(),
            handoff_socket: "/run/vmlet/handoff.sock".into(),
            state_dir: "/var/lib/vmlet/network".into(),
            netns_dir: "/run/netns".into(),
            cni_conf_dir: "/etc/cni/net.d".into(),
            cni_bin_dir: vec!["/opt/cni/bin".into(), "/usr/lib/cni".into()],
            cni_cache_dir: "/var/lib/vmlet/cni".into(),
            console_dir: "/var/lib/vmlet/console".into(),
            cni_plugin_gc: false,
            cni_timeout: Timespan::from_secs(60),
            cgroup_root: "/sys/fs/cgroup".into(),
            boot_id_file: boot_id::KERNEL.into(),
            qemu_user: "libvirt-qemu".to_owned(),
            metrics: Metrics::default(),
            log: Log::default(),
        }
    }
}

impl Settings for Config {
    const PROGRAM: &'static str = "vmlet-tapmanager";
    const PREFIX: &'static str = "VMLET_TAPMANAGER";
    const FILE: &'static str = "/etc/vmlet/tapmanager.toml";

    fn check(&self) -> Result<(), Problem> {
        self.refuse_unusable().map_err(|e| format!("{e:#}").into())
    }
}

impl Config {
    /// The user that runs QEMU.
    pub(crate) fn qemu(&self) -> Result<User> {
        let name = &self.qemu_user;
        let found = User::from_name(name).with_context(|| format!("look up user {name}"))?;
        match found {
            Some(user) => Ok(user),
            None => bail!("qemu_user: user {name} does not exist"),
        }
    }

    fn refuse_unusable(&self) -> Result<()> {
        ensure!(
            TIMEOUTS.contains(&self.cni_timeout),
            "cni_timeout is {}, must be from {} to {}",
            self.cni_timeout,
            TIMEOUTS.start(),
            TIMEOUTS.end()
        );
        ensure!(
            !self.cni_bin_dir.is_empty(),
            "cni_bin_dir names no directory"
        );
        let paths = [
            ("control_socket", &self.control_socket),
            ("handoff_socket", &self.handoff_socket),
            ("state_dir", &self.state_dir),
            ("netns_dir", &self.netns_dir),
            ("cni_conf_dir", &self.cni_conf_dir),
            ("cni_cache_dir", &self.cni_cache_dir),
            ("console_dir", &self.console_dir),
            ("cgroup_root", &self.cgroup_root),
            ("boot_id_file", &self.boot_id_file),
        ];
        let plugins = self.cni_bin_dir.iter().map(|path| ("cni_bin_dir", path));
        for (key, path) in paths.into_iter().chain(plugins) {
            ensure!(
                path.is_absolute(),
                "{key} is {}, must be absolute",
                path.display()
            );
        }
        self.qemu().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser;
    use service::settings::{Flags, check_page, layered};
    use service::telemetry::one_line;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        settings: Flags<Config>,
    }

    fn load(flags: &[&str]) -> Result<Config, String> {
        let line = [
            "vmlet-tapmanager",
            "--config",
            "/dev/null",
            "--qemu-user",
            "root",
        ];
        let last = Line::try_parse_from(line[..3].iter().chain(flags)).unwrap();
        let has_user = flags.contains(&"--qemu-user");
        let line = if has_user {
            last
        } else {
            Line::try_parse_from(line.iter().chain(flags)).unwrap()
        };
        let effective = layered(&line.settings, []).map_err(|e| one_line(&e))?;
        Ok(effective.config)
    }

    #[test]
    fn a_flag_replaces_a_default_and_a_list_flag_may_be_repeated() {
        let config = load(&["--cni-bin-dir", "/a", "--cni-bin-dir", "/b"]).unwrap();
        assert_eq!(config.cni_bin_dir, [Path::new("/a"), Path::new("/b")]);
        assert_eq!(config.cni_conf_dir, Path::new("/etc/cni/net.d"));
    }

    #[rstest::rstest]
    #[case::relative_path(&["--state-dir", "relative"], "state_dir is relative, must be absolute")]
    #[case::relative_plugins(&["--cni-bin-dir", "/a,b"], "cni_bin_dir is b, must be absolute")]
    #[case::no_timeout(&["--cni-timeout", "0s"], "cni_timeout is 0s, must be from 1s to 10m")]
    #[case::reachable(&["--metrics-listen", "0.0.0.0:9641"], "other nodes can reach")]
    #[case::no_unit(&["--cni-timeout", "5"], "flag --cni-timeout: \"5\": a duration such as")]
    #[case::no_user(&["--qemu-user", "no-such-user-here"], "user no-such-user-here does not exist")]
    fn an_unusable_value_is_refused(#[case] flags: &[&str], #[case] reason: &str) {
        let error = load(flags).unwrap_err();
        assert!(error.contains(reason), "{error}");
    }

    #[test]
    fn the_reference_page_describes_these_settings() {
        let page =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/tapmanager-configuration.md");
        check_page::<Config>(&page, "").unwrap();
    }
}
