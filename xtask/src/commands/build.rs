//! How the programs of Vmlet are built before a verb uses them.
//!
//! Invariant: one call of cargo builds all of them; a release has no crash points. What a verb packs for nodes is
//! built apart from other release builds, which share their files with benchmarks.
//! Failure: cargo prints why.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::node_image::Profile;
use crate::static_program::StaticProgram;
use crate::{reproducible, run, workspace};

/// Our own programs, but for those that are always built apart.
const PACKAGES: &[&str] = &[
    "vmlet",
    "tapmanager",
    "vmwrapper",
    "vmlet-virtiofsd",
    "vmletctl",
    "criproxy",
    "vmlet-controller",
    "vmlet-agent",
];

/// The features of our programs that add crash points.
const CRASH_POINTS: &[&str] = &[
    "vmlet/fault-injection",
    "tapmanager/fault-injection",
    "vmlet-agent/fault-injection",
];

/// The features of our programs in all builds.
pub(crate) const EVERYWHERE: &[&str] = &["vmlet/otel"];

/// The packages of all programs that a release has.
pub(crate) fn released() -> Vec<&'static str> {
    let apart = ["vmlet-installer", "vmlet-guest"];
    PACKAGES.iter().copied().chain(apart).collect()
}

/// How the programs of Vmlet are built.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct Build {
    /// Build release versions, which have no crash points.
    #[arg(long)]
    pub(super) release: bool,
    /// Use the programs and the guest image without building them.
    #[arg(long)]
    pub(crate) no_build: bool,
}

impl Build {
    /// Development builds, made when something changed.
    pub(crate) const DEVELOPMENT: Self = Self {
        release: false,
        no_build: false,
    };

    /// Release builds, made when something changed.
    pub(crate) const RELEASE: Self = Self {
        release: true,
        no_build: false,
    };

    /// Builds our programs with the given options; returns the folder that holds them.
    pub(crate) fn programs(self) -> Result<PathBuf> {
        if !self.no_build {
            run::check(&mut self.cargo())?;
        }
        Ok(self.folder())
    }

    fn cargo(self) -> Command {
        let mut cargo = workspace::cargo();
        cargo.args(["build", "--quiet"]).args(self.selection());
        cargo.args(self.release.then_some("--release"));
        cargo
    }

    fn folder(self) -> PathBuf {
        workspace::target().join(if self.release { "release" } else { "debug" })
    }

    /// What to build. One call of cargo, so that all programs share what they are made of.
    fn selection(self) -> Vec<&'static str> {
        let mut selection: Vec<_> = PACKAGES.iter().flat_map(|name| ["-p", name]).collect();
        let crash_points: &[&str] = if self.release { &[] } else { CRASH_POINTS };
        let features = EVERYWHERE.iter().chain(crash_points);
        selection.extend(features.flat_map(|name| ["--features", name]));
        selection
    }
}

/// How the programs are built that a verb packs for nodes.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct Packed {
    /// Use debug builds: faster to build, and with crash points. Not for nodes.
    #[arg(long)]
    pub(super) debug: bool,
    /// Use the programs without building them.
    #[arg(long)]
    no_build: bool,
}

impl Packed {
    /// Builds the programs, those for nodes without a path of this machine in them; returns the folder that holds
    /// them.
    pub(super) fn programs(self) -> Result<PathBuf> {
        let build = Build {
            release: !self.debug,
            no_build: self.no_build,
        };
        if self.debug || self.no_build {
            return build.programs();
        }
        let mut cargo = build.cargo();
        reproducible::apply(&mut cargo, &[])?;
        run::check(&mut cargo)?;
        Ok(build.folder())
    }

    /// Builds a static program, in the way of the others; returns its file.
    pub(super) fn static_program(self, program: StaticProgram) -> Result<PathBuf> {
        let profile = if self.debug { "dev" } else { program.profile };
        let program = StaticProgram { profile, ..program };
        if self.no_build {
            return Ok(program.path());
        }
        program.build()
    }

    /// The programs for the image.
    pub(super) fn profile(self) -> Profile {
        if self.debug {
            Profile::Debug
        } else {
            Profile::Release
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The crate of crash points in a build, with its features, as cargo resolves them.
    fn crash_points(build: Build) -> String {
        let mut cargo = workspace::cargo();
        cargo.args(["tree", "--offline", "--edges", "normal,build"]);
        cargo.args(["--prefix", "none", "--format", "{p} features: {f}"]);
        let tree = run::output(cargo.args(build.selection())).unwrap();
        let line = tree.lines().find(|line| line.starts_with("faultpoint v"));
        line.unwrap().to_owned()
    }

    #[test]
    fn only_builds_for_development_have_crash_points() {
        let line = crash_points(Build::DEVELOPMENT);
        assert!(line.ends_with("features: enabled"), "{line}");
        let line = crash_points(Build::RELEASE);
        assert!(line.trim_end().ends_with("features:"), "{line}");
    }
}
