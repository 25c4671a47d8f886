//! The language between `xtask` commands and a stack's supervisor: one JSON request and one reply
//! per connection, a line each.
//!
//! Invariant: a reply comes when what was requested has happened.
//! Failure: a supervisor that no longer exists refuses the connection; what it refuses to do
//! returns as text.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::{Layout, Program};

/// What a supervisor can be asked.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Which programs run?
    Status,
    /// Start a program that does not run.
    Start(Program),
    /// Stop a program: SIGTERM, and SIGKILL when that does not help.
    Stop(Program),
    /// Answer when the program has ended or the time is over.
    Watch(Program, Duration),
    /// End, leaving nothing but orphans.
    Quit,
}

/// What a supervisor answers.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Reply {
    /// Why the request failed.
    pub(crate) error: Option<String>,
    /// Programs that run, with their process ids.
    pub(crate) running: Vec<(Program, i32)>,
    /// How the program in question ended, if it does not run.
    pub(crate) ended: Option<String>,
    /// The supervisor's own process id.
    pub(crate) supervisor: i32,
}

/// The ports on the host's loopback that a supervisor prints when it is ready.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Ports {
    /// Of the image server.
    pub(crate) images: u16,
    /// That leads to the cluster's API server; 0 if there is none on this node.
    pub(crate) api: u16,
}

/// Calls the supervisor of a stack.
pub(crate) fn call(layout: &Layout, request: &Request) -> Result<Reply> {
    let socket = layout.supervisor_socket();
    let mut stream = UnixStream::connect(&socket).with_context(|| {
        format!(
            "the supervisor of {} does not answer",
            layout.dir().display()
        )
    })?;
    send(&mut stream, request).context("ask the supervisor")?;
    let reply: Reply = receive(&stream).context("the supervisor's answer")?;
    match reply.error {
        Some(error) => bail!("{error}"),
        None => Ok(reply),
    }
}

/// Writes one message.
pub(crate) fn send(stream: &mut UnixStream, message: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_string(message)?;
    line.push('\n');
    Ok(stream.write_all(line.as_bytes())?)
}

/// Reads one message.
pub(crate) fn receive<T: for<'a> Deserialize<'a>>(stream: &UnixStream) -> Result<T> {
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}
