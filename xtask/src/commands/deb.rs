//! `deb`: builds Debian packages in target/packages.
//!
//! Invariant: packages of one run have one version; a package is built from a release unless the
//! caller says otherwise.
//! Failure: names the package and the step.

use std::process::ExitCode;

use anyhow::{Context, Result};

use super::build::Packed;
use crate::deb::{self, Built, Package};
use crate::image;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Builds Debian packages of the programs.
#[derive(Debug, clap::Args)]
pub(crate) struct Deb {
    /// Packages to build [default: all].
    names: Vec<Name>,
    #[command(flatten)]
    build: Packed,
}

/// A package.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Name {
    /// The node half, as units of systemd.
    Vmlet,
    /// The CRI proxy, as a unit of systemd.
    VmletCriproxy,
    /// The command for users.
    Vmletctl,
    /// The agent for guests.
    VmletGuest,
}

impl Deb {
    /// Runs the command.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let all = <Name as clap::ValueEnum>::value_variants();
        let names = match self.names.as_slice() {
            [] => all,
            names => names,
        };
        let packages: Vec<_> = names.iter().map(|name| name.package()).collect();
        let has_programs = packages.iter().any(|package| package.has_programs());
        let programs = has_programs.then(|| self.build.programs()).transpose()?;
        let has_agent = packages.iter().any(|package| package.has_agent());
        let agent = has_agent.then(image::agent::build).transpose();
        let agent = agent.context("failed to build vmlet-guest")?;
        let built = Built {
            programs: programs.as_deref(),
            agent: agent.as_deref(),
        };
        for package in packages {
            let file = deb::build(package, VERSION, built, &deb::folder())?;
            println!("deb: {}", file.display());
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Name {
    const fn package(self) -> &'static Package {
        match self {
            Self::Vmlet => &deb::VMLET,
            Self::VmletCriproxy => &deb::CRIPROXY,
            Self::Vmletctl => &deb::VMLETCTL,
            Self::VmletGuest => &deb::GUEST,
        }
    }
}
