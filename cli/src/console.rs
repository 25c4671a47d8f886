//! Copies between the user and a serial console.
//!
//! Invariant: bytes pass unchanged, but for the escape key, which ends the session.
//! Failure: [`ConsoleError`] names the side that broke; a closed console is a normal end.

use std::io::{self, Read};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

/// Ctrl-], as in telnet and virsh.
pub(crate) const ESCAPE: u8 = 0x1d;
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
    Keys(mpsc::Receiver<Vec<u8>>),
    /// Bytes of a pipe or a file.
    Pipe(mpsc::Receiver<Vec<u8>>),
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
    input: Input,
    out: &mut (impl AsyncWrite + Unpin),
) -> Result<End, ConsoleError> {
    let (mut from, mut to) = tokio::io::split(console);
    let (done, input_done) = watch::channel(false);
    let sender = async {
        match send(input, &mut to).await? {
            // The write half stays open: a serial device takes its closing for a hang-up.
            End::InputDone => {
                done.send_replace(true);
                std::future::pending().await
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
        std::future::pending::<()>().await;
    }
    sleep(SILENCE).await;
}

async fn send(input: Input, to: &mut (impl AsyncWrite + Unpin)) -> Result<End, ConsoleError> {
    let (mut input, is_terminal) = match input {
        Input::None => return std::future::pending().await,
        Input::Keys(receiver) => (receiver, true),
        Input::Pipe(receiver) => (receiver, false),
    };
    while let Some(bytes) = input.recv().await {
        let escape = bytes.iter().position(|&b| is_terminal && b == ESCAPE);
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
    Ok(if is_terminal {
        End::Escaped
    } else {
        End::InputDone
    })
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
        let keys = Input::Keys(reported(&[b"ls\r", b"ab\x1dcd"]));
        let end = session(ours, keys, &mut Vec::new()).await.unwrap();
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
        let end = session(ours, Input::Pipe(reported(&[b"a\x1db\n"])), &mut out)
            .await
            .unwrap();
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
        let end = session(ours, Input::None, &mut out).await.unwrap();
        assert_eq!((end, out.as_slice()), (End::Closed, b"bye\r\n".as_slice()));
    }
}
