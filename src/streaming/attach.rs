//! A session with the serial console of a machine.
//!
//! Invariant: bytes pass unchanged. The session ends with its client or with the machine, and the
//! machine runs on when the client disconnects.
//! Failure: reported on the error stream, as the protocol's version defines.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use podspec::ContainerId;
use spdy::{ReadHalf, Session, WriteHalf};
use streamapi::Agreed;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::AttachTarget;
use super::console::{Attached, Input, Shared};
use super::streams;
use crate::machine_socket::MachineSocket;
use crate::platform::Platform;
use crate::vm::Containers;

/// Bytes of input that are read at once.
const INPUT: usize = 1024;

/// Where the console of a machine is.
#[derive(Debug)]
pub(super) struct Console<P: Platform> {
    pub(super) container: ContainerId,
    /// libvirt's socket for it, where an emulator reads no FIFO.
    pub(super) socket: MachineSocket,
    /// The clients at such sockets.
    pub(super) consoles: Shared,
    pub(super) containers: Arc<Containers<P>>,
}

impl<P: Platform> Console<P> {
    async fn attach(&self) -> Result<Attached, String> {
        let attached = self.containers.attach_console(&self.container).await;
        match attached.map_err(|error| crate::one_line(&error))? {
            Some(client) => Ok(client.into()),
            None => {
                let attached = self.consoles.attach(&self.container, &self.socket).await;
                attached.map_err(|error| error.to_string())
            }
        }
    }
}

/// Carries a console to its end.
pub(super) async fn run<P: Platform>(
    mut session: Session,
    agreed: Agreed,
    target: AttachTarget,
    console: Console<P>,
    closing: CancellationToken,
) -> Result<(), String> {
    let mut streams = streams::of_session(&mut session, target.streams, &agreed).await?;
    // A serial line has no window size: what the client reports has no effect.
    drop(streams.resize.take());
    let work = async {
        let attached = match console.attach().await {
            Ok(attached) => attached,
            Err(error) => {
                let reason =
                    format!("connect to the console: {error}: does the machine still run?");
                return Ok(Err(reason));
            }
        };
        let input = send_input(streams.stdin.take(), attached.input);
        tokio::select! {
            ended = send_output(streams.stdout.as_mut(), attached.output) => Ok(ended.map(|()| 0)),
            never = input => match never {},
        }
    };
    let outcome = streams::outcome(&mut session, &closing, work).await?;
    streams::finish(session, streams, &agreed, &outcome).await
}

/// Sends what the client types. The end of its input is not the end of the session.
async fn send_input(stdin: Option<ReadHalf>, mut guest: Input) -> Infallible {
    let mut buffer = [0; INPUT];
    if let Some(mut stdin) = stdin {
        while let Ok(length @ 1..) = stdin.read(&mut buffer).await {
            if guest.send(&buffer[..length]).await.is_err() {
                break;
            }
        }
    }
    // The end of the output ends the session. The sender keeps the console open until then.
    std::future::pending().await
}

/// Sends the console's output until the console closes.
async fn send_output(
    mut stdout: Option<&mut WriteHalf>,
    mut guest: broadcast::Receiver<Bytes>,
) -> Result<(), String> {
    loop {
        match guest.recv().await {
            Ok(bytes) => {
                if let Some(stdout) = &mut stdout {
                    let written = stdout.write_all(&bytes).await;
                    written.map_err(|e| crate::one_line(&e))?;
                }
            }
            Err(broadcast::error::RecvError::Closed) => return Ok(()),
            Err(broadcast::error::RecvError::Lagged(_)) => {
                return Err("this client reads the console too slowly: attach again".to_owned());
            }
        }
    }
}
