//! The commands of the QEMU guest agent that run programs and read small files in a guest.
//!
//! Invariant: what an agent answers is checked: sizes are bounded by the [reply](AgentReply) that carries it,
//! base64 is decoded, numbers are in range. An agent keeps a result until one request has fetched it.
//! Failure: those of [`Hypervisor::agent`]; an answer that makes no sense is [`Error::Agent`], and of a file no
//! content.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::Instant;
use uuid::Uuid;

use crate::{Error, Hypervisor, Result};

mod reply;
mod vcpus;

use reply::LONGEST;
pub use reply::{AgentReply, Few, Object, SHORT_REPLY};
pub use vcpus::use_vcpus;

/// What one stream of a program may hold so that the agent's one answer with both reaches us:
/// libvirt's protocol carries 4 MiB of base64, and an answer beyond 10 MiB ends libvirt's
/// connection with the agent for good. The agent itself only cuts at 16 MiB for each stream, so the
/// program in the guest has to.
pub const LARGEST_STREAM: usize = 1 << 20;

/// Least time to close a file.
const CLOSE: Duration = Duration::from_secs(1);

/// A program to be run in a guest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Program {
    /// Path, or a name that is looked up in the agent's `PATH`.
    pub path: String,
    /// Arguments after the name.
    #[serde(rename = "arg")]
    pub arguments: Vec<String>,
    /// What it reads from its standard input; nothing when empty.
    #[serde(
        rename = "input-data",
        skip_serializing_if = "Vec::is_empty",
        serialize_with = "as_base64"
    )]
    pub input: Vec<u8>,
    /// Whether the agent keeps its output.
    #[serde(rename = "capture-output")]
    pub capture: bool,
}

/// A program that the agent started: its process id in the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Process {
    /// Process id.
    pub pid: i64,
}

/// How a program ended, and what it had written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ended {
    /// How.
    pub how: How,
    /// Standard output, if it was captured.
    pub out: Vec<u8>,
    /// Standard error, if it was captured.
    pub err: Vec<u8>,
    /// Whether the agent threw some of either away.
    pub truncated: bool,
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// It exited with this code.
    Code(i32),
    /// A signal of this number, 1 to 64, killed it.
    Signal(i32),
}

#[derive(Deserialize)]
struct Status {
    exited: bool,
    exitcode: Option<i32>,
    signal: Option<i32>,
    #[serde(rename = "out-data", default)]
    out: String,
    #[serde(rename = "err-data", default)]
    err: String,
    #[serde(rename = "out-truncated", default)]
    out_truncated: bool,
    #[serde(rename = "err-truncated", default)]
    err_truncated: bool,
}

impl Default for How {
    fn default() -> Self {
        Self::Code(0)
    }
}

/// Proves that the agent answers.
pub async fn ping<H: Hypervisor>(hypervisor: &H, domain: Uuid, deadline: Duration) -> Result<()> {
    let ping = json!({"execute": "guest-ping"});
    hypervisor.agent(domain, ping, deadline).await?.check()
}

/// Starts a program; the agent answers as soon as it runs.
///
/// [`Error::Refused`] when it cannot be started, for example because it is not there.
pub async fn exec<H: Hypervisor>(
    hypervisor: &H,
    domain: Uuid,
    program: &Program,
    deadline: Duration,
) -> Result<Process> {
    let command = json!({"execute": "guest-exec", "arguments": program});
    let reply = hypervisor.agent(domain, command, deadline).await?;
    object(&reply, SHORT_REPLY)
}

/// How a program ended; `None` while it runs or something it started holds its output open. The
/// agent forgets a program that has ended with this answer: the next question about it is
/// [`Error::Refused`].
pub async fn exec_status<H: Hypervisor>(
    hypervisor: &H,
    domain: Uuid,
    process: Process,
    deadline: Duration,
) -> Result<Option<Ended>> {
    let command = json!({"execute": "guest-exec-status", "arguments": {"pid": process.pid}});
    let reply = hypervisor.agent(domain, command, deadline).await?;
    let status: Status = object(&reply, LONGEST)?;
    if !status.exited {
        return Ok(None);
    }
    let how = match (status.exitcode, status.signal) {
        (_, Some(signal @ 1..=64)) => How::Signal(signal),
        (_, Some(_)) => return Err(nonsense("a program ended by a signal that does not exist")),
        (Some(code), None) => How::Code(code),
        (None, None) => return Err(nonsense("a program ended neither by a code nor a signal")),
    };
    Ok(Some(Ended {
        how,
        out: decode(&status.out)?,
        err: decode(&status.err)?,
        truncated: status.out_truncated || status.err_truncated,
    }))
}

#[derive(Deserialize)]
struct Part {
    #[serde(rename = "buf-b64", default)]
    data: String,
}

/// What is in a file of the guest, at most `most` bytes of it, which must be less than half of
/// [`SHORT_REPLY`]; `None` when what the agent answers makes no sense. `deadline` is for all of it; the file
/// is closed within a second more, and what was read counts however that ends.
///
/// [`Error::Refused`] when it cannot be read, for example because it is not there or the agent may
/// not.
pub async fn read_file<H: Hypervisor>(
    hypervisor: &H,
    domain: Uuid,
    path: &str,
    most: usize,
    deadline: Duration,
) -> Result<Option<Vec<u8>>> {
    let end = Instant::now() + deadline;
    let left = || end.saturating_duration_since(Instant::now());
    let open = json!({"execute": "guest-file-open", "arguments": {"path": path, "mode": "r"}});
    let opened = hypervisor.agent(domain, open, deadline).await?;
    let Ok(handle) = opened.read::<i64>(SHORT_REPLY) else {
        return Ok(None);
    };
    let of = |command: &str, count: Option<usize>| {
        let mut arguments = json!({"handle": handle});
        if let Some(count) = count {
            arguments["count"] = count.into();
        }
        json!({"execute": command, "arguments": arguments})
    };
    let read = of("guest-file-read", Some(most));
    let read = hypervisor.agent(domain, read, left()).await;
    // Handles that stay open are the guest's, and it has not many.
    let close = of("guest-file-close", None);
    let _ = hypervisor.agent(domain, close, left().max(CLOSE)).await;
    let part = object::<Part>(&read?, SHORT_REPLY);
    let data = part.and_then(|part| decode(&part.data)).ok();
    Ok(data.map(|mut data| {
        data.truncate(most);
        data
    }))
}

fn object<T: DeserializeOwned>(reply: &AgentReply, most: usize) -> Result<T> {
    let Object(content) = reply.read(most)?;
    Ok(content)
}

fn decode(data: &str) -> Result<Vec<u8>> {
    STANDARD
        .decode(data)
        .map_err(|e| nonsense(&format!("output is not base64: {e}")))
}

fn nonsense(reason: &str) -> Error {
    let reason = crate::error::readable(reason);
    Error::Agent {
        reason: format!("its answer makes no sense: {reason}"),
    }
}

fn as_base64<S: serde::Serializer>(input: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&STANDARD.encode(input))
}

#[cfg(all(test, feature = "fake"))]
mod tests;
