//! The command line.
//!
//! Invariant: a prefix that was parsed can stand in a unit of systemd, and is not below `/usr`.
//! Failure: clap's, with exit code 2.

use std::net::SocketAddr;
use std::path::{Component, PathBuf};
use std::time::Duration;

use clap::{Parser, Subcommand};

use crate::platform::Name;

/// Puts kubelet of a node behind the CRI proxy of Vmlet, and takes it back.
#[derive(Debug, Parser)]
#[command(name = "vmlet-installer", version)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Install the proxy and point kubelet at it. Repeat it to upgrade, or after a crash.
    Install(Install),
    /// Point kubelet at its runtime again, and remove the proxy.
    Withdraw(Withdraw),
    /// Show what is installed and whether it works. Exit code 1 if anything is amiss.
    Status(Status),
    /// Run a program in the node's root.
    #[command(hide = true)]
    InRoot {
        folder: PathBuf,
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
}

/// Where the node is.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Node {
    /// Where the root file system of the node is mounted.
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub(crate) root: PathBuf,
    /// Folder on the node for the proxy, its settings and the undo journal.
    #[arg(long, value_name = "DIR", default_value = "/opt/vmlet", value_parser = prefix)]
    pub(crate) prefix: PathBuf,
    /// Address of kubelet's health page: healthzBindAddress and healthzPort of its configuration.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:10248")]
    pub(crate) healthz: SocketAddr,
    /// Program to call in place of the node's systemctl.
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) systemctl: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Install {
    #[command(flatten)]
    pub(crate) node: Node,
    /// Print what would be done, and change nothing.
    #[arg(long)]
    pub(crate) plan: bool,
    /// What the node runs Kubernetes with. Without it, the files of the node decide.
    #[arg(long, value_enum, value_name = "NAME")]
    pub(crate) platform: Option<Name>,
    /// The proxy's program, statically linked [default: vmlet-criproxy beside this program].
    #[arg(long, value_name = "FILE")]
    pub(crate) proxy: Option<PathBuf>,
    /// Longest wait for the proxy and for kubelet; then all is taken back.
    #[arg(long, default_value = "90s", value_parser = timeout)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Withdraw {
    #[command(flatten)]
    pub(crate) node: Node,
    /// Print what would be done, and change nothing.
    #[arg(long)]
    pub(crate) plan: bool,
    /// Longest wait for kubelet.
    #[arg(long, default_value = "90s", value_parser = timeout)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Status {
    #[command(flatten)]
    pub(crate) node: Node,
}

/// Folders that are read-only on some nodes, emptied at a boot, or hidden from the proxy by its unit.
const NO_PREFIX: [&str; 7] = ["/usr", "/home", "/root", "/run", "/tmp", "/proc", "/sys"];

fn prefix(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    let mut components = path.components();
    let is_rooted = components.next() == Some(Component::RootDir);
    let mut names = components.peekable();
    if !is_rooted || names.peek().is_none() || !text.chars().all(plain) {
        return Err("an absolute path of letters, digits and . _ - is needed".to_owned());
    }
    if !names.all(|component| matches!(component, Component::Normal(_))) {
        return Err("the path must not contain ..".to_owned());
    }
    match NO_PREFIX.iter().find(|folder| path.starts_with(folder)) {
        Some(folder) => Err(format!("the proxy cannot be below {folder}")),
        None => Ok(path.components().collect()),
    }
}

fn timeout(text: &str) -> Result<Duration, String> {
    let duration: jiff::SignedDuration = text.parse().map_err(|e: jiff::Error| e.to_string())?;
    match Duration::try_from(duration) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        _ => Err("a duration above zero is needed, such as 90s".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::usual("/opt/vmlet", Some("/opt/vmlet"))]
    #[case::slash("/opt/vmlet/", Some("/opt/vmlet"))]
    #[case::root("/", None)]
    #[case::relative("opt", None)]
    #[case::upwards("/opt/../usr", None)]
    #[case::read_only("/usr/local/vmlet", None)]
    #[case::emptied("/run/vmlet", None)]
    #[case::blank("/opt/vm let", None)]
    #[case::specifier("/opt/%n", None)]
    fn a_prefix_can_stand_in_a_unit(#[case] text: &str, #[case] parsed: Option<&str>) {
        assert_eq!(prefix(text).ok(), parsed.map(PathBuf::from));
    }

    #[rstest]
    #[case("90s", Some(90))]
    #[case("2m", Some(120))]
    #[case("0s", None)]
    #[case("-1s", None)]
    #[case("soon", None)]
    fn a_timeout_is_a_duration(#[case] text: &str, #[case] seconds: Option<u64>) {
        assert_eq!(timeout(text).ok(), seconds.map(Duration::from_secs));
    }
}
