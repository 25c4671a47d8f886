//! `vmlet-installer`: puts kubelet of a node behind `vmlet-criproxy`, and takes it back.
//!
//! Invariant: whatever it changes is in its undo journal before it is changed, so that the next call
//! finishes or undoes what a crash has left.
//! Failure: one line on standard error, and exit code 1; 2 for a wrong command line. What had been
//! changed is taken back first.

#![allow(clippy::print_stdout, reason = "a command-line tool talks on stdout")]

mod args;
mod changes;
mod commands;
mod content;
mod crash;
mod cri;
mod endpoint;
mod execute;
mod health;
mod in_root;
mod journal;
mod kubelet;
mod plan;
mod platform;
mod proxy;
mod root;
mod services;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Args, Command};

fn main() -> ExitCode {
    let ended = match Args::parse().command {
        Command::Install(install) => commands::install::run(&install),
        Command::Withdraw(withdraw) => commands::withdraw::run(&withdraw),
        Command::Status(status) => commands::status::run(&status),
        Command::InRoot { folder, command } => in_root::run(&folder, &command),
    };
    ended.unwrap_or_else(|error| {
        eprintln!("vmlet-installer: {error:#}");
        ExitCode::FAILURE
    })
}
