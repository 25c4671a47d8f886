//! `release`: everything that an installation needs, under one version in one folder.
//!
//! Invariant: a release is made of a commit, of a version that the changelog announces, and of the pinned Debian
//! packages; what is made otherwise is a snapshot, and its version says so. Parts are kept for the next run.
//! Failure: names the step; an earlier release stays in place.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};

use super::build::Packed;
use crate::node_image::{self, AGENT, CONTROLLER, FOR_THE_NODE, Lock};
use crate::release::{Commit, Parts, Version, changelog, compare, is_release};
use crate::static_program::StaticProgram;
use crate::{deb, image, workspace};

const NUMBER: &str = env!("CARGO_PKG_VERSION");

/// The command for users, for machines of any distribution.
const VMLETCTL: StaticProgram = StaticProgram {
    package: "vmletctl",
    name: "vmletctl",
    profile: "release",
};

/// Makes a release: image, chart, manifests, packages, programs, and the lists that belong to them.
#[derive(Debug, clap::Args)]
pub(crate) struct Release {
    /// The folder [default: target/release-VERSION].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Make a build that is no release: its version has the commit in it, its notes are those of `Unreleased`, and
    /// other Debian packages than the pinned ones are reported only.
    #[arg(long)]
    snapshot: bool,
    /// Sign the digests with this private key of OpenSSH, or with the key of an agent whose public key this is.
    #[arg(long, value_name = "FILE")]
    sign_key: Option<PathBuf>,
    /// Compare the result with that of another build: every difference is listed, and is an error.
    #[arg(long, value_name = "DIR")]
    check: Option<PathBuf>,
    /// Only write the list of Debian packages that the package sources of this machine serve now.
    #[arg(long, exclusive = true)]
    pin_packages: bool,
    #[command(flatten)]
    build: Packed,
}

impl Release {
    /// Runs the command.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        if self.pin_packages {
            println!(
                "release: {} is written",
                node_image::served()?.pin()?.display()
            );
            return Ok(ExitCode::SUCCESS);
        }
        ensure!(
            self.snapshot || !self.build.debug,
            "programs of debug builds have crash points: --debug goes with --snapshot only"
        );
        if let Some(other) = &self.check {
            ensure!(is_release(other), "{} is no release", other.display());
        }
        let commit = Commit::read()?;
        let version = self.version(&commit)?;
        let notes = self.notes()?;
        let packages = self.packages()?;
        let parts = self.parts(version, commit, notes, packages)?;
        let default = || workspace::target().join(format!("release-{}", parts.version));
        let folder = self.out.clone().unwrap_or_else(default);
        parts.write(&folder, self.sign_key.as_deref())?;
        println!("release: {} is in {}", parts.version, folder.display());
        match &self.check {
            None => Ok(ExitCode::SUCCESS),
            Some(other) => report(other, &folder),
        }
    }

    fn version(&self, commit: &Commit) -> Result<Version> {
        if self.snapshot {
            Ok(Version::snapshot(NUMBER, commit))
        } else {
            Version::release(NUMBER, commit)
        }
    }

    fn notes(&self) -> Result<String> {
        let path = workspace::root().join("CHANGELOG.md");
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let name = if self.snapshot {
            changelog::UNRELEASED
        } else {
            NUMBER
        };
        changelog::section(&text, name)
    }

    /// The Debian packages of the image, before anything is built of them.
    fn packages(&self) -> Result<Lock> {
        let served = node_image::served()?;
        let differences = Lock::pinned()?.differences(&served);
        if differences.is_empty() {
            return Ok(served);
        }
        let listed = differences.join("\n  ");
        if self.snapshot {
            eprintln!("release: packages are not those of the list:\n  {listed}");
            return Ok(served);
        }
        bail!(
            "the package sources of this machine do not serve the pinned packages; use an archive of that day, or pin \
             those of today by --pin-packages:\n  {listed}"
        )
    }

    fn parts(
        &self,
        version: Version,
        commit: Commit,
        notes: String,
        packages: Lock,
    ) -> Result<Parts> {
        let scratch = workspace::target().join("release-parts");
        let built = self.build.programs()?;
        let guest = image::agent::build().context("build vmlet-guest")?;
        let programs = self.static_programs(&scratch.join("programs"))?;
        if !self.build.debug {
            // Those of the image are checked with it.
            node_image::check(&[built.join("vmlet-criproxy"), VMLETCTL.path()])?;
        }
        let profile = self.build.profile();
        let tag = version.to_string();
        let mut images = vec![node_image::ensure(profile, &tag)?];
        for image in [CONTROLLER, AGENT] {
            images.push(image.ensure(profile, &tag)?);
        }
        let parts = deb::Built {
            programs: Some(&built),
            agent: Some(&guest),
        };
        let debs = [&deb::VMLET, &deb::CRIPROXY, &deb::VMLETCTL, &deb::GUEST];
        let debs = debs.map(|package| deb::build(package, &version.of_debian(), parts, &scratch));
        let debs = debs.into_iter().collect::<Result<Vec<_>>>()?;
        Ok(Parts {
            version,
            commit,
            notes,
            debug: self.build.debug,
            images,
            packages,
            debs,
            programs,
        })
    }

    /// Writes programs for machines of any distribution, without the symbols that only a debugger needs.
    fn static_programs(&self, folder: &Path) -> Result<Vec<PathBuf>> {
        fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
        let programs = FOR_THE_NODE.into_iter().chain([VMLETCTL]);
        let stripped = programs.map(|program| {
            let stripped = folder.join(program.name);
            node_image::strip(&self.build.static_program(program)?, &stripped)?;
            Ok(stripped)
        });
        stripped.collect()
    }
}

fn report(first: &Path, second: &Path) -> Result<ExitCode> {
    let differences = compare(first, second)?;
    if differences.is_empty() {
        println!("release: all files are those of {}", first.display());
        return Ok(ExitCode::SUCCESS);
    }
    for difference in differences {
        println!("release: {difference}");
    }
    Ok(ExitCode::FAILURE)
}
