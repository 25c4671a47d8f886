//! Stores the result of the probe, so that a restart does not wait for it.
//!
//! Invariant: an answer holds for one boot of the kernel, one emulator binary, one user and one
//! device node as it is. A refusal may have been a busy moment's: how long it holds depends on how
//! many there were in a row.
//! Failure: none; without a usable file the probe runs again.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use service::boot_id;
use tokio::fs;
use tokio::io::AsyncReadExt;

use super::Host;
use super::probe::Verdict;

const FILE: &str = "accelerator.json";
/// The file is less than a kilobyte.
const MAX_FILE: u64 = 64 << 10;
/// What an answer depends on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Key {
    boot: String,
    emulator: Node,
    device: Node,
    uid: u32,
    gid: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Node {
    path: String,
    mode: u32,
    uid: u32,
    gid: u32,
    device: u64,
    size: u64,
    /// Seconds and nanoseconds; of device nodes it says nothing, so there it is zero.
    modified: (i64, i64),
}

#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    key: Key,
    /// Seconds since 1970.
    at: u64,
    /// How many probes in a row have failed; an earlier version has written none.
    #[serde(default)]
    refusals: u32,
    #[serde(flatten)]
    verdict: Verdict,
}

/// The answer of an earlier probe.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) verdict: Verdict,
    pub(super) age: Duration,
    /// How many probes in a row have failed.
    pub(super) refusals: u32,
}

impl Key {
    /// Looks at the host. The error is half a sentence: without a device or an emulator nothing is
    /// to be probed.
    pub(super) async fn read(host: &Host) -> Result<Self, String> {
        let file = host.boot_id_file.clone();
        let boot = tokio::task::spawn_blocking(move || boot_id::read(&file)).await;
        Ok(Self {
            // Without an id an answer holds for all boots without one.
            boot: boot.ok().and_then(Result::ok).unwrap_or_default(),
            device: Node::read(host.device()).await?,
            emulator: Node::read(&host.emulator).await?,
            uid: host.uid,
            gid: host.gid,
        })
    }
}

impl Node {
    async fn read(path: &Path) -> Result<Self, String> {
        let name = path.display();
        let found = fs::metadata(path).await.map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => format!("{name} does not exist"),
            _ => format!("{name} cannot be looked at: {e}"),
        })?;
        let is_file = found.is_file();
        Ok(Self {
            path: name.to_string(),
            mode: found.mode(),
            uid: found.uid(),
            gid: found.gid(),
            device: found.rdev(),
            size: found.size(),
            modified: if is_file {
                (found.mtime(), found.mtime_nsec())
            } else {
                (0, 0)
            },
        })
    }
}

/// The answer of an earlier probe of the same things.
pub(super) async fn load(dir: &Path, key: &Key) -> Option<Answer> {
    let file = fs::File::open(dir.join(FILE)).await.ok()?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE).read_to_end(&mut bytes).await.ok()?;
    let entry: Entry = serde_json::from_slice(&bytes).ok()?;
    let age = Duration::from_secs(now().checked_sub(entry.at)?);
    (entry.key == *key).then_some(Answer {
        verdict: entry.verdict,
        age,
        refusals: entry.refusals,
    })
}

/// Keeps an answer for the next probe, with the number of those in a row that have failed.
pub(super) async fn store(dir: &Path, key: &Key, verdict: &Verdict, refusals: u32) {
    let entry = Entry {
        key: key.clone(),
        at: now(),
        refusals,
        verdict: verdict.clone(),
    };
    if let Err(error) = write(dir, &entry).await {
        tracing::warn!(%error, "accelerator probe result not saved");
    }
}

async fn write(dir: &Path, entry: &Entry) -> io::Result<()> {
    let partial = dir.join("accelerator.json.new");
    fs::write(&partial, serde_json::to_vec(entry)?).await?;
    fs::rename(&partial, dir.join(FILE)).await
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |d| d.as_secs())
}
