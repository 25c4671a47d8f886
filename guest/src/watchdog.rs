//! A process that thaws file systems when the agent cannot: it was killed, or its time is over.
//!
//! ```text
//! agent                        watchdog
//! starts it        ─────────►  opens the files of the agent
//!                  ◄─ a line ─  is ready
//! freezes, thaws               waits
//! thawed           ─ a byte ─►  ends
//! killed           ─  end   ─►  thaws, and ends
//! ```
//!
//! It is the program of the agent, with the files open and itself in memory before anything is frozen.
//!
//! Invariant: it ends only when the agent has thawed, or when it has thawed after the end of the agent. After the
//! time of the freeze it thaws, too, and goes on to wait: a call of an agent that is being killed may still freeze.
//! Failure: the agent freezes nothing without a watchdog that is ready.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::mounts::Point;
use crate::sys;

/// What makes the program of the agent a watchdog.
pub(crate) const OPTION: &str = "--watchdog";

/// The watchdog of a freeze. Dropped, it thaws.
#[derive(Debug)]
pub(crate) struct Watchdog(Child);

impl Watchdog {
    /// Starts one for a freeze of these file systems; returns when it is ready.
    pub(crate) fn start(program: &Path, points: &[Point], time: Duration) -> io::Result<Self> {
        let mut command = Command::new(program);
        command.arg(OPTION).arg(std::process::id().to_string());
        command.arg(time.as_secs().to_string());
        let files = points.iter().map(|point| point.file.as_raw_fd());
        command.args(files.map(|file| file.to_string()));
        // It holds no directory, and what ends the group of the agent does not end it.
        command.env_clear().current_dir("/").process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::null()).spawn()?;
        let ready = await_ready(&mut child, time);
        if ready.is_err() {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
        ready.map(|()| Self(child))
    }

    /// Everything is thawed.
    pub(crate) fn dismiss(mut self) {
        if let Some(mut input) = self.0.stdin.take() {
            // One that was killed is not there to be dismissed.
            let _ = input.write_all(b"\n");
        }
        let _ = self.0.wait();
    }
}

fn await_ready(child: &mut Child, time: Duration) -> io::Result<()> {
    let mut output = child.stdout.take().ok_or(ErrorKind::BrokenPipe)?;
    if !await_input(&output, Some(Instant::now() + time))? {
        return Err(ErrorKind::TimedOut.into());
    }
    output.read_exact(&mut [0])
}

/// Whether there is input, or its end, before `until`.
fn await_input(input: &impl AsFd, until: Option<Instant>) -> io::Result<bool> {
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let timeout = match left {
            Some(left) => PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX),
            None => PollTimeout::NONE,
        };
        let mut files = [PollFd::new(input.as_fd(), PollFlags::POLLIN)];
        match poll(&mut files, timeout) {
            Ok(count) => return Ok(count > 0),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Thaws the file systems of these open files of an agent when it ends, unless it reports before that they are
/// thawed, and after `time`.
///
/// # Errors
///
/// When a file cannot be opened: then the agent freezes nothing.
pub fn watch(agent: u32, time: Duration, files: &[u32]) -> io::Result<()> {
    sys::ignore_ends()?;
    let open = |file: &u32| File::open(format!("/proc/{agent}/fd/{file}"));
    let files = files.iter().map(open).collect::<io::Result<Vec<_>>>()?;
    let mut output = io::stdout();
    output.write_all(b"\n")?;
    output.flush()?;
    let mut input = io::stdin();
    let mut until = Some(Instant::now() + time);
    while !await_input(&input, until)? {
        thaw(&files);
        until = None;
    }
    let mut byte = [0];
    if input.read_exact(&mut byte).is_err() {
        thaw(&files);
    }
    Ok(())
}

/// Thaws in the opposite order of the freeze.
fn thaw(files: &[File]) {
    for file in files.iter().rev() {
        // One that is not frozen stays as it is.
        let _ = sys::thaw(file);
    }
}
