//! The Debian packages of the node image, each with version and digest: what a release pins.
//!
//! Invariant: the text has a line for each package in the order of names; reading it gives what was written.
//! Failure: names the line or the file.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::{oci, workspace};

const HEADER: &str = "\
# The Debian packages of the node image: name, version, architecture and SHA-256 of the file.
# `cargo xtask release --pin-packages` writes this list.
";

/// Packages of a distribution.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Lock {
    /// Such as `debian-12`.
    pub(crate) distribution: String,
    /// By name.
    pub(crate) packages: BTreeMap<String, File>,
}

/// The file of a package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct File {
    pub(crate) version: String,
    pub(crate) architecture: String,
    /// 64 hexadecimal digits.
    pub(crate) sha256: String,
}

impl Lock {
    /// The list that the repository has.
    pub(crate) fn pinned() -> Result<Self> {
        let path = path();
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("read {}", path.display()))
    }

    /// The list of downloaded packages.
    pub(super) fn from_packages(distribution: String, files: &[PathBuf]) -> Result<Self> {
        let packages = files.iter();
        let packages =
            packages.map(|file| measured(file).with_context(|| file.display().to_string()));
        Ok(Self {
            distribution,
            packages: packages.collect::<Result<_>>()?,
        })
    }

    /// Writes the list into the repository.
    pub(crate) fn pin(&self) -> Result<PathBuf> {
        let path = path();
        fs::write(&path, self.to_string()).with_context(|| format!("write {}", path.display()))?;
        Ok(path)
    }

    /// What another list has in the place of what this one has, a line each.
    pub(crate) fn differences(&self, other: &Self) -> Vec<String> {
        let mut found = Vec::new();
        if self.distribution != other.distribution {
            found.push(format!(
                "distribution: {} in the place of {}",
                other.distribution, self.distribution
            ));
        }
        for (name, ours) in &self.packages {
            match other.packages.get(name) {
                None => found.push(format!("{name} {}: absent", ours.version)),
                Some(theirs) if theirs == ours => {}
                Some(theirs) if theirs.version == ours.version => {
                    found.push(format!("{name} {}: another file", ours.version));
                }
                Some(theirs) => {
                    let theirs = &theirs.version;
                    found.push(format!("{name} {}: {theirs} in its place", ours.version));
                }
            }
        }
        let further = |name: &&String| !self.packages.contains_key(*name);
        let further = other.packages.keys().filter(further);
        found.extend(further.map(|name| format!("{name}: not in the list")));
        found
    }

    fn parse(text: &str) -> Result<Self> {
        let mut lines = text.lines().filter(|line| !line.starts_with('#'));
        let distribution = lines
            .next()
            .and_then(|line| line.strip_prefix("distribution "));
        let distribution = distribution.context("no line with the distribution")?;
        let packages = lines.map(|line| package(line).with_context(|| format!("line {line:?}")));
        Ok(Self {
            distribution: distribution.to_owned(),
            packages: packages.collect::<Result<_>>()?,
        })
    }
}

impl fmt::Display for Lock {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "{HEADER}distribution {}", self.distribution)?;
        for (name, file) in &self.packages {
            let File {
                version,
                architecture,
                sha256,
            } = file;
            writeln!(out, "{name} {version} {architecture} {sha256}")?;
        }
        Ok(())
    }
}

fn path() -> PathBuf {
    workspace::root().join("xtask/images/node-packages.lock")
}

fn package(line: &str) -> Result<(String, File)> {
    let mut words = line.split(' ').map(str::to_owned);
    let mut word = || words.next().context("four words are needed");
    let name = word()?;
    let file = File {
        version: word()?,
        architecture: word()?,
        sha256: word()?,
    };
    ensure!(file.sha256.len() == 64, "the digest is none");
    Ok((name, file))
}

/// A package by its file `NAME_VERSION_ARCHITECTURE.deb`.
fn measured(file: &Path) -> Result<(String, File)> {
    let stem = file
        .file_stem()
        .and_then(|stem| stem.to_str())
        .unwrap_or_default();
    let mut parts = stem.splitn(3, '_').map(str::to_owned);
    let mut part = || parts.next().context("the name is not that of a package");
    let name = part()?;
    let package = File {
        version: part()?.replace("%3a", ":"),
        architecture: part()?,
        sha256: oci::sha256(file)?,
    };
    Ok((name, package))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef";

    fn lock(packages: &[(&str, &str)]) -> Lock {
        let lines = packages
            .iter()
            .map(|(name, version)| format!("{name} {version} amd64 {DIGEST}\n"));
        let text = format!(
            "# A comment.\ndistribution debian-12\n{}",
            lines.collect::<String>()
        );
        Lock::parse(&text).unwrap()
    }

    #[test]
    fn downloaded_files_are_listed_with_their_digests_and_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir
            .path()
            .join("qemu-utils_1%3a7.2+dfsg-7+deb12u16_amd64.deb");
        fs::write(&file, "abc").unwrap();
        let lock = Lock::from_packages("debian-12".to_owned(), &[file]).unwrap();
        let package = &lock.packages["qemu-utils"];
        assert_eq!(package.version, "1:7.2+dfsg-7+deb12u16");
        assert_eq!(package.architecture, "amd64");
        assert!(package.sha256.starts_with("ba7816bf"), "{package:?}");
        assert_eq!(Lock::parse(&lock.to_string()).unwrap(), lock);
        assert!(Lock::from_packages(String::new(), &[dir.path().join("x.deb")]).is_err());
    }

    #[test]
    fn what_the_archive_serves_instead_is_named_package_by_package() {
        let pinned = lock(&[
            ("libc6", "2.36-9"),
            ("nftables", "1.0.6-2"),
            ("zlib1g", "1"),
        ]);
        assert!(
            pinned
                .differences(&lock(&[
                    ("libc6", "2.36-9"),
                    ("nftables", "1.0.6-2"),
                    ("zlib1g", "1")
                ]))
                .is_empty()
        );
        let mut served = lock(&[
            ("libc6", "2.36-10"),
            ("nftables", "1.0.6-2"),
            ("pcre", "10"),
        ]);
        served.packages.get_mut("nftables").unwrap().sha256 = "0".repeat(64);
        let found = pinned.differences(&served);
        assert_eq!(
            found,
            [
                "libc6 2.36-9: 2.36-10 in its place",
                "nftables 1.0.6-2: another file",
                "zlib1g 1: absent",
                "pcre: not in the list",
            ]
        );
    }

    #[test]
    fn a_line_without_a_digest_is_refused() {
        let text = "distribution debian-12\nlibc6 2.36-9 amd64\n";
        assert!(Lock::parse(text).is_err());
        assert!(Lock::parse("libc6 2.36-9 amd64 0\n").is_err());
    }

    #[test]
    fn the_list_of_the_repository_is_one() {
        assert!(Lock::pinned().unwrap().packages.len() > 50);
    }
}
