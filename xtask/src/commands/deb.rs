//! `deb`: builds Debian packages in target/packages.
//!
//! Invariant: packages of one run have one version; a package is built from a release unless the
//! caller says otherwise.
//! Failure: names the package and the step.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};

use super::build::Packed;
use crate::deb::{self, Built};
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
        let for_nodes = names.iter().any(|name| *name != Name::VmletGuest);
        // vmlet-guest alone needs none of the others.
        let programs = for_nodes.then(|| self.build.programs()).transpose()?;
        let agent = image::agent::build().context("failed to build vmlet-guest")?;
        let built = Built {
            programs: programs.as_deref().unwrap_or(Path::new("")),
            agent: &agent,
        };
        for name in names {
            let package = match name {
                Name::Vmlet => &deb::VMLET,
                Name::VmletCriproxy => &deb::CRIPROXY,
                Name::Vmletctl => &deb::VMLETCTL,
                Name::VmletGuest => &deb::GUEST,
            };
            let file = deb::build(package, VERSION, built, &deb::folder())?;
            println!("deb: {}", file.display());
        }
        Ok(ExitCode::SUCCESS)
    }
}
