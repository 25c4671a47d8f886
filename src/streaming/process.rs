//! A session with a container that is a process.
//!
//! Invariant: bytes pass unchanged, each stream on its own. The session ends with its client or
//! with the process, which goes on when the client disconnects.
//! Failure: reported on the error stream, as the protocol's version defines.

use std::convert::Infallible;
use std::sync::Arc;

use guestapi::Stream;
use spdy::{ReadHalf, Session};
use streamapi::Agreed;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::streams::{self, Opened};
use super::{AttachTarget, exec};
use crate::guest::Input;
use crate::platform::Platform;
use crate::vm::Containers;
use crate::vm::process::{Attached, Piece};

/// Bytes of input that are read at once.
const INPUT: usize = 16 << 10;

/// Carries the streams of a process to their end.
pub(super) async fn run<P: Platform>(
    mut session: Session,
    agreed: Agreed,
    target: AttachTarget,
    containers: Arc<Containers<P>>,
    closing: CancellationToken,
) -> Result<(), String> {
    let mut streams = streams::of_session(&mut session, target.streams, &agreed).await?;
    let work = async {
        let Attached {
            output,
            input,
            control,
            closes_input,
        } = match containers.attach_process(&target.container).await {
            Ok(attached) => attached,
            Err(error) => return Ok(Err(crate::one_line(&error))),
        };
        let input = send_input(streams.stdin.take(), input, closes_input);
        let sizes = exec::sizes(streams.resize.take(), control);
        tokio::select! {
            ended = send_output(&mut streams, output) => Ok(ended.map(|()| 0)),
            (never, ()) = async { tokio::join!(input, sizes) } => match never {},
        }
    };
    let outcome = streams::outcome(&mut session, &closing, work).await?;
    streams::finish(session, streams, &agreed, &outcome).await
}

/// Sends what the client types.
async fn send_input(stdin: Option<ReadHalf>, process: Arc<Input>, closes: bool) -> Infallible {
    if let Some(mut stdin) = stdin {
        let mut buffer = vec![0; INPUT];
        while let Ok(length @ 1..) = stdin.read(&mut buffer).await {
            if !process.write(&buffer[..length]).await {
                break;
            }
        }
        if closes {
            process.end().await;
        }
    }
    // The end of the output ends the session.
    std::future::pending().await
}

/// Sends the output of the process until it ends.
async fn send_output(
    streams: &mut Opened,
    mut process: broadcast::Receiver<Piece>,
) -> Result<(), String> {
    loop {
        match process.recv().await {
            Ok((stream, bytes)) => {
                let client = match stream {
                    Stream::Stderr => streams.stderr.as_mut(),
                    _ => streams.stdout.as_mut(),
                };
                if let Some(client) = client {
                    let written = client.write_all(&bytes).await;
                    written.map_err(|e| crate::one_line(&e))?;
                }
            }
            Err(broadcast::error::RecvError::Closed) => return Ok(()),
            Err(broadcast::error::RecvError::Lagged(_)) => {
                return Err("this client reads too slowly: attach again".to_owned());
            }
        }
    }
}
