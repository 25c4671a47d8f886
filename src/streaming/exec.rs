//! A session of a command in a guest.
//!
//! `vmlet-guest` runs it, when it answers: streams pass as they come, with a terminal where one is
//! requested. Otherwise the QEMU guest agent runs it, which has no streams: the output comes when
//! the command has ended.
//!
//! Invariant: the command ends with its client: a session that breaks off kills it.
//! Failure: reported on the error stream, as the protocol's version defines.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use guestapi::Terminal;
use spdy::{ReadHalf, Session, WriteHalf};
use streamapi::{Agreed, Outcome, Sizes};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::sync::CancellationToken;

use super::streams::{self, Opened, write};
use super::{ExecTarget, Wanted};
use crate::guest::{Agent, Command, Control, Input, Output, Start};
use crate::platform::Platform;
use crate::vm::Containers;

/// Bytes that are copied at once.
const PIECE: usize = 16 << 10;
/// The size of a terminal until the client reports it.
const FIRST_SIZE: Terminal = Terminal {
    rows: 24,
    columns: 80,
};

/// Runs the command of a session to its end.
pub(super) async fn run<P: Platform>(
    mut session: Session,
    agreed: Agreed,
    target: ExecTarget,
    containers: Arc<Containers<P>>,
    closing: CancellationToken,
) -> Result<(), String> {
    let mut streams = streams::of_session(&mut session, target.streams, &agreed).await?;
    // Dropping the command kills it.
    let work = outcome(&mut streams, target, &containers);
    let outcome = streams::outcome(&mut session, &closing, work).await?;
    streams::finish(session, streams, &agreed, &outcome).await
}

/// What the command comes to; the error is that of the session.
async fn outcome<P: Platform>(
    streams: &mut Opened,
    target: ExecTarget,
    containers: &Arc<Containers<P>>,
) -> Result<Outcome, String> {
    // The request for the session has waited for the agent, if there is one.
    match containers
        .guest_agent(&target.container, Duration::ZERO)
        .await
    {
        Err(error) => Ok(Err(crate::one_line(&error))),
        Ok(Some(agent)) => {
            let Wanted { stdin, resize, .. } = target.streams;
            let terminal = resize.then_some(FIRST_SIZE);
            let id = &target.container;
            let start = containers.exec_start(id, target.command, stdin, terminal);
            match start.await {
                Ok(start) => with_streams(streams, start, &agent).await,
                Err(error) => Ok(Err(crate::one_line(&error))),
            }
        }
        Ok(None) => at_its_end(streams, target, containers).await,
    }
}

/// Runs a command by `vmlet-guest`, with the streams of the client.
async fn with_streams(
    streams: &mut Opened,
    start: Start,
    agent: &Agent,
) -> Result<Outcome, String> {
    let command = match agent.run(start).await {
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
        reason = feed => return Ok(Err(reason)),
        never = async { sizes.await; pending::<Infallible>().await } => match never {},
    }
    let end = ended.wait().await.map_err(|e| crate::one_line(&e));
    Ok(end.map(|end| end.code))
}

/// Runs a command by the QEMU guest agent, whose output comes at its end.
async fn at_its_end<P: Platform>(
    streams: &mut Opened,
    target: ExecTarget,
    containers: &Arc<Containers<P>>,
) -> Result<Outcome, String> {
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

/// Sends the client's input. Its end is not that of the session; returns the reason when there is
/// no end, since the rest will not come.
async fn feed(stdin: Option<ReadHalf>, input: Input) -> String {
    if let Some(mut stdin) = stdin {
        let mut buffer = vec![0; PIECE];
        loop {
            match stdin.read(&mut buffer).await {
                Ok(0) => break,
                // A command that has ended, or reads no more, does not keep the client from
                // sending.
                Ok(length) => drop(input.write(&buffer[..length]).await),
                Err(_) => return "the command did not read its input in time".to_owned(),
            }
        }
        input.end().await;
    }
    pending().await
}

/// Applies the sizes of the client's terminal.
pub(super) async fn sizes(resize: Option<ReadHalf>, control: Control) {
    if let Some(mut resize) = resize {
        let mut sizes = Sizes::default();
        let mut buffer = [0; 1024];
        while let Ok(length @ 1..) = resize.read(&mut buffer).await {
            match sizes.feed(&buffer[..length]) {
                Ok(Some(size)) => {
                    let rows = size.rows.into();
                    let columns = size.columns.into();
                    control.resize(Terminal { rows, columns }).await;
                }
                Ok(None) => {}
                // What follows cannot be read either: the terminal keeps its size.
                Err(_) => break,
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
