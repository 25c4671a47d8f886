//! Debian packages of our programs.
//!
//! Invariant: the same programs, files and version give the same bytes; a finished package appears by one
//! rename. What a package has below `etc` is the administrator's once it is installed (`conffiles`).
//! Failure: names the package and the step; an earlier package stays in place.

mod list;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result};

use crate::{run, workspace};

pub(crate) use self::list::{CRIPROXY, GUEST, VMLET, VMLETCTL};

/// Scripts that dpkg runs, `deploy/deb/PACKAGE.SCRIPT`; a package need not have any.
const SCRIPTS: &[&str] = &["postinst", "prerm", "postrm"];

/// What a package has and needs.
#[derive(Debug)]
pub(crate) struct Package {
    pub(crate) name: &'static str,
    /// Programs of a build, with their places.
    programs: &'static [(&'static str, &'static str)],
    /// Place of `vmlet-guest`, which is static: guests are of any distribution.
    agent: Option<&'static str>,
    /// Files of the repository, with their places and modes.
    files: &'static [(&'static str, &'static str, u32)],
    /// Packages of libraries: of the version of the machine that builds, or a later one.
    libraries: &'static [&'static str],
    /// Other packages.
    depends: &'static [&'static str],
    /// Packages that are not needed by all.
    recommends: &'static [&'static str],
    summary: &'static str,
    /// Lines of at most 79 characters.
    description: &'static [&'static str],
}

const NOT_BUILT: &str = "a program of the package is not built";

/// What packages are made of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Built<'a> {
    /// The folder with the programs of nodes, if a package has any.
    pub(crate) programs: Option<&'a Path>,
    /// `vmlet-guest`, if a package has it.
    pub(crate) agent: Option<&'a Path>,
}

impl Package {
    /// Whether it has programs of nodes.
    pub(crate) const fn has_programs(&self) -> bool {
        !self.programs.is_empty()
    }

    /// Whether it has `vmlet-guest`.
    pub(crate) const fn has_agent(&self) -> bool {
        self.agent.is_some()
    }
}

/// Builds a package; returns its file in `folder`.
pub(crate) fn build(
    package: &Package,
    version: &str,
    built: Built<'_>,
    folder: &Path,
) -> Result<PathBuf> {
    let name = package.name;
    let packed = pack(package, version, built, folder);
    packed.with_context(|| format!("build the package {name}"))
}

/// Where finished packages are.
pub(crate) fn folder() -> PathBuf {
    workspace::target().join("packages")
}

fn pack(package: &Package, version: &str, built: Built<'_>, folder: &Path) -> Result<PathBuf> {
    let root = folder.join(package.name);
    if root.exists() {
        fs::remove_dir_all(&root).with_context(|| format!("remove {}", root.display()))?;
    }
    let mut programs = Vec::new();
    for (program, place) in package.programs {
        programs.push((built.programs.context(NOT_BUILT)?.join(program), *place));
    }
    if let Some(place) = package.agent {
        programs.push((built.agent.context(NOT_BUILT)?.to_owned(), place));
    }
    for (program, place) in programs {
        let place = root.join(place);
        install(&program, &place, 0o755)?;
        run::check(run::command("strip").arg("--strip-unneeded").arg(&place))?;
    }
    let copyright = format!("usr/share/doc/{}/copyright", package.name);
    install(&source("LICENSE"), &root.join(copyright), 0o644)?;
    for (file, place, mode) in package.files {
        install(&source(file), &root.join(place), *mode)?;
    }
    let size = kibibytes(&root)?;
    for script in SCRIPTS {
        let file = source("deploy/deb").join(format!("{}.{script}", package.name));
        if file.exists() {
            install(&file, &root.join("DEBIAN").join(script), 0o755)?;
        }
    }
    write(
        &root.join("DEBIAN/control"),
        &control(package, version, size)?,
    )?;
    let settings = package.files.iter().map(|(_, place, _)| place);
    let settings = settings.filter(|place| place.starts_with("etc/"));
    let settings: String = settings.map(|place| format!("/{place}\n")).collect();
    if !settings.is_empty() {
        write(&root.join("DEBIAN/conffiles"), &settings)?;
    }

    let package = folder.join(format!("{}_{version}_amd64.deb", package.name));
    let unfinished = package.with_extension("deb.new");
    let mut dpkg = run::command("dpkg-deb");
    dpkg.args(["--root-owner-group", "--build"])
        .arg(&root)
        .arg(&unfinished)
        .env("SOURCE_DATE_EPOCH", "0")
        .stdout(Stdio::null());
    run::check(&mut dpkg)?;
    fs::rename(&unfinished, &package)
        .with_context(|| format!("rename to {}", package.display()))?;
    fs::remove_dir_all(&root).with_context(|| format!("remove {}", root.display()))?;
    Ok(package)
}

fn source(file: &str) -> PathBuf {
    workspace::root().join(file)
}

fn install(from: &Path, to: &Path, mode: u32) -> Result<()> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    }
    fs::copy(from, to).with_context(|| format!("copy {}", from.display()))?;
    let mode = fs::Permissions::from_mode(mode);
    fs::set_permissions(to, mode).with_context(|| format!("set the mode of {}", to.display()))
}

fn write(file: &Path, text: &str) -> Result<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    }
    fs::write(file, text).with_context(|| format!("write {}", file.display()))
}

/// The size of all files below a folder.
fn kibibytes(folder: &Path) -> Result<u64> {
    let mut size = 0;
    for entry in fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))? {
        let entry = entry?;
        size += if entry.file_type()?.is_dir() {
            kibibytes(&entry.path())?
        } else {
            entry.metadata()?.len().div_ceil(1024)
        };
    }
    Ok(size)
}

/// The control file; `size` is in KiB.
fn control(package: &Package, version: &str, size: u64) -> Result<String> {
    let libraries = package.libraries.iter().map(|library| at_least(library));
    let mut depends = libraries.collect::<Result<Vec<_>>>()?;
    depends.extend(package.depends.iter().map(|name| (*name).to_owned()));
    let depends = if depends.is_empty() {
        String::new()
    } else {
        format!("Depends: {}\n", depends.join(", "))
    };
    let recommends = if package.recommends.is_empty() {
        String::new()
    } else {
        format!("Recommends: {}\n", package.recommends.join(", "))
    };
    let lines = package.description.iter();
    let description: String = lines.map(|line| format!(" {line}\n")).collect();
    Ok(format!(
        "Package: {}\nVersion: {version}\nArchitecture: amd64\n\
         Maintainer: The Vmlet authors <maintainers@vmlet.dev>\n\
         Installed-Size: {size}\n{depends}{recommends}Section: admin\nPriority: optional\n\
         Homepage: https://vmlet.dev/\nDescription: {}\n{description}",
        package.name, package.summary,
    ))
}

/// A library in the version of this machine, without what the distribution adds, or a later one.
fn at_least(library: &str) -> Result<String> {
    let mut query = run::command("dpkg-query");
    let version = run::output(query.args(["--show", "--showformat=${Version}", library]))?;
    let upstream = version.trim().split(['-', '+']).next().unwrap_or_default();
    Ok(format!("{library} (>= {upstream})"))
}

#[cfg(test)]
mod tests;
