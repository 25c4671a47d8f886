//! The streams that a client opens for a command.
//!
//! Invariant: exactly the streams of the request are awaited, each once.
//! Failure: a sentence for the log; the session ends then.

use std::time::Duration;

use spdy::{Session, Stream, WriteHalf};

use super::ExecTarget;

/// Time for a client to open its streams.
pub(super) const CREATION: Duration = Duration::from_secs(30);

/// The streams of a command.
#[derive(Debug)]
pub(super) struct CommandStreams {
    pub(super) error: WriteHalf,
    pub(super) stdout: Option<WriteHalf>,
    pub(super) stderr: Option<WriteHalf>,
}

/// Awaits the streams of a request.
pub(super) async fn awaited(
    session: &mut Session,
    target: &ExecTarget,
) -> Result<CommandStreams, String> {
    let collected = collect(session, target);
    match tokio::time::timeout(CREATION, collected).await {
        Ok(streams) => streams,
        Err(_) => Err("the client did not open all streams in time".to_owned()),
    }
}

async fn collect(session: &mut Session, target: &ExecTarget) -> Result<CommandStreams, String> {
    let (mut error, mut stdout, mut stderr) = (None, None, None);
    loop {
        let is_complete = error.is_some()
            && stdout.is_some() == target.stdout
            && stderr.is_some() == target.stderr;
        if is_complete && let Some(error) = error.take() {
            return Ok(CommandStreams {
                error,
                stdout,
                stderr,
            });
        }
        let stream = next(session).await?;
        let place = match stream.header("streamtype") {
            Some("error") => &mut error,
            Some("stdout") if target.stdout => &mut stdout,
            Some("stderr") if target.stderr => &mut stderr,
            other => return Err(format!("the request has no stream {other:?}")),
        };
        if place.is_some() {
            return Err(format!(
                "{:?} was opened twice",
                stream.header("streamtype")
            ));
        }
        // The client sends nothing on these streams.
        *place = Some(stream.split().1);
    }
}

/// The next stream; the end of the session is an error.
pub(super) async fn next(session: &mut Session) -> Result<Stream, String> {
    match session.accept().await {
        Ok(Some(stream)) => Ok(stream),
        Ok(None) => Err("the client ended the session".to_owned()),
        Err(error) => Err(service::telemetry::one_line(&error)),
    }
}
