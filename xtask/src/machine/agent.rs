//! QEMU's guest agent in the machine: runs commands as root and reads files.
//!
//! Invariant: an answer belongs to its question. An earlier client may have left half a
//! command or an answer, so that each connection begins with a synchronisation.
//! Failure: a machine without its agent (it boots, it is gone) is an error after the deadline.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::channel::Channel;
use super::{PATIENCE, wait_for};

/// How long one question may wait before the next is asked.
const ONE_SYNC: Duration = Duration::from_secs(5);
/// The agent forgets what it has read of a line when it reads this byte.
const FLUSH: &[u8] = &[0xff];
/// What one answer holds; the agent refuses more than 48 MiB.
const CHUNK: u64 = 4 << 20;
/// The environment of commands: that of a service has no home.
const ENVIRONMENT: [&str; 4] = [
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME=/root",
    "LANG=C.UTF-8",
    "FILES=/mnt/files",
];

/// A connection to the agent.
#[derive(Debug)]
pub(crate) struct Agent {
    channel: Channel,
}

/// How a command ended, and what it said.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    /// The exit code, or 128 and the number of the signal, as shells have it.
    pub(crate) code: u8,
    /// Its standard output.
    pub(crate) stdout: Vec<u8>,
    /// Its standard error.
    pub(crate) stderr: Vec<u8>,
}

impl Agent {
    /// Connects and waits until the agent answers.
    pub(super) fn connect(socket: &Path, deadline: Duration) -> Result<Self> {
        let mut agent = Self {
            channel: Channel::connect(socket)?,
        };
        let end = Instant::now() + deadline;
        let mut number = u64::from(std::process::id());
        while Instant::now() < end {
            number += 1;
            if agent.answers(number)? {
                return Ok(agent);
            }
        }
        bail!("the guest agent did not answer within {deadline:?}")
    }

    fn answers(&mut self, number: u64) -> Result<bool> {
        self.channel
            .send_bytes(FLUSH)
            .and_then(|()| {
                let arguments = json!({"id": number});
                let sync = json!({"execute": "guest-sync", "arguments": arguments});
                self.channel.send(&sync)
            })
            .context("failed to ask the guest agent")?;
        let end = Instant::now() + ONE_SYNC;
        while let Some(answer) = self.channel.receive(end)? {
            if answer["return"] == number {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Runs a command of the shell as root and waits for its end.
    pub(crate) fn run(&mut self, script: &str, deadline: Duration) -> Result<Ended> {
        let arguments = json!({
            "path": "/bin/sh",
            "arg": ["-c", script],
            "env": ENVIRONMENT,
            "capture-output": true,
        });
        let started = self.channel.call("guest-exec", &arguments, PATIENCE)?;
        let pid = json!({"pid": started["pid"]});
        wait_for("the command", deadline, || {
            let status = self.channel.call("guest-exec-status", &pid, PATIENCE)?;
            match status["exited"] {
                Value::Bool(true) => ended(&status).map(Some),
                _ => Ok(None),
            }
        })
    }

    /// The same for a command that must succeed. Returns its standard output.
    pub(crate) fn output(&mut self, script: &str, deadline: Duration) -> Result<String> {
        let ended = self.run(script, deadline)?;
        if ended.code != 0 {
            let reason = String::from_utf8_lossy(&ended.stderr);
            bail!("{script}: exit code {}: {}", ended.code, reason.trim_end());
        }
        Ok(String::from_utf8_lossy(&ended.stdout).into_owned())
    }

    /// The content of a file.
    pub(crate) fn read(&mut self, path: &str) -> Result<Vec<u8>> {
        let open = json!({"path": path, "mode": "r"});
        let handle = self.channel.call("guest-file-open", &open, PATIENCE)?;
        let mut content = Vec::new();
        loop {
            let read = json!({"handle": handle, "count": CHUNK});
            let part = self.channel.call("guest-file-read", &read, PATIENCE)?;
            content.extend(decode(&part["buf-b64"])?);
            if part["eof"] == true {
                break;
            }
        }
        let close = json!({"handle": handle});
        self.channel.call("guest-file-close", &close, PATIENCE)?;
        Ok(content)
    }
}

fn ended(status: &Value) -> Result<Ended> {
    let code = match (status["exitcode"].as_u64(), status["signal"].as_u64()) {
        (Some(code), _) => code,
        (None, Some(signal)) => 128 + signal,
        (None, None) => bail!("the guest agent does not say how the command ended: {status}"),
    };
    for stream in ["out-truncated", "err-truncated"] {
        if status[stream] == true {
            bail!("the command says more than the guest agent keeps ({stream})");
        }
    }
    Ok(Ended {
        code: u8::try_from(code).context("exit code")?,
        stdout: decode(&status["out-data"])?,
        stderr: decode(&status["err-data"])?,
    })
}

/// The agent leaves out what is empty.
fn decode(value: &Value) -> Result<Vec<u8>> {
    STANDARD
        .decode(value.as_str().unwrap_or_default())
        .context("failed to read base64 of the guest agent")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_ends_with_its_code_and_both_streams() {
        let status = json!({
            "exited": true, "exitcode": 3, "out-data": "b3V0Cg==", "err-data": "ZXJyCg==",
        });
        let want = Ended {
            code: 3,
            stdout: b"out\n".to_vec(),
            stderr: b"err\n".to_vec(),
        };
        assert_eq!(ended(&status).unwrap(), want);
    }

    #[test]
    fn a_command_that_was_killed_has_the_code_of_shells() {
        let ended = ended(&json!({"exited": true, "signal": 9})).unwrap();
        assert_eq!((ended.code, ended.stdout), (137, Vec::new()));
    }

    #[test]
    fn half_an_output_is_no_output() {
        let status = json!({"exited": true, "exitcode": 0, "out-truncated": true});
        assert!(ended(&status).is_err());
        assert!(ended(&json!({"exited": true})).is_err());
    }
}
