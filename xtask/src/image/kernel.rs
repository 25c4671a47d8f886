//! The guest's kernel: a distribution package, downloaded and unpacked, never installed.
//!
//! Invariant: the package is what the release's own meta package points at today.
//! Failure: no meta package known (then the lists are refreshed once), download refused, no kernel
//! inside.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::fresh_folder;
use crate::{packages, run};

/// Which kernel a guest has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flavour {
    /// That for virtual machines.
    Cloud,
    /// That for all machines, which has more modules, among them those of 9p.
    Generic,
}

impl Flavour {
    /// Meta packages whose dependency is the newest such kernel: Debian's, then Ubuntu's.
    const fn meta(self) -> &'static [&'static str] {
        match self {
            Self::Cloud => &["linux-image-cloud-amd64", "linux-image-virtual"],
            Self::Generic => &["linux-image-amd64", "linux-image-generic"],
        }
    }
}

/// An unpacked kernel package.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// Which one it is.
    pub(crate) flavour: Flavour,
    /// The bootable image.
    pub(crate) image: PathBuf,
    /// The folder that holds `kernel/` and `modules.builtin`.
    pub(crate) modules: PathBuf,
}

/// Downloads and unpacks the kernel below `work`.
pub(crate) fn fetch(work: &Path, flavour: Flavour) -> Result<Kernel> {
    let names = match resolve(flavour)? {
        Some(names) => names,
        None => {
            packages::update()?;
            let unknown = || format!("apt knows none of {}", flavour.meta().join(", "));
            resolve(flavour)?.with_context(unknown)?
        }
    };
    let folder = fresh_folder(work.join("packages"))?;
    if let Err(error) = download(&folder, &names) {
        // The lists may be older than the archive: refresh them and look again.
        packages::update().context(error)?;
        let names = resolve(flavour)?.context("the kernel package went away")?;
        download(&folder, &names)?;
    }
    let root = fresh_folder(work.join("kernel"))?;
    for package in files(&folder)? {
        run::output(run::command("dpkg-deb").arg("-x").args([&package, &root]))?;
    }
    locate(&root, flavour)
}

fn resolve(flavour: Flavour) -> Result<Option<Vec<String>>> {
    for meta in flavour.meta() {
        if packages::candidate(meta)?.is_none() {
            continue;
        }
        let depends = run::output(run::command("apt-cache").env("LC_ALL", "C").args([
            "depends",
            "--important",
            meta,
        ]))?;
        let Some(image) = parse_depends(&depends) else {
            continue;
        };
        let mut names = vec![image.to_owned()];
        // Ubuntu keeps the modules in a package of their own.
        let modules = image.replacen("linux-image-", "linux-modules-", 1);
        if packages::candidate(&modules)?.is_some() {
            names.push(modules);
        }
        return Ok(Some(names));
    }
    Ok(None)
}

/// Downloads the packages of these names into `folder`.
pub(super) fn download(folder: &Path, names: &[String]) -> Result<()> {
    println!("guest: downloading {}", names.join(" "));
    let mut apt = run::command("apt-get");
    apt.args(["download", "--quiet", "-o", "APT::Sandbox::User=root"])
        .args(names);
    run::output(apt.current_dir(folder)).map(drop)
}

fn locate(root: &Path, flavour: Flavour) -> Result<Kernel> {
    let image = files(&root.join("boot"))?
        .into_iter()
        .find(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz"))
        })
        .context("no boot/vmlinuz in the kernel package")?;
    for place in ["usr/lib/modules", "lib/modules"] {
        let place = root.join(place);
        if let Some(modules) = place
            .exists()
            .then(|| files(&place))
            .transpose()?
            .and_then(|mut all| all.pop())
        {
            return Ok(Kernel {
                flavour,
                image,
                modules,
            });
        }
    }
    bail!("no modules in the kernel package")
}

/// What is in a folder.
pub(super) fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))?;
    entries.map(|entry| Ok(entry?.path())).collect()
}

/// The versioned kernel among the dependencies of a meta package.
fn parse_depends(text: &str) -> Option<&str> {
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|name| {
            name.strip_prefix("linux-image-")
                .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_meta_package_points_at_a_versioned_kernel() {
        let debian = "linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-56-cloud-amd64\n";
        assert_eq!(
            parse_depends(debian),
            Some("linux-image-6.1.0-56-cloud-amd64")
        );
        let ubuntu = "linux-image-virtual\n  Depends: linux-image-generic-hwe\n  Depends: \
            linux-image-6.8.0-31-generic\n";
        assert_eq!(parse_depends(ubuntu), Some("linux-image-6.8.0-31-generic"));
        assert_eq!(parse_depends("x\n  Depends: linux-image-generic\n"), None);
    }
}
