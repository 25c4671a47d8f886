//! The errors of commands in guests.
//!
//! Invariant: each variant names what is missing in the guest, or what ended the command.
//! Failure: see the variants.

use std::time::Duration;

/// Why a command did not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No agent.
    #[error(
        "commands in a virtual machine need an agent in the guest, and none is connected: install \
         the package qemu-guest-agent or vmlet-guest in the guest and start it"
    )]
    NoAgent(#[source] libvirt::Error),
    /// The agent may not do it.
    #[error(
        "the QEMU guest agent in the virtual machine may not run commands: take guest-exec and guest-exec-status \
         off the list of blocked commands in its configuration"
    )]
    Forbidden(#[source] libvirt::Error),
    /// The agent has no shell to run commands by.
    #[error("commands in a virtual machine need /bin/sh in the guest, and it does not run")]
    NoShell(#[source] libvirt::Error),
    /// There is no such program.
    #[error("the guest has no command {0:?}")]
    NoCommand(String),
    /// It took too long.
    #[error("the command did not end within {} s and was killed", .0.as_secs())]
    Timeout(Duration),
    /// The agent did not even start it; should it do so later, the command is killed.
    #[error(
        "the guest agent in the virtual machine did not start the command within {} s",
        .0.as_secs()
    )]
    NotStarted(Duration),
    /// The agent is connected, and unresponsive; the guest may hang.
    #[error("the QEMU guest agent in the virtual machine does not answer any more")]
    Silent(#[source] libvirt::Error),
    /// The agent does not know the command any more.
    #[error("the QEMU guest agent lost the command")]
    Lost(#[source] libvirt::Error),
    /// `vmlet-guest` did not run it to its end.
    #[error(transparent)]
    Guest(#[from] crate::guest::Error),
    /// The machine ended under the command.
    #[error("the virtual machine ended while the command ran")]
    Ended,
    /// The output of all commands takes too much memory.
    #[error(
        "the output of all commands in virtual machines of this node exceeds {0} MiB: repeat the \
         command later, or have it write its output to a file in the guest"
    )]
    Budget(usize),
    /// Commands in other machines take all places of the node, or of the namespace.
    #[error(
        "too many commands of the QEMU guest agent run in the virtual machines of this namespace or \
         of this node already: repeat the command later, or install vmlet-guest in the guest"
    )]
    Crowded,
    /// Commands that do not end take all places of the machine.
    #[error(
        "too many commands run in the virtual machine already: end those in the guest that hang"
    )]
    MachineCrowded,
    /// The command ended, and the agent is too slow with what it wrote.
    #[error(
        "failed to read all output of the command from the guest within {} s: have it write its output to a file in the guest",
        .0.as_secs()
    )]
    Fetch(Duration),
    /// The client disconnected.
    #[error("the client went away and the command was killed")]
    Abandoned,
    /// libvirt did not do its part.
    #[error("reach the QEMU guest agent")]
    Hypervisor(#[source] libvirt::Error),
}
