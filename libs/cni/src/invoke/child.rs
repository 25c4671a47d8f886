//! One child process: standard input written, both outputs read, the end awaited, all at the same
//! time.
//!
//! Invariant: when the future is dropped, or the deadline passes, no process of the group is left.
//! Failure: output beyond the limit is an error on standard output and dropped on standard error.

use std::io::ErrorKind;
use std::path::Path;
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::{sleep, timeout};

use super::Failure;

/// Largest result.
const MAX_STDOUT: usize = 1024 * 1024;

/// How much of standard error is kept.
const MAX_STDERR: usize = 64 * 1024;

/// How long outputs may stay open after the plugin has ended, held by a process it left behind.
const GRACE: Duration = Duration::from_secs(1);

/// How a child ended, and what it said.
pub(super) struct Ended {
    pub(super) status: ExitStatus,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
}

/// Kills the whole group unless the child has ended by itself.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(leader) = self.0 {
            // The leader is not reaped yet, so the number is still ours; ESRCH is as good as done.
            let _ = killpg(leader, Signal::SIGKILL);
        }
    }
}

/// Runs `command` to its end with `input`, or kills it.
pub(super) async fn run(
    mut command: Command,
    path: &Path,
    input: &[u8],
    deadline: Duration,
) -> Result<Ended, Failure> {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    let outcome = timeout(deadline, async {
        let child = start(&mut command).await;
        let child = child.map_err(|source| Failure::Start {
            path: path.into(),
            source,
        })?;
        converse(child, input).await
    });
    outcome.await.unwrap_or(Err(Failure::TimedOut { deadline }))
}

/// Starts the program. One that is being written to at this moment (an upgrade, or a child of
/// another thread that has inherited the descriptor) is tried again for as long as the deadline
/// allows.
async fn start(command: &mut Command) -> std::io::Result<Child> {
    loop {
        match command.spawn() {
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => {
                sleep(Duration::from_millis(50)).await;
            }
            other => return other,
        }
    }
}

async fn converse(mut child: Child, input: &[u8]) -> Result<Ended, Failure> {
    let mut group = Group(
        child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .map(Pid::from_raw),
    );
    let stdin = child.stdin.take();
    let stdout = child.stdout.take();
    let stderr = child.stderr.take();
    let mut out = Vec::new();
    let mut err = Vec::new();
    let status = {
        let mut talk = pin!(async {
            tokio::try_join!(
                feed(stdin, input),
                collect(stdout, &mut out, MAX_STDOUT, Excess::Fails),
                collect(stderr, &mut err, MAX_STDERR, Excess::IsDropped),
            )
        });
        let waited = tokio::select! {
            talked = &mut talk => {
                talked?;
                child.wait().await
            }
            status = child.wait() => {
                group.0 = None;
                // What was written before the end is read; a process that holds the pipes is not
                // waited for longer than this.
                if let Ok(talked) = timeout(GRACE, talk).await {
                    talked?;
                }
                status
            }
        };
        waited.map_err(Failure::Talk)?
    };
    group.0 = None;
    Ok(Ended {
        status,
        stdout: out,
        stderr: err,
    })
}

async fn feed(stdin: Option<ChildStdin>, input: &[u8]) -> Result<(), Failure> {
    let Some(mut stdin) = stdin else {
        return Ok(());
    };
    match stdin.write_all(input).await {
        // A plugin may leave its configuration unread; its status decides.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Failure::Talk(error)),
        _ => Ok(()),
    }
}

/// What happens to output beyond a limit.
#[derive(Clone, Copy, PartialEq)]
enum Excess {
    Fails,
    IsDropped,
}

async fn collect(
    source: Option<impl AsyncRead + Unpin>,
    into: &mut Vec<u8>,
    limit: usize,
    excess: Excess,
) -> Result<(), Failure> {
    let Some(mut source) = source else {
        return Ok(());
    };
    let mut chunk = vec![0; 8 * 1024];
    loop {
        let count = source.read(&mut chunk).await.map_err(Failure::Talk)?;
        if count == 0 {
            return Ok(());
        }
        let room = limit - into.len();
        if count > room && excess == Excess::Fails {
            return Err(Failure::TooMuchOutput { limit });
        }
        into.extend_from_slice(chunk.get(..count.min(room)).unwrap_or_default());
    }
}
