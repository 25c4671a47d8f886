//! `deb`: builds Debian packages in target/packages.
//!
//! Invariant: packages of one run have one version; a package is built from a release unless the
//! caller says otherwise.
//! Failure: names the package and the step.

use std::process::ExitCode;

use anyhow::{Context, Result};

use super::build::Packed;
use crate::{deb, image};

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
        let built = names.iter().any(|name| *name != Name::VmletGuest);
        let built = built.then(|| self.build.programs()).transpose()?;
        for name in names {
            let package = match name {
                Name::Vmlet => &deb::VMLET,
                Name::VmletCriproxy => &deb::CRIPROXY,
                Name::Vmletctl => &deb::VMLETCTL,
                Name::VmletGuest => &deb::GUEST,
            };
            let guest = match name {
                Name::VmletGuest => Some(image::agent::build().context("build vmlet-guest")?),
                _ => None,
            };
            let programs = guest.as_deref().and_then(|program| program.parent());
            let programs = programs.or(built.as_deref()).context("no programs")?;
            let file = deb::build(package, VERSION, programs, &deb::folder())?;
            println!("deb: {}", file.display());
        }
        Ok(ExitCode::SUCCESS)
    }
}
