//! Serves the share on one connection.
//!
//! Invariant: the process ends when the emulator disconnects, and when none connects in time.
//! Failure: an emulator that breaks the protocol ends the process.

use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::dup2_stdout;
use vhost::vhost_user::{Error as VhostError, Listener};
use vhost_user_backend::{Error as BackendError, VhostUserDaemon};
use virtiofsd::filesystem::{FileSystem, SerializableFileSystem};
use virtiofsd::passthrough::read_only::PassthroughFsRo;
use virtiofsd::passthrough::{Config, PassthroughFs};
use virtiofsd::vhost_user::VhostUserFsBackendBuilder;
use vm_memory::{GuestMemoryAtomic, GuestMemoryMmap};

use crate::args::Serve;
use crate::confine;

/// Serves until the emulator disconnects.
pub(crate) fn serve(
    args: &Serve,
    share: Config,
    listener: Listener,
    within: Duration,
) -> Result<()> {
    let open = "open the directory";
    if args.read_only {
        run(
            args,
            PassthroughFsRo::new(share).context(open)?,
            listener,
            within,
        )
    } else {
        run(
            args,
            PassthroughFs::new(share).context(open)?,
            listener,
            within,
        )
    }
}

fn run<F>(args: &Serve, share: F, mut listener: Listener, within: Duration) -> Result<()>
where
    F: FileSystem + SerializableFileSystem + Send + Sync + 'static,
{
    let backend = VhostUserFsBackendBuilder::default()
        .set_tag(Some(args.tag.clone()))
        .build(share)
        .map_err(|error| anyhow!("describe the device: {error}"))?;
    await_connection(within)?;
    close_socket()?;
    confine::filter_calls()?;
    // Threads inherit the filter.
    let memory = GuestMemoryAtomic::new(GuestMemoryMmap::new());
    let daemon = VhostUserDaemon::new("virtiofs".to_owned(), Arc::new(backend), memory);
    let mut daemon = daemon.map_err(|error| anyhow!("set the device up: {error}"))?;

    let started = daemon.start(&mut listener);
    started.map_err(|error| anyhow!("accept the emulator: {error}"))?;
    drop(listener);
    match daemon.wait() {
        Ok(()) | Err(BackendError::HandleRequest(VhostError::Disconnected)) => Ok(()),
        Err(error) => Err(anyhow!("serve the emulator: {error}")),
    }
}

/// Waits until the emulator connects to the socket, which standard output is.
fn await_connection(within: Duration) -> Result<()> {
    let socket = io::stdout();
    let mut waiting = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
    let timeout = PollTimeout::try_from(within).unwrap_or(PollTimeout::MAX);
    match poll(&mut waiting, timeout).context("wait for the emulator")? {
        0 => bail!("no emulator connected within {} s", within.as_secs()),
        _ => Ok(()),
    }
}

/// The listener is the last descriptor of the socket, so that nothing listens after the one connection.
fn close_socket() -> Result<()> {
    dup2_stdout(io::stderr()).context("close the socket")
}
