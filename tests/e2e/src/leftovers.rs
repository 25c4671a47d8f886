//! Finds what pods have left on a node while the node still runs.
//!
//! Invariant: looking changes nothing; images, logs and what belongs to the node itself are not
//! listed.
//! Failure: a place that cannot be looked at is an error, since it may hide something; so is a folder
//! that the daemon makes when it starts and that does not exist.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rusqlite::{Connection, OpenFlags};
use serde_json::Value;

use crate::program;
use crate::stack::{Stack, streams};
use crate::wait::eventually;

/// How long the daemon may hold its database.
const BUSY: Duration = Duration::from_secs(10);

/// Links that every stack's namespace has: loopback, the node's interface, the plugin's bridge.
const OWN_LINKS: [&str; 3] = ["lo", "node0", "cni0"];
/// Prefix of the links to the other nodes of a cluster.
const PEER_LINKS: &str = "peer";

/// Folders whose every entry belongs to a pod; the last ones only on nodes of a cluster.
const PER_POD: [&str; 11] = [
    "netns",
    "state/pods",
    "state/console",
    "state/seeds",
    "state/processes",
    "state/devices",
    "state/disks",
    "state/network",
    "host/kubelet/pods",
    "host/run/netns",
    "host/cni/results",
];

/// Those of them that the daemon makes, and its downloads.
const OF_DAEMON: [&str; 7] = [
    "state/pods",
    "state/console",
    "state/seeds",
    "state/processes",
    "state/devices",
    "state/disks",
    DOWNLOADS,
];

/// Where the daemon writes images until they are complete.
const DOWNLOADS: &str = "state/images/partial";
/// How the names of a download and of its note end.
const PART: &str = "part";
const NOTE: &str = "json";

/// Tables of the daemon's database whose every row belongs to a pod.
const TABLES: [&str; 3] = ["sandboxes", "containers", "block_devices"];

/// How long kubelet and the runtimes may take to tidy up.
pub(crate) const CLEAN: Duration = Duration::from_secs(120);

impl Stack {
    /// What is left of sandboxes and machines: names of files, links, domains and namespaces.
    pub fn leftovers(&self) -> Result<Vec<String>> {
        let mut left = Vec::new();
        if self.is_alive("vmlet") {
            for folder in OF_DAEMON {
                let path = self.dir().join(folder);
                ensure!(path.is_dir(), "{} does not exist", path.display());
            }
            left.extend(self.rows()?);
        }
        for part in PER_POD {
            // A lock keeps a second program away; it belongs to no sandbox. Nor does the node's own
            // namespace.
            let netns = self.var("VMLET_NETNS")?;
            let names = names(&self.dir().join(part))?
                .into_iter()
                .filter(|name| name != "lock" && name != netns);
            left.extend(names.map(|name| format!("{part}/{name}")));
        }
        left.extend(self.downloads()?);
        for network in names(&self.dir().join("cni/ipam"))? {
            let leases = names(&self.dir().join("cni/ipam").join(&network))?;
            let is_lease = |name: &String| name.parse::<std::net::IpAddr>().is_ok();
            left.extend(
                leases
                    .into_iter()
                    .filter(is_lease)
                    .map(|ip| format!("lease {ip}")),
            );
        }
        for name in names(&self.dir().join("cni/cache/results"))? {
            left.push(format!("cni result {name}"));
        }
        let links = program::output(self.command("ip").args(["-o", "link"]))?;
        for line in String::from_utf8_lossy(&links.stdout).lines() {
            let name = line.split(": ").nth(1).unwrap_or_default();
            let name = name.split('@').next().unwrap_or_default();
            if !OWN_LINKS.contains(&name) && !name.starts_with(PEER_LINKS) {
                left.push(format!("link {name}"));
            }
        }
        left.extend(self.qdiscs()?);
        if self.is_alive("libvirtd") {
            let domains = self.domains()?.into_iter();
            left.extend(domains.map(|name| format!("domain {name}")));
        }
        left.extend(self.log_readers());
        Ok(left)
    }

    /// Downloads that no pull continues: those with bytes and a note about their source may stay.
    fn downloads(&self) -> Result<Vec<String>> {
        let folder = self.dir().join(DOWNLOADS);
        let mut left = Vec::new();
        for name in names(&folder)? {
            let path = folder.join(&name);
            let is_of_pair = [PART, NOTE]
                .map(OsStr::new)
                .contains(&path.extension().unwrap_or_default());
            let part = std::fs::metadata(path.with_extension(PART));
            let has_bytes = part.is_ok_and(|part| part.len() > 0);
            if !(is_of_pair && has_bytes && path.with_extension(NOTE).exists()) {
                left.push(format!("{DOWNLOADS}/{name}"));
            }
        }
        Ok(left)
    }

    /// Traffic control that a plugin set up on a link of the node; what the kernel gave a link by itself has
    /// the handle `0:`.
    fn qdiscs(&self) -> Result<Vec<String>> {
        let output = program::output(self.command("tc").args(["-json", "qdisc", "show"]))?;
        ensure!(output.status.success(), "tc: {}", streams(&output));
        let all: Vec<Value> =
            serde_json::from_slice(&output.stdout).context("parse what tc prints")?;
        let configured = all.iter().filter(|qdisc| qdisc["handle"] != "0:");
        let named = configured.map(|qdisc| format!("qdisc {} of {}", qdisc["kind"], qdisc["dev"]));
        Ok(named.map(|name| name.replace('"', "")).collect())
    }

    /// What the daemon's database has of pods.
    fn rows(&self) -> Result<Vec<String>> {
        let file = self.dir().join("state/vmlet.db");
        let database = Connection::open_with_flags(&file, OpenFlags::SQLITE_OPEN_READ_WRITE)
            .with_context(|| format!("open {}", file.display()))?;
        database.busy_timeout(BUSY)?;
        let mut left = Vec::new();
        for table in TABLES {
            let count = format!("SELECT count(*) FROM {table}");
            let rows: i64 = database.query_row(&count, [], |row| row.get(0))?;
            if rows > 0 {
                left.push(format!("{rows} rows of {table}"));
            }
        }
        Ok(left)
    }

    /// Names of all libvirt domains.
    pub fn domains(&self) -> Result<Vec<String>> {
        let text = self.virsh(&["list", "--all", "--name"])?;
        Ok(text.split_whitespace().map(ToOwned::to_owned).collect())
    }

    /// Runs virsh against the node's libvirtd and returns what it printed.
    pub fn virsh(&self, arguments: &[&str]) -> Result<String> {
        let socket = self.dir().join("libvirt/sock/libvirt-sock");
        let uri = format!("qemu+unix:///system?socket={}", socket.display());
        let mut virsh = Command::new("virsh");
        let output = program::output(virsh.args(["-c", &uri]).args(arguments))?;
        ensure!(
            output.status.success(),
            "virsh {arguments:?}: {}",
            streams(&output)
        );
        Ok(String::from_utf8(output.stdout)?)
    }

    /// The VM generation ID that the emulator of a running domain shows its guest.
    pub fn generation(&self, domain: &str) -> Result<String> {
        let query = "info vm-generation-id";
        let text = self.virsh(&["qemu-monitor-command", "--hmp", domain, query])?;
        let id = text.trim();
        ensure!(id.len() == 36, "{domain} has no generation ID: {id}");
        Ok(id.to_owned())
    }

    fn log_readers(&self) -> Vec<String> {
        let Ok(pid) = self.pid("vmlet") else {
            return Vec::new();
        };
        let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fd")) else {
            return Vec::new();
        };
        let targets = entries
            .flatten()
            .filter_map(|e| std::fs::read_link(e.path()).ok());
        let console = self.dir().join("state/console");
        targets
            .filter(|target| target.starts_with(&console))
            .map(|target| format!("open {}", target.display()))
            .collect()
    }

    /// Waits until nothing of any sandbox is left.
    pub async fn await_clean(&self) -> Result<()> {
        eventually(CLEAN, "a clean node", || async {
            let left = self.leftovers()?;
            ensure!(left.is_empty(), "left behind: {left:?}");
            Ok(())
        })
        .await
    }
}

fn names(dir: &Path) -> Result<Vec<String>> {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return Ok(Vec::new());
    };
    entries
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect()
}
