//! Images of one program each: of those that talk to the API server.
//!
//! Invariant: beside the program there are its libraries, the certificates of authorities and the names of its user:
//! no shell, and no other program. The same packages, program and tag give the same bytes.
//! Failure: names the package, the library or the program that is missing; an older image stays in place.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::packages::Package;
use super::{Profile, built, check, closure, folder, libraries, packages, root, strip, work};
use crate::oci::{self, Tree};
use crate::stamp::Stamp;

/// Raised when the way of building changes in a manner that the stamp cannot see.
const RECIPE: &str = "1";

/// Packages of the node image, with what these programs need.
const PACKAGES: [&str; 3] = ["ca-certificates", "libc6", "libgcc-s1"];

/// The dynamic loader, and where programs expect it.
const LOADER: &str = "ld-linux-x86-64.so.2";

/// The image of the controller.
pub(crate) const CONTROLLER: ProgramImage = ProgramImage {
    program: "vmlet-controller",
    user: 65_534,
};

/// The image of the agents.
pub(crate) const AGENT: ProgramImage = ProgramImage {
    program: "vmlet-agent",
    user: 1_899_999_999,
};

/// An image with one program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProgramImage {
    program: &'static str,
    /// The user, and the group, that it runs as unless a pod names others.
    user: u32,
}

impl ProgramImage {
    /// Its name, less its tag.
    pub(crate) fn name(self) -> String {
        format!("localhost/{}", self.program)
    }

    /// Builds it from the program, which has been built, when it is not there or its inputs have changed; returns the
    /// archive.
    pub(crate) fn ensure(self, profile: Profile, tag: &str) -> Result<PathBuf> {
        let program = built(profile).join(self.program);
        if profile == Profile::Release {
            check(std::slice::from_ref(&program))?;
        }
        let packages = closure::packages(&work()).context("failed to list the packages")?;
        let used = packages.iter().filter(|package| is_used(&package.name));
        let used: Vec<_> = used.collect();
        ensure!(
            used.len() == PACKAGES.len(),
            "packages are missing: {used:?}"
        );
        let short = self.program.trim_start_matches("vmlet-");
        let mut stamp = Stamp::new(folder().join(format!("{short}-{tag}.stamp")))
            .value("recipe", RECIPE)
            .file(&program)?;
        for package in used {
            stamp = stamp.value(&package.name, &package.version);
        }
        let archive = folder().join(format!("{short}-{tag}.tar"));
        if !stamp.is_fresh(std::slice::from_ref(&archive)) {
            fs::create_dir_all(folder()).context("failed to create target/images")?;
            let built = self.build(profile, tag, &packages, &archive);
            built.with_context(|| format!("failed to build the image of {}", self.program))?;
            stamp.write()?;
        }
        Ok(archive)
    }

    fn build(
        self,
        profile: Profile,
        tag: &str,
        packages: &[Package],
        archive: &Path,
    ) -> Result<()> {
        // The folder is that of the node image, and keeps the packages of this list alone.
        let files = packages::download(packages, &work().join("packages"))?;
        let is_used = |file: &PathBuf| {
            let name = file.file_name().and_then(|name| name.to_str());
            name.and_then(|name| name.split('_').next())
                .is_some_and(is_used)
        };
        let files: Vec<_> = files.into_iter().filter(is_used).collect();
        let root = root::unpack(&files, &work().join(format!("root-{}", self.program)))?;
        let stripped = work().join(self.program);
        strip(&built(profile).join(self.program), &stripped)?;
        let mut tree = self.tree(&root, &stripped)?;
        root::record(&files, &mut tree)?;
        let program = format!("/{}", self.place());
        let user = self.user;
        let image = oci::Image {
            name: &format!("{}:{tag}", self.name()),
            tree: &tree,
            config: json!({
                "User": format!("{user}:{user}"),
                "Env": ["PATH=/usr/sbin"],
                "Entrypoint": [program],
                "Labels": { "org.opencontainers.image.version": tag },
            }),
            level: profile.level(),
        };
        let digest = oci::write(&image, archive)?;
        println!("image: {}:{tag} has digest sha256:{digest}", self.name());
        fs::remove_dir_all(&root)
            .with_context(|| format!("failed to remove {}", root.display()))?;
        fs::remove_file(&stripped)
            .with_context(|| format!("failed to remove {}", stripped.display()))
    }

    fn place(self) -> String {
        format!("usr/sbin/{}", self.program)
    }

    /// The file system, with libraries of packages that were unpacked below `root`.
    fn tree(self, root: &Path, program: &Path) -> Result<Tree> {
        let mut tree = Tree::new();
        for name in libraries::used(root, program)? {
            let place = Path::new("usr/lib/x86_64-linux-gnu").join(&name);
            tree.copy(place, 0o644, &libraries::find(root, &name)?)?;
        }
        let loader = Path::new("usr/lib64").join(LOADER);
        tree.copy(loader, 0o755, &libraries::find(root, LOADER)?)?;
        tree.copy(self.place(), 0o755, program)?;
        for folder in ["lib", "lib64"] {
            tree.link(folder, Path::new("usr").join(folder))?;
        }
        for folder in ["dev", "etc/vmlet", "proc", "run", "sys"] {
            tree.folder(folder, 0o755)?;
        }
        tree.folder("tmp", 0o1777)?;
        let name = self.program;
        let user = self.user;
        let account = format!("{name}:x:{user}:{user}:{name}:/nonexistent:/nonexistent\n");
        tree.bytes("etc/passwd", 0o644, account)?;
        tree.bytes("etc/group", 0o644, format!("{name}:x:{user}:\n"))?;
        root::names_and_certificates(root, &mut tree)?;
        Ok(tree)
    }
}

fn is_used(package: &str) -> bool {
    PACKAGES.contains(&package)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_has_its_program_with_its_libraries_and_no_other_program() {
        let dir = tempfile::tempdir().unwrap();
        let library = dir.path().join("lib/x86_64-linux-gnu");
        fs::create_dir_all(&library).unwrap();
        for name in ["libc.so.6", LOADER] {
            fs::copy(
                libraries::find(Path::new("/"), name).unwrap(),
                library.join(name),
            )
            .unwrap();
        }
        fs::create_dir_all(dir.path().join("lib64")).unwrap();
        fs::copy(library.join(LOADER), dir.path().join("lib64").join(LOADER)).unwrap();
        let authorities = dir.path().join("usr/share/ca-certificates/mozilla");
        fs::create_dir_all(&authorities).unwrap();
        fs::write(authorities.join("a.crt"), "certificate").unwrap();
        for image in [CONTROLLER, AGENT] {
            let tree = image.tree(dir.path(), Path::new("/bin/true")).unwrap();
            let mut packed = Vec::new();
            tree.write(&mut packed).unwrap();
            let mut archive = tar::Archive::new(packed.as_slice());
            let entries = archive.entries().unwrap().map(Result::unwrap);
            let files = entries.filter(|entry| entry.header().entry_type().is_file());
            let programs = files.filter(|entry| entry.header().mode().unwrap() & 0o111 != 0);
            let paths = programs.map(|entry| entry.path().unwrap().display().to_string());
            let program = format!("usr/sbin/{}", image.program);
            let expected = ["usr/lib64/ld-linux-x86-64.so.2", &program];
            assert_eq!(paths.collect::<Vec<_>>(), expected);
            assert!(tree.holds("usr/lib/x86_64-linux-gnu/libc.so.6"));
            assert!(tree.holds("etc/ssl/certs/ca-certificates.crt"));
        }
    }
}
