//! `setup`: installs the distribution packages that are missing, and states which, and how much
//! disk space the tests need.
//!
//! Invariant: with nothing missing it changes nothing and asks nothing but dpkg.
//! Failure: apt-get's messages stay on the terminal; the error names what is still missing.

use std::process::ExitCode;

use anyhow::Result;

use crate::{packages, suite};

/// Installs missing distribution packages.
#[derive(Debug, clap::Args)]
pub(crate) struct Setup {
    /// Only list missing packages; exit code 1 if there are any.
    #[arg(long)]
    no_install: bool,
}

impl Setup {
    /// Runs the command.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        if let Some(statement) = suite::space_statement() {
            println!("setup: {statement}");
        }
        ensure(self.no_install)
    }
}

/// The part that `demo` and `test` share: code 1 means that packages are missing and may not be
/// installed.
pub(crate) fn ensure(no_install: bool) -> Result<ExitCode> {
    let (virtualisation, others) = packages::missing()?;
    if others.is_empty() && packages::available(virtualisation.clone())?.is_empty() {
        println!("setup: all packages are installed");
        return Ok(ExitCode::SUCCESS);
    }
    if !no_install {
        packages::update()?;
    }
    let virtualisation = packages::available(virtualisation)?;
    let others = packages::available(others)?;
    let names = [virtualisation.clone(), others.clone()].concat();
    println!("setup: missing packages: {}", names.join(" "));
    if no_install {
        println!(
            "setup: install them with: apt-get install {}",
            names.join(" ")
        );
        return Ok(ExitCode::FAILURE);
    }
    packages::install(&virtualisation, packages::backports()?.as_deref())?;
    packages::install(&others, None)?;
    println!("setup: installed {} packages", names.len());
    Ok(ExitCode::SUCCESS)
}
