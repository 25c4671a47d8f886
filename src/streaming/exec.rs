//! A session of a command in a guest.
//!
//! `vmlet-guest` runs it, when it answers: streams pass as they come, with a terminal where one is
//! requested. Otherwise the QEMU guest agent runs it, which has no streams: the output comes when
//! the command has ended.
//!
//! Invariant: the command ends with its client: a session that breaks off kills it.
//! Failure: reported on the error stream, as the protocol's version defines.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use guestapi::Terminal;
use serde::Deserialize;
use spdy::{ReadHalf, Session, WriteHalf};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::codec::{FramedRead, LinesCodec};

use super::protocol;
use super::streams::{self, Opened, write};
use super::{ExecTarget, Wanted};
use crate::app::Containers;
use crate::guest::{Agent, Command, Control, Input, Output};

/// Bytes that are copied at once.
const PIECE: usize = 16 << 10;
/// Longest report of a terminal's size.
const LONGEST_SIZE: usize = 1024;
/// The size of a terminal until the client reports it.
const FIRST_SIZE: Terminal = Terminal {
    rows: 24,
    columns: 80,
};

/// A client's terminal, as the protocol has it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Size {
    width: u16,
    height: u16,
}

/// Runs the command of a session to its end.
pub(super) async fn run(
    mut session: Session,
    version: &'static str,
    target: ExecTarget,
    containers: Arc<Containers>,
) -> Result<(), String> {
    let wanted = Wanted {
        resize: target.streams.resize && protocol::has_resize(version),
        ..target.streams
    };
    let mut streams = streams::awaited(&mut session, wanted).await?;
    let outcome = tokio::select! {
        outcome = outcome(&mut streams, target, &containers) => outcome?,
        // Dropping the command kills it.
        reason = streams::end(&mut session) => return Err(reason),
    };
    for stream in [&mut streams.stdout, &mut streams.stderr] {
        write(stream.as_mut(), b"").await?;
    }
    let result = protocol::result(version, &outcome);
    write(streams.error.as_mut(), &result).await?;
    session.close().await.map_err(|e| crate::one_line(&e))
}

/// What the command comes to; the error is that of the session.
async fn outcome(
    streams: &mut Opened,
    target: ExecTarget,
    containers: &Arc<Containers>,
) -> Result<Result<i32, String>, String> {
    // The request for the session has waited for the agent, if there is one.
    match containers
        .guest_agent(&target.container, Duration::ZERO)
        .await
    {
        Err(error) => Ok(Err(crate::one_line(&error))),
        Ok(Some(agent)) => with_streams(streams, target, &agent).await,
        Ok(None) => at_its_end(streams, target, containers).await,
    }
}

/// Through `vmlet-guest`.
async fn with_streams(
    streams: &mut Opened,
    target: ExecTarget,
    agent: &Agent,
) -> Result<Result<i32, String>, String> {
    let Wanted { stdin, resize, .. } = target.streams;
    let started = agent.start(target.command, stdin, resize.then_some(FIRST_SIZE));
    let command = match started.await {
        Ok(command) => command,
        Err(error) => return Ok(Err(crate::one_line(&error))),
    };
    let Command {
        input,
        mut stdout,
        mut stderr,
        control,
        mut ended,
    } = command;
    let feed = feed(streams.stdin.take(), input);
    let sizes = sizes(streams.resize.take(), control);
    let copy = async {
        tokio::try_join!(
            copy(&mut stdout, streams.stdout.as_mut()),
            copy(&mut stderr, streams.stderr.as_mut()),
        )
    };
    tokio::select! {
        copied = copy => drop(copied?),
        never = async { tokio::join!(feed, sizes) } => match never.0 {},
    }
    Ok(ended.wait().await.map_err(|e| crate::one_line(&e)))
}

/// Through the QEMU guest agent.
async fn at_its_end(
    streams: &mut Opened,
    target: ExecTarget,
    containers: &Arc<Containers>,
) -> Result<Result<i32, String>, String> {
    let ended = containers.exec(&target.container, target.command, None);
    match ended.await {
        Ok(output) => {
            write(streams.stdout.as_mut(), &output.out).await?;
            write(streams.stderr.as_mut(), &output.err).await?;
            Ok(Ok(output.code))
        }
        Err(error) => Ok(Err(crate::one_line(&error))),
    }
}

/// Sends the client's input. Its end is not that of the session.
async fn feed(stdin: Option<ReadHalf>, input: Input) -> std::convert::Infallible {
    if let Some(mut stdin) = stdin {
        let mut buffer = vec![0; PIECE];
        while let Ok(length @ 1..) = stdin.read(&mut buffer).await {
            // A command that has ended, or reads no more, does not keep the client from sending.
            input.write(&buffer[..length]).await;
        }
        input.end().await;
    }
    std::future::pending().await
}

/// Applies the sizes of the client's terminal.
async fn sizes(resize: Option<ReadHalf>, control: Control) {
    if let Some(resize) = resize {
        let lines = LinesCodec::new_with_max_length(LONGEST_SIZE);
        let mut lines = FramedRead::new(resize, lines);
        while let Some(Ok(line)) = lines.next().await {
            // A report that cannot be read changes nothing.
            if let Ok(size) = serde_json::from_str::<Size>(&line) {
                let (rows, columns) = (size.height.into(), size.width.into());
                control.resize(Terminal { rows, columns }).await;
            }
        }
    }
}

/// Sends the output of the command until it ends. What the client does not want is read all the
/// same, so that the command can go on.
async fn copy(output: &mut Output, mut client: Option<&mut WriteHalf>) -> Result<(), String> {
    let mut buffer = vec![0; PIECE];
    loop {
        let read = output.read(&mut buffer).await;
        let length = read.map_err(|e| crate::one_line(&e))?;
        if length == 0 {
            return Ok(());
        }
        if let Some(client) = &mut client {
            let written = client.write_all(&buffer[..length]).await;
            written.map_err(|e| crate::one_line(&e))?;
        }
    }
}
