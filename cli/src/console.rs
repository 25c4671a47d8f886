//! Copies between the user and a serial console.
//!
//! Invariant: bytes pass unchanged, but for the escape key, which ends the session.
//! Failure: [`ConsoleError`] names the side that broke; a closed console is a normal end.

mod escape;

use std::future::pending;
use std::io::{self, Read};
use std::time::Duration;

pub(crate) use escape::Escape;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

/// After the end of piped input, a console silent for so long has answered.
const SILENCE: Duration = Duration::from_secs(1);

/// A side that broke.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConsoleError {
    #[error("read from the console")]
    Read(#[source] io::Error),
    #[error("write to the console")]
    Write(#[source] io::Error),
    #[error("print what the console says")]
    Print(#[source] io::Error),
}

/// Why a session is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The user pressed the escape key.
    Escaped,
    /// The VM, or the daemon, closed the console.
    Closed,
    /// Piped input has ended and the console has fallen silent.
    InputDone,
}

/// What the user types.
#[derive(Debug)]
pub(crate) enum Input {
    /// No input, ever.
    None,
    /// Keys of a terminal; the escape key ends the session.
    Keys(mpsc::Receiver<Vec<u8>>, Escape),
    /// Bytes of a pipe or a file.
    Pipe(mpsc::Receiver<Vec<u8>>),
}

impl Input {
    /// Waits until the user leaves while there is no console. What else is typed meanwhile reaches no guest.
    pub(crate) async fn left(&mut self) {
        let Self::Keys(keys, escape) = self else {
            return pending().await;
        };
        while let Some(bytes) = keys.recv().await {
            if escape.position(&bytes).is_some() {
                return;
            }
        }
    }
}

/// Reads stdin on a thread of its own, which ends with the process.
pub(crate) fn stdin() -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel(16);
    // Not on tokio's pool: a read that never returns would hold up the end of the process.
    std::thread::spawn(move || {
        let mut stdin = io::stdin().lock();
        let mut chunk = [0; 4096];
        while let Ok(length @ 1..) = stdin.read(&mut chunk) {
            if sender.blocking_send(chunk[..length].to_vec()).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Copies both ways until the session is over.
pub(crate) async fn session(
    console: impl AsyncRead + AsyncWrite,
    input: &mut Input,
    out: &mut (impl AsyncWrite + Unpin),
) -> Result<End, ConsoleError> {
    let (mut from, mut to) = tokio::io::split(console);
    let (done, input_done) = watch::channel(false);
    let sender = async {
        match send(input, &mut to).await? {
            // The write half stays open: a serial device takes its closing for a hang-up.
            End::InputDone => {
                done.send_replace(true);
                pending().await
            }
            end => Ok(end),
        }
    };
    tokio::select! {
        end = print(&mut from, out, input_done) => end,
        end = sender => end,
    }
}

async fn print(
    from: &mut (impl AsyncRead + Unpin),
    out: &mut (impl AsyncWrite + Unpin),
    mut input_done: watch::Receiver<bool>,
) -> Result<End, ConsoleError> {
    let mut chunk = vec![0; 16 * 1024];
    loop {
        let read = tokio::select! {
            read = from.read(&mut chunk) => read,
            () = silence(&mut input_done) => return Ok(End::InputDone),
        };
        match read {
            Ok(0) => return Ok(End::Closed),
            Ok(length) => {
                out.write_all(&chunk[..length])
                    .await
                    .map_err(ConsoleError::Print)?;
                out.flush().await.map_err(ConsoleError::Print)?;
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(End::Closed),
            Err(error) => return Err(ConsoleError::Read(error)),
        }
    }
}

/// Ends some time after the input has; begins again with every output.
async fn silence(input_done: &mut watch::Receiver<bool>) {
    if input_done.wait_for(|done| *done).await.is_err() {
        pending::<()>().await;
    }
    sleep(SILENCE).await;
}

async fn send(input: &mut Input, to: &mut (impl AsyncWrite + Unpin)) -> Result<End, ConsoleError> {
    let (input, escape, at_end) = match input {
        Input::None => return pending().await,
        Input::Keys(receiver, escape) => (receiver, *escape, End::Escaped),
        Input::Pipe(receiver) => (receiver, Escape::NONE, End::InputDone),
    };
    while let Some(bytes) = input.recv().await {
        let escape = escape.position(&bytes);
        let send = &bytes[..escape.unwrap_or(bytes.len())];
        match to.write_all(send).await {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(End::Closed),
            Err(error) => return Err(ConsoleError::Write(error)),
        }
        if escape.is_some() {
            return Ok(End::Escaped);
        }
    }
    Ok(at_end)
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    fn reported(parts: &[&[u8]]) -> mpsc::Receiver<Vec<u8>> {
        let (sender, receiver) = mpsc::channel(16);
        for part in parts {
            sender.try_send(part.to_vec()).unwrap();
        }
        receiver
    }

    #[tokio::test]
    async fn the_escape_key_ends_a_terminal_session_and_is_not_sent() {
        let (ours, mut guest) = duplex(1024);
        let keys = reported(&[b"ls\r", b"ab\x1dcd"]);
        let mut keys = Input::Keys(keys, Escape::default());
        let end = session(ours, &mut keys, &mut Vec::new()).await.unwrap();
        let mut received = Vec::new();
        guest.read_to_end(&mut received).await.unwrap();
        assert_eq!(
            (end, received.as_slice()),
            (End::Escaped, b"ls\rab".as_slice())
        );
    }

    #[tokio::test(start_paused = true)]
    async fn piped_input_passes_whole_and_its_answer_is_awaited() {
        let (ours, guest) = duplex(1024);
        let (mut from, mut to) = tokio::io::split(guest);
        let guest = tokio::spawn(async move {
            let mut received = [0; 4];
            from.read_exact(&mut received).await.unwrap();
            to.write_all(b"answer").await.unwrap();
            (from, to, received)
        });
        let mut out = Vec::new();
        let mut input = Input::Pipe(reported(&[b"a\x1db\n"]));
        let end = session(ours, &mut input, &mut out).await.unwrap();
        assert_eq!(
            (end, out.as_slice()),
            (End::InputDone, b"answer".as_slice())
        );
        assert_eq!(&guest.await.unwrap().2, b"a\x1db\n");
    }

    #[tokio::test]
    async fn without_input_the_session_lasts_until_the_console_closes() {
        let (ours, mut guest) = duplex(1024);
        guest.write_all(b"bye\r\n").await.unwrap();
        drop(guest);
        let mut out = Vec::new();
        let mut none = Input::None;
        let end = session(ours, &mut none, &mut out).await.unwrap();
        assert_eq!((end, out.as_slice()), (End::Closed, b"bye\r\n".as_slice()));
    }

    #[tokio::test]
    async fn without_a_console_the_escape_key_still_leaves() {
        let mut keys = Input::Keys(reported(&[b"ls\r", b"ab\x1d"]), Escape::default());
        keys.left().await;
        let Input::Keys(mut rest, _) = keys else {
            panic!("keys");
        };
        assert_eq!(rest.recv().await, None);
    }
}
