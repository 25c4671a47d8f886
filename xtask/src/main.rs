//! `cargo xtask`: the commands for developers.
//!
//! Invariant: it builds on a bare machine with Rust and a C compiler; it links neither libvirt nor
//! anything else that `setup` has yet to install.
//! Failure: exit code 1 and one line on stderr that names the step and its cause.

#![allow(clippy::print_stdout, reason = "a command-line tool talks on stdout")]

mod chart;
mod commands;
mod deb;
mod image;
mod machine;
mod node_image;
mod oci;
mod packages;
mod pod_images;
mod release;
mod report;
mod reproducible;
mod run;
mod stack;
mod stamp;
mod static_program;
mod suite;
mod text_files;
mod workspace;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match commands::Xtask::parse().run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
