//! The packet filter: a guest sends under its own addresses only, and configuration stays between
//! guest and our servers.
//!
//! Invariant: with the rules of [`rules()`] a guest claims no address but its own, reaches nothing
//! in the namespace but our servers, and configures no other host; no request for configuration
//! leaves over the plugin's link, no foreign offer comes in, and nothing that the namespace's own
//! stack says leaves either; every DHCP request of the guest reaches the bridge's own stack,
//! whatever address it was sent to.
//! Failure: without a working `nft` (package nftables) there is no filter, and that is an error.

use std::ffi::OsStr;
use std::io;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

use crate::namespace::{self, Namespace};

mod rules;

pub use rules::Guard;
pub(crate) use rules::{Before, Port, rules};

const PROGRAM: &str = "nft";
const TABLE: &str = "vmlet";
const DEADLINE: Duration = Duration::from_secs(10);
/// Bytes of the program's complaint that are kept.
const MAX_MESSAGE: usize = 2048;

/// A filter that was not loaded.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The program is not installed.
    #[error("the program nft is not installed (package nftables)")]
    NotInstalled,
    /// The namespace cannot be entered.
    #[error("enter the namespace")]
    Namespace(#[source] namespace::Error),
    /// The program cannot be run.
    #[error("run nft")]
    Run(#[source] io::Error),
    /// The program did not end in time.
    #[error("nft did not end within {DEADLINE:?}")]
    Deadline,
    /// The program or the kernel refuses the rules.
    #[error("nft: {0}")]
    Refused(String),
}

/// Whether the program that loads the packet filter is installed.
#[must_use]
pub fn available() -> bool {
    is_in(&std::env::var_os("PATH").unwrap_or_default())
}

fn is_in(path: &OsStr) -> bool {
    std::env::split_paths(path).any(|dir| dir.join(PROGRAM).is_file())
}

/// Loads `rules` in `ns`, all or nothing.
pub(crate) async fn load(ns: &Namespace, rules: String) -> Result<(), Error> {
    let runtime = tokio::runtime::Handle::current();
    // The child inherits the namespace of the thread that starts it.
    let child = ns.run(move || {
        let _guard = runtime.enter();
        Command::new(PROGRAM)
            .args(["-f", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
    });
    let child = child.await.map_err(Error::Namespace)?;
    let child = child.map_err(not_started)?;
    tokio::time::timeout(DEADLINE, feed(child, rules))
        .await
        .map_err(|_| Error::Deadline)?
}

fn not_started(source: io::Error) -> Error {
    match source.kind() {
        io::ErrorKind::NotFound => Error::NotInstalled,
        _ => Error::Run(source),
    }
}

async fn feed(mut child: Child, rules: String) -> Result<(), Error> {
    if let Some(mut stdin) = child.stdin.take() {
        // A program that ends without reading its input writes the cause to stderr.
        let _ = stdin.write_all(rules.as_bytes()).await;
    }
    let output = child.wait_with_output().await.map_err(Error::Run)?;
    if output.status.success() {
        return Ok(());
    }
    let mut words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if words.is_empty() {
        words = output.status.to_string();
    }
    Err(Error::Refused(words.chars().take(MAX_MESSAGE).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mac::Mac;

    #[test]
    fn the_program_is_found_in_the_folders_of_path() {
        let empty = tempfile::tempdir().unwrap();
        let with = tempfile::tempdir().unwrap();
        std::fs::write(with.path().join(PROGRAM), "").unwrap();
        let path = |dirs: &[&tempfile::TempDir]| {
            std::env::join_paths(dirs.iter().map(|dir| dir.path())).unwrap()
        };
        assert!(is_in(&path(&[&empty, &with])));
        assert!(!is_in(&path(&[&empty])));
        assert!(!is_in(OsStr::new("")));
    }

    #[test]
    fn a_missing_program_differs_from_one_that_cannot_run() {
        let of = |kind: io::ErrorKind| not_started(kind.into());
        assert!(matches!(of(io::ErrorKind::NotFound), Error::NotInstalled));
        assert!(matches!(of(io::ErrorKind::PermissionDenied), Error::Run(_)));
    }

    #[tokio::test]
    #[ignore = "needs root"]
    async fn rules_load_repeatedly() {
        assert!(available());
        let dir = tempfile::tempdir().unwrap();
        let ns = Namespace::create(dir.path(), "a").await.unwrap();
        let mac = Mac::new([2, 0, 0, 0, 0, 1]);
        let guards = [
            Guard::Open,
            Guard::Own(Vec::new()),
            Guard::Own(vec![[10, 0, 0, 1].into(), [10, 0, 0, 2].into()]),
            Guard::Own(vec!["fd00::1".parse().unwrap(), [10, 0, 0, 2].into()]),
        ];
        let ports = |guard| Port {
            link: "eth0",
            tap: "vmtap0",
            mac,
            bridge_mac: mac,
            guard,
        };
        let first = || rules(Before::Nothing, guards.iter().map(ports));
        load(&ns, first()).await.unwrap();
        let twice = load(&ns, first()).await;
        assert!(matches!(twice, Err(Error::Refused(_))), "{twice:?}");
        for guard in &guards {
            let rules = rules(Before::Rules, [ports(guard)].into_iter());
            load(&ns, rules).await.unwrap();
        }
        let rules = rules(Before::Rules, guards.iter().map(ports));
        load(&ns, rules).await.unwrap();
        let refused = load(&ns, "nonsense".to_owned()).await;
        assert!(matches!(refused, Err(Error::Refused(_))), "{refused:?}");
        Namespace::delete(ns.path()).await.unwrap();
    }
}
