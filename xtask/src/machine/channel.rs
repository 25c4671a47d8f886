//! Lines of JSON through a Unix socket, as QEMU's monitor and its guest agent speak them.
//!
//! Invariant: a line is read to its end, whatever the deadlines of those who wait for it were.
//! Failure: an answer that says `error` is an error with the other side's own description.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// One connection.
#[derive(Debug)]
pub(super) struct Channel {
    stream: BufReader<UnixStream>,
    /// The beginning of a line whose end was late.
    line: Vec<u8>,
}

impl Channel {
    /// Connects to a socket that a running QEMU serves.
    pub(super) fn connect(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket)
            .with_context(|| format!("failed to connect to {}", socket.display()))?;
        Ok(Self::new(stream))
    }

    /// A channel through a connected socket.
    pub(super) fn new(stream: UnixStream) -> Self {
        Self {
            stream: BufReader::new(stream),
            line: Vec::new(),
        }
    }

    /// Sends a command and returns its result. Lines that answer nothing, such as events, are
    /// passed over.
    pub(super) fn call(
        &mut self,
        command: &str,
        arguments: &Value,
        deadline: Duration,
    ) -> Result<Value> {
        self.send(&json!({"execute": command, "arguments": arguments}))
            .with_context(|| format!("failed to send {command}"))?;
        let end = Instant::now() + deadline;
        loop {
            let answer = self
                .receive(end)?
                .with_context(|| format!("{command}: no answer within {deadline:?}"))?;
            if let Some(error) = answer.get("error") {
                bail!("{command}: {}", description(error));
            }
            if let Some(result) = answer.get("return") {
                return Ok(result.clone());
            }
        }
    }

    /// Sends one line.
    pub(super) fn send(&mut self, message: &Value) -> io::Result<()> {
        self.send_bytes(format!("{message}\n").as_bytes())
    }

    /// Sends bytes that are no message.
    pub(super) fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// The next line that is JSON; `None` when there is none until `end`.
    pub(super) fn receive(&mut self, end: Instant) -> Result<Option<Value>> {
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.stream
                .get_ref()
                .set_read_timeout(Some(left))
                .context("failed to set a deadline")?;
            match self.stream.read_until(b'\n', &mut self.line) {
                Ok(0) => bail!("QEMU closed the connection"),
                Ok(_) => {
                    let line = std::mem::take(&mut self.line);
                    if let Ok(value) = serde_json::from_slice(&line) {
                        return Ok(Some(value));
                    }
                }
                Err(error) if is_late(&error) => return Ok(None),
                Err(error) => return Err(error).context("failed to read an answer"),
            }
        }
    }
}

fn is_late(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

fn description(error: &Value) -> String {
    match error.get("desc").and_then(Value::as_str) {
        Some(text) => text.to_owned(),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn pair() -> (Channel, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Channel::new(ours), theirs)
    }

    #[test]
    fn events_and_noise_before_an_answer_are_passed_over() {
        let (mut channel, mut other) = pair();
        other
            .write_all(b"{\"event\": \"RESUME\"}\r\n\xffnoise\n{\"return\": {\"status\": \"running\"}}\r\n")
            .unwrap();
        let status = channel.call("query-status", &json!({}), LONG).unwrap();
        assert_eq!(status["status"], "running");

        let mut sent = String::new();
        BufReader::new(other).read_line(&mut sent).unwrap();
        assert_eq!(sent, "{\"arguments\":{},\"execute\":\"query-status\"}\n");
    }

    #[test]
    fn a_refusal_has_the_reason_of_the_other_side() {
        let (mut channel, mut other) = pair();
        other
            .write_all(b"{\"error\": {\"class\": \"GenericError\", \"desc\": \"Duplicate ID\"}}\n")
            .unwrap();
        let error = channel.call("device_add", &json!({}), LONG).unwrap_err();
        assert_eq!(error.to_string(), "device_add: Duplicate ID");
    }

    #[test]
    fn the_beginning_of_a_late_line_is_kept() {
        let (mut channel, mut other) = pair();
        other.write_all(b"{\"return\"").unwrap();
        let soon = Instant::now() + Duration::from_millis(1);
        assert_eq!(channel.receive(soon).unwrap(), None);
        other.write_all(b": 7}\n").unwrap();
        let line = channel.receive(Instant::now() + LONG).unwrap();
        assert_eq!(line, Some(json!({"return": 7})));
    }

    #[test]
    fn a_closed_connection_is_no_deadline() {
        let (mut channel, other) = pair();
        drop(other);
        let error = channel.receive(Instant::now() + LONG).unwrap_err();
        assert!(error.to_string().contains("closed"), "{error}");
    }
}
