//! The streams that a client opens for a command or a console.
//!
//! Invariant: exactly the streams of the request are awaited, each once.
//! Failure: a sentence for the log; the session ends then.

use std::time::Duration;

use spdy::{ReadHalf, Session, Stream, WriteHalf};
use streamapi::{Agreed, Outcome};
use tokio::io::AsyncWriteExt;
use tokio_util::sync::CancellationToken;

use super::Target;
use super::websocket::Opening;

/// Time for a client to open its streams.
const CREATION: Duration = Duration::from_secs(30);

/// The streams of a request, besides the error stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The client sends input.
    pub stdin: bool,
    /// The client reads standard output.
    pub stdout: bool,
    /// The client reads standard error.
    pub stderr: bool,
    /// The client has a terminal, and sends its size.
    pub resize: bool,
}

/// The streams that channels of WebSocket are, in the numbering of the protocol. The client gets an
/// empty message first, on the lowest channel that it reads, which tells it that the session is up.
pub(super) fn openings(target: &Target) -> Vec<Opening> {
    let wanted = match target {
        Target::Exec(target) => target.streams,
        Target::Attach(target) => target.streams,
        Target::PortForward(target) => return connections(&target.ports),
    };
    let channels = [
        ("stdin", wanted.stdin),
        ("stdout", wanted.stdout),
        ("stderr", wanted.stderr),
        ("error", true),
        ("resize", wanted.resize),
    ];
    let mut first = true;
    let opening = |(channel, (kind, _))| {
        let is_written = !matches!(kind, "stdin" | "resize");
        Opening {
            channel,
            headers: vec![("streamtype".to_owned(), kind.to_owned())],
            greeting: (is_written && std::mem::take(&mut first)).then(Vec::new),
        }
    };
    let numbered = (0..).zip(channels);
    numbered
        .filter(|(_, (_, is_open))| *is_open)
        .map(opening)
        .collect()
}

/// Two channels for each port, for data and for errors. Each begins with the port.
fn connections(ports: &[u16]) -> Vec<Opening> {
    let mut openings = Vec::new();
    for (channel, port) in (0..).step_by(2).zip(ports) {
        for (channel, kind) in [(channel, "data"), (channel + 1, "error")] {
            let headers = [
                ("streamtype", kind.to_owned()),
                ("requestid", openings.len().div_euclid(2).to_string()),
                ("port", port.to_string()),
            ];
            openings.push(Opening {
                channel,
                headers: headers.map(|(name, value)| (name.to_owned(), value)).into(),
                greeting: Some(port.to_le_bytes().into()),
            });
        }
    }
    openings
}

/// The open streams.
#[derive(Debug, Default)]
pub(super) struct Opened {
    pub(super) error: Option<WriteHalf>,
    pub(super) stdin: Option<ReadHalf>,
    pub(super) stdout: Option<WriteHalf>,
    pub(super) stderr: Option<WriteHalf>,
    pub(super) resize: Option<ReadHalf>,
}

impl Opened {
    fn is_complete(&self, wanted: Wanted) -> bool {
        let opened = Wanted {
            stdin: self.stdin.is_some(),
            stdout: self.stdout.is_some(),
            stderr: self.stderr.is_some(),
            resize: self.resize.is_some(),
        };
        self.error.is_some() && opened == wanted
    }

    /// Takes a stream; an error names one that is not wanted.
    fn take(&mut self, stream: Stream, wanted: Wanted) -> Result<(), String> {
        let kind = stream.header("streamtype").unwrap_or_default().to_owned();
        let (read, write) = stream.split();
        // Of each stream one direction is used; the other one ends here.
        let is_first = match kind.as_str() {
            "error" => self.error.replace(write).is_none(),
            "stdin" if wanted.stdin => self.stdin.replace(read).is_none(),
            "stdout" if wanted.stdout => self.stdout.replace(write).is_none(),
            "stderr" if wanted.stderr => self.stderr.replace(write).is_none(),
            "resize" if wanted.resize => self.resize.replace(read).is_none(),
            _ => return Err(format!("the request has no stream {kind:?}")),
        };
        if is_first {
            Ok(())
        } else {
            Err(format!("the stream {kind:?} was opened twice"))
        }
    }
}

/// Awaits the streams of a session that has a result; the client of an older protocol opens none for
/// the sizes of its terminal.
pub(super) async fn of_session(
    session: &mut Session,
    wanted: Wanted,
    agreed: &Agreed,
) -> Result<Opened, String> {
    let wanted = Wanted {
        resize: wanted.resize && agreed.has_resize,
        ..wanted
    };
    awaited(session, wanted).await
}

/// Does the work of a session until it has an outcome, the server closes, or the client ends the
/// session, which drops the work.
pub(super) async fn outcome(
    session: &mut Session,
    closing: &CancellationToken,
    work: impl Future<Output = Result<Outcome, String>>,
) -> Result<Outcome, String> {
    tokio::select! {
        outcome = work => outcome,
        () = closing.cancelled() => Ok(Err(super::CLOSING.to_owned())),
        reason = end(session) => Err(reason),
    }
}

/// Ends the output, sends the outcome and closes the session.
pub(super) async fn finish(
    session: Session,
    mut streams: Opened,
    agreed: &Agreed,
    outcome: &Outcome,
) -> Result<(), String> {
    for stream in [&mut streams.stdout, &mut streams.stderr] {
        write(stream.as_mut(), b"").await?;
    }
    let result = agreed.results.write(outcome);
    write(streams.error.as_mut(), &result).await?;
    session.close().await.map_err(|e| crate::one_line(&e))
}

/// Awaits the streams of a request.
async fn awaited(session: &mut Session, wanted: Wanted) -> Result<Opened, String> {
    let collected = async {
        let mut opened = Opened::default();
        while !opened.is_complete(wanted) {
            opened.take(next(session).await?, wanted)?;
        }
        Ok(opened)
    };
    match tokio::time::timeout(CREATION, collected).await {
        Ok(streams) => streams,
        Err(_) => Err("the client did not open all streams in time".to_owned()),
    }
}

/// The next stream; the end of the session is an error.
pub(super) async fn next(session: &mut Session) -> Result<Stream, String> {
    match session.accept().await {
        Ok(Some(stream)) => Ok(stream),
        Ok(None) => Err("the client ended the session".to_owned()),
        Err(error) => Err(crate::one_line(&error)),
    }
}

/// Returns when the client ends the session, or opens a stream that the request does not have.
pub(super) async fn end(session: &mut Session) -> String {
    match next(session).await {
        Ok(_) => "the client opened another stream".to_owned(),
        Err(reason) => reason,
    }
}

/// Writes all of a stream and its end.
pub(super) async fn write(stream: Option<&mut WriteHalf>, bytes: &[u8]) -> Result<(), String> {
    let Some(stream) = stream else {
        return Ok(());
    };
    let written = async {
        stream.write_all(bytes).await?;
        stream.shutdown().await
    };
    written.await.map_err(|e| crate::one_line(&e))
}
