//! A node stack: libvirtd, vmlet-tapmanager, vmlet and an image server in a directory and a network
//! namespace of their own, as many side by side as one likes; or whole clusters of them.
//!
//! Invariant: everything a stack owns is below its directory, in its namespaces, or a child of its
//! supervisor, so that `down` can find all of it.
//! Failure: a stack that does not come up is taken down again; the error carries the log that
//! explains it.

mod bring_up;
mod cluster;
mod config;
mod control;
mod http;
mod kvm;
mod layout;
mod leaks;
mod libvirtd;
mod list;
mod mounts;
mod netns;
mod program;
mod reboot;
mod record;
mod registry;
mod session;
mod supervisor;
mod take_down;

pub(crate) use bring_up::{Options, bring_up, restart};
pub(crate) use cluster::{CGROUP_DRIVER, Guests, MAX_NODES, Plan};
pub(crate) use kvm::known as known_kvm;
pub(crate) use layout::Layout;
pub(crate) use list::{VARIABLE as LIST_VARIABLE, existing as existing_of_list, take_down_list};
pub(crate) use program::{COLLECTOR, Program};
pub(crate) use reboot::reboot;
pub(crate) use record::Record;
pub(crate) use session::Session;
pub(crate) use take_down::{Logs, take_down};

use anyhow::Result;

/// The hidden half of the program: what runs below `up`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Inner {
    #[command(hide = true)]
    /// Runs the programs of one stack until it receives a stop signal.
    Supervise {
        /// Directory of the stack.
        #[arg(long)]
        dir: std::path::PathBuf,
    },
    #[command(hide = true)]
    /// Takes a stack down when standard input ends.
    Guard {
        /// Directory of the stack.
        #[arg(long)]
        dir: std::path::PathBuf,
    },
    #[command(hide = true)]
    /// Enters the namespaces of one program and executes it.
    Exec {
        /// Directory of the stack.
        #[arg(long)]
        dir: std::path::PathBuf,
        /// Program to execute.
        program: Program,
    },
}

impl Inner {
    /// Runs the hidden command.
    pub(crate) fn run(&self) -> Result<()> {
        match self {
            Self::Supervise { dir } => supervisor::run(Layout::existing(dir)?),
            Self::Guard { dir } => session::guard(dir),
            Self::Exec { dir, program } => program.become_it(&Layout::existing(dir)?),
        }
    }
}
