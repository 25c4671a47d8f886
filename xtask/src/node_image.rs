//! Builds the node image: our programs of nodes, libvirt, QEMU and the usual network tools, from
//! distribution packages; and the images of the programs that talk to the API server.
//!
//! Invariant: the same packages, programs, scripts and tag give the same bytes; the machine's own
//! package sources are the only ones asked.
//! Failure: names the package, program or file that is missing, or the program that must not be on a
//! node; an older image stays in place.

mod closure;
mod crash_points;
mod libraries;
mod lock;
mod packages;
mod program;
mod root;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::json;

pub(crate) use self::lock::Lock;
pub(crate) use self::program::{AGENT, CONTROLLER, ProgramImage};
pub(crate) use self::root::STATUS;

use self::packages::Package;
use crate::image::agent;
use crate::oci::{self, Tree};
use crate::stamp::Stamp;
use crate::static_program::StaticProgram;
use crate::{reproducible, run, workspace};

/// The image's name, less its tag. It is outside of what the proxy sends to Vmlet: the image
/// belongs to the node's ordinary runtime.
pub(crate) const NAME: &str = "localhost/vmlet-node";

/// Raised when the way of building changes in a manner that the stamp cannot see.
const RECIPE: &str = "7";

/// Where our programs lie in the image.
const PROGRAMS: &[(&str, &str)] = &[
    ("vmlet", "usr/sbin/vmlet"),
    ("vmlet-tapmanager", "usr/sbin/vmlet-tapmanager"),
    ("vmletctl", "usr/bin/vmletctl"),
    ("vmlet-virtiofsd", "usr/libexec/vmlet/vmlet-virtiofsd"),
    ("vmwrapper", "usr/libexec/vmlet/vmwrapper"),
];

/// Where `prepare-node` finds the profile of QEMU.
const PROFILE_IN_IMAGE: &str = "usr/libexec/vmlet/apparmor-profile";

/// Programs for the node itself, whose libraries are not ours. They are in images for nodes only: a second
/// build of the proxy takes minutes.
pub(crate) const FOR_THE_NODE: [StaticProgram; 2] = [
    StaticProgram {
        package: "vmlet-installer",
        name: "vmlet-installer",
        profile: "release",
    },
    StaticProgram {
        package: "criproxy",
        name: "vmlet-criproxy",
        profile: "release",
    },
];

/// How the programs are compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    /// Quick to build, with crash points: for tests.
    Debug,
    /// For nodes.
    Release,
}

impl Profile {
    /// How much layers are compressed.
    const fn level(self) -> u8 {
        match self {
            Self::Debug => 1,
            Self::Release => 19,
        }
    }
}

/// An image under one tag.
#[derive(Debug)]
struct Tagged<'a> {
    tag: &'a str,
    archive: PathBuf,
    stamp: Stamp,
}

/// Builds the image from our programs, which have been built, when it is not there or its inputs
/// have changed; returns the archive.
pub(crate) fn ensure(profile: Profile, tag: &str) -> Result<PathBuf> {
    let mut archives = ensure_all(profile, &[tag])?;
    archives.pop().context("no archive")
}

/// The same for several tags, whose images have their packages in common; the archives in this order.
pub(crate) fn ensure_all(profile: Profile, tags: &[&str]) -> Result<Vec<PathBuf>> {
    let mut further = vec![agent::build().context("build vmlet-guest")?];
    if profile == Profile::Release {
        for program in FOR_THE_NODE {
            further.push(program.build()?);
        }
        let programs = PROGRAMS.iter().map(|(name, _)| built(profile).join(name));
        let programs: Vec<_> = programs.chain(further.iter().cloned()).collect();
        check(&programs)?;
    }
    let packages = closure::packages(&work()).context("list the packages")?;
    let images = tags.iter().map(|tag| {
        Ok(Tagged {
            tag,
            archive: folder().join(format!("node-{tag}.tar")),
            stamp: inputs(profile, tag, &packages, &further)?,
        })
    });
    let images = images.collect::<Result<Vec<_>>>()?;
    let is_stale =
        |image: &&Tagged<'_>| !image.stamp.is_fresh(std::slice::from_ref(&image.archive));
    let stale: Vec<_> = images.iter().filter(is_stale).collect();
    if !stale.is_empty() {
        fs::create_dir_all(folder()).context("create target/images")?;
        let built = build(profile, &packages, &further, &stale);
        built.context("build the node image")?;
    }
    Ok(images.into_iter().map(|image| image.archive).collect())
}

/// Fails if one of the programs can be killed by a crash point, or has the folders of this machine in it.
pub(crate) fn check(programs: &[PathBuf]) -> Result<()> {
    crash_points::refuse(programs)?;
    reproducible::check(programs)
}

/// The packages of the image that the package sources of this machine serve now.
pub(crate) fn served() -> Result<Lock> {
    let packages = closure::packages(&work()).context("list the packages")?;
    let files = packages::download(&packages, &work().join("packages"))?;
    Lock::from_packages(crate::packages::distribution()?, &files)
}

fn inputs(profile: Profile, tag: &str, packages: &[Package], further: &[PathBuf]) -> Result<Stamp> {
    let mut stamp = Stamp::new(folder().join(format!("node-{tag}.stamp")))
        .value("recipe", RECIPE)
        .folder(&scripts())?
        .file(&apparmor_profile())?;
    for program in further {
        stamp = stamp.file(program)?;
    }
    for (program, _) in PROGRAMS {
        stamp = stamp.file(&built(profile).join(program))?;
    }
    Ok(packages.iter().fold(stamp, |stamp, package| {
        stamp.value(&package.name, &package.version)
    }))
}

fn build(
    profile: Profile,
    packages: &[Package],
    further: &[PathBuf],
    images: &[&Tagged<'_>],
) -> Result<()> {
    let work = work();
    let files = packages::download(packages, &work.join("packages"))?;
    let root = root::unpack(&files, &work.join("root"))?;
    libraries::check(&root, &built(profile))?;
    let mut tree = root::tree(&root)?;
    root::record(&files, &mut tree)?;
    install(profile, &work, &mut tree)?;
    for program in further {
        let stripped = work.join(name(program));
        strip(program, &stripped)?;
        let place = Path::new("usr/libexec/vmlet").join(name(program));
        tree.copy(place, 0o755, &stripped)?;
    }
    for Tagged {
        tag,
        archive,
        stamp,
    } in images
    {
        tree.bytes("usr/libexec/vmlet/release", 0o644, format!("{tag}\n"))?;
        let image = oci::Image {
            name: &format!("{NAME}:{tag}"),
            tree: &tree,
            config: json!({
                "Env": ["PATH=/usr/sbin:/usr/bin"],
                "Cmd": ["/usr/sbin/vmlet"],
                "Labels": { "org.opencontainers.image.version": tag },
            }),
            level: profile.level(),
        };
        let digest = oci::write(&image, archive)?;
        println!("image: {}:{tag} has digest sha256:{digest}", NAME);
        stamp.write()?;
    }
    // Hundreds of megabytes that are unpacked again for the next image; the packages are kept.
    fs::remove_dir_all(&root).with_context(|| format!("remove {}", root.display()))?;
    let copies = PROGRAMS.iter().map(|(program, _)| PathBuf::from(program));
    for copy in copies.chain(further.iter().map(|program| name(program))) {
        let copy = work.join(copy);
        fs::remove_file(&copy).with_context(|| format!("remove {}", copy.display()))?;
    }
    Ok(())
}

/// Adds our programs, without the symbols that only a debugger needs, and our scripts.
fn install(profile: Profile, work: &Path, tree: &mut Tree) -> Result<()> {
    for (program, place) in PROGRAMS {
        let stripped = work.join(program);
        strip(&built(profile).join(program), &stripped)?;
        tree.copy(place, 0o755, &stripped)?;
    }
    // By these names kubectl finds it as its plugin, and what completes the plugin's words.
    for name in ["kubectl-vmlet", "kubectl_complete-vmlet"] {
        tree.link(format!("usr/bin/{name}"), "vmletctl")?;
    }
    for script in fs::read_dir(scripts()).context("list deploy/image")? {
        let script = script.context("list deploy/image")?.path();
        let name = script.file_name().unwrap_or_default();
        tree.copy(Path::new("usr/libexec/vmlet").join(name), 0o755, &script)?;
    }
    tree.copy(PROFILE_IN_IMAGE, 0o644, &apparmor_profile())
}

fn name(program: &Path) -> PathBuf {
    program.file_name().unwrap_or_default().into()
}

/// A program without the symbols that only a debugger needs.
pub(crate) fn strip(program: &Path, stripped: &Path) -> Result<()> {
    let mut objcopy = run::command("objcopy");
    objcopy.arg("--strip-debug").arg(program).arg(stripped);
    run::output(&mut objcopy).map(drop)
}

fn built(profile: Profile) -> PathBuf {
    workspace::target().join(match profile {
        Profile::Debug => "debug",
        Profile::Release => "release",
    })
}

/// What the containers of the DaemonSet run first.
fn scripts() -> PathBuf {
    workspace::root().join("deploy/image")
}

/// The AppArmor profile of QEMU, which the first of these scripts loads.
fn apparmor_profile() -> PathBuf {
    workspace::root().join("deploy/apparmor/vmlet-qemu")
}

/// Packages and half-made files.
fn work() -> PathBuf {
    workspace::target().join("node-image")
}

fn folder() -> PathBuf {
    workspace::target().join("images")
}
