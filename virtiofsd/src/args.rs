//! What the daemon gives the program: arguments, and the standard streams.
//!
//! Invariant: standard input ends when the process is in the cgroup of its pod; standard output is
//! the socket on which the emulator connects.
//! Failure: a descriptor that is no listening socket.

use std::io::Read as _;
use std::ops::Range;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

use crate::mounts::Wanted;

/// Less root, and the number by which the kernel's calls mean "no change".
const IDS: Range<i64> = 1..u32::MAX as i64;
/// With root.
const ALL_IDS: Range<i64> = 0..u32::MAX as i64;

/// Serves directories of the node to a virtual machine by virtiofs. The daemon of Vmlet starts it.
#[derive(Debug, Parser)]
#[command(name = "vmlet-virtiofsd", version)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serves one directory to one virtual machine. Standard output is the listening socket for the
    /// emulator, and the program begins when standard input ends.
    Serve(Serve),
    /// Mounts directories and files of the node below the directory of a server that runs. Each
    /// that is mounted is a line of standard output.
    Attach(Attach),
    /// Unmounts what was attached.
    Detach(Detach),
    /// Opens a directory of the node for an emulator that serves it itself. Standard output is a
    /// socket, to which one message goes: the directory's descriptor, and why it shows owners as
    /// they are, if it does.
    Open(Open),
    /// Holds a user namespace until standard input ends.
    #[command(hide = true)]
    Ids,
}

/// Whose files the server has as its own.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct Root {
    /// User that the files of root belong to for the server; root has those of that user.
    #[arg(long, value_parser = clap::value_parser!(u32).range(IDS))]
    pub(crate) root_uid: Option<u32>,
    /// Group, as that.
    #[arg(long, value_parser = clap::value_parser!(u32).range(IDS))]
    pub(crate) root_gid: Option<u32>,
}

/// Who the server is.
#[derive(Debug, clap::Args)]
pub(crate) struct User {
    /// User ID that the server accesses files as; neither 0 nor 4294967295.
    #[arg(long, value_parser = clap::value_parser!(u32).range(IDS))]
    pub(crate) uid: u32,
    /// Group ID; neither 0 nor 4294967295.
    #[arg(long, value_parser = clap::value_parser!(u32).range(IDS))]
    pub(crate) gid: u32,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Serve {
    /// Name by which the guest mounts the directory, of at most 36 bytes.
    #[arg(long)]
    pub(crate) tag: String,
    /// The directory, an absolute path.
    #[arg(long)]
    pub(crate) directory: String,
    #[command(flatten)]
    pub(crate) user: User,
    /// Further group IDs of the server, as that.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(IDS))]
    pub(crate) groups: Vec<u32>,
    #[command(flatten)]
    pub(crate) owners: Root,
    /// User ID by which the guest knows the server's.
    #[arg(long, default_value_t = 0)]
    pub(crate) guest_uid: u32,
    /// Group ID by which the guest knows the server's.
    #[arg(long, default_value_t = 0)]
    pub(crate) guest_gid: u32,
    /// Refuse every change.
    #[arg(long)]
    pub(crate) read_only: bool,
}

/// A server that runs.
#[derive(Debug, clap::Args)]
pub(crate) struct Server {
    /// Process ID of the server, as the daemon started it.
    #[arg(long)]
    pub(crate) pid: u32,
    /// When it started, in clock ticks since the node was booted: field 22 of /proc/PID/stat.
    #[arg(long)]
    pub(crate) started: u64,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Attach {
    #[command(flatten)]
    pub(crate) server: Server,
    #[command(flatten)]
    pub(crate) owners: Root,
    /// The directory that is the root of the paths.
    #[arg(long, default_value = "/")]
    pub(crate) root: PathBuf,
    /// OPTIONS:NAME:PATH. Options are of mount(8): rw, ro or rro, and rprivate or rslave.
    #[arg(long = "mount", required = true)]
    pub(crate) mounts: Vec<Wanted>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Detach {
    #[command(flatten)]
    pub(crate) server: Server,
    /// The names.
    #[arg(required = true)]
    pub(crate) names: Vec<crate::mounts::Name>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Open {
    /// The directory that is the root of the path.
    #[arg(long, default_value = "/")]
    pub(crate) root: PathBuf,
    /// The directory, an absolute path.
    #[arg(long)]
    pub(crate) directory: PathBuf,
    /// User ID of the emulator.
    #[arg(long, value_parser = clap::value_parser!(u32).range(ALL_IDS))]
    pub(crate) uid: u32,
    /// Group ID of the emulator.
    #[arg(long, value_parser = clap::value_parser!(u32).range(ALL_IDS))]
    pub(crate) gid: u32,
    /// User ID as which the emulator accesses the directory.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(ALL_IDS))]
    pub(crate) as_uid: u32,
    /// Group ID as which the emulator accesses the directory.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(ALL_IDS))]
    pub(crate) as_gid: u32,
    /// Group IDs, one of which takes the place of that when the directory belongs to it.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(ALL_IDS))]
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
