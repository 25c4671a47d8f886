//! Serves a directory of the node to one machine: the device side of virtiofs, of the library
//! `virtiofsd`. Mounts volumes below the directory of a server that runs. Opens directories for
//! emulators that serve them by 9p.
//!
//! Invariant: before the first byte of the guest is read, the directory is the root of the server's
//! file system, the server has no network, no view of other processes, no capability, the user and
//! groups that it was started for, and a filter of system calls. It serves one connection, and ends with it.
//! Failure: one line on standard error, and exit code 1; a machine that does not connect within
//! [`CONNECTS_WITHIN`] counts as one.

mod args;
mod attach;
mod confine;
mod ids;
mod mounts;
mod open;
mod owners;
mod running;
mod serve;
mod tree;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use args::{Args, Command, Serve};

/// Longer than a start waits for those that libvirt has begun before it. A daemon that gives a start
/// up ends its servers.
const CONNECTS_WITHIN: Duration = Duration::from_secs(24 * 60 * 60);

fn main() -> ExitCode {
    let args = Args::parse();
    env_logger::Builder::new()
        .filter_level(log::LevelFilter::Warn)
        .init();
    let done = match &args.command {
        Command::Serve(args) => serve(args),
        Command::Attach(args) => attach::attach(args),
        Command::Detach(args) => attach::detach(args),
        Command::Open(args) => open::open(args),
        Command::Ids => ids::hold(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vmlet-virtiofsd: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn serve(args: &Serve) -> anyhow::Result<()> {
    let listener = args::listener()?;
    args::wait_for_start()?;
    owners::show(args)?;
    let (listener, share) = confine::enter(args, listener)?;
    serve::serve(args, share, listener, CONNECTS_WITHIN)
}
