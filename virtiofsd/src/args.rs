//! What the daemon gives the program: arguments, and the standard streams.
//!
//! Invariant: standard input ends when the process is in the cgroup of its pod; standard output is
//! the socket on which the emulator connects.
//! Failure: a descriptor that is no listening socket.

use std::io::Read as _;
use std::ops::Range;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixListener;

use anyhow::{Context, Result};
use clap::Parser;

/// Less root, and the number by which the kernel's calls mean "no change".
const IDS: Range<i64> = 1..u32::MAX as i64;

/// Serves a directory to one virtual machine by virtiofs. The daemon of Vmlet starts it: standard
/// output is the listening socket for the emulator, and the program begins when standard input
/// ends.
#[derive(Debug, Parser)]
#[command(name = "vmlet-virtiofsd", version)]
pub(crate) struct Args {
    /// Name by which the guest mounts the directory, of at most 36 bytes.
    #[arg(long)]
    pub(crate) tag: String,
    /// The directory, an absolute path.
    #[arg(long)]
    pub(crate) directory: String,
    /// User ID that the program accesses the directory as; neither 0 nor 4294967295.
    #[arg(long, value_parser = clap::value_parser!(u32).range(IDS))]
    pub(crate) uid: u32,
    /// Group ID; neither 0 nor 4294967295.
    #[arg(long, value_parser = clap::value_parser!(u32).range(IDS))]
    pub(crate) gid: u32,
    /// Further group IDs, as that.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(IDS))]
    pub(crate) groups: Vec<u32>,
    /// Refuse every change.
    #[arg(long)]
    pub(crate) read_only: bool,
}

/// The socket for the emulator.
pub(crate) fn listener() -> Result<UnixListener> {
    let socket = std::io::stdout().as_fd().try_clone_to_owned();
    let listener = UnixListener::from(socket.context("take the socket")?);
    let address = listener.local_addr();
    address.context("standard output is not a listening socket: the daemon starts this program")?;
    Ok(listener)
}

/// Waits for the end of standard input.
pub(crate) fn wait_for_start() -> Result<()> {
    let mut nothing = Vec::new();
    let end = std::io::stdin().take(1).read_to_end(&mut nothing);
    end.context("wait for the daemon").map(drop)
}
