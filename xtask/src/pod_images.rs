//! The container images of a test cluster's ordinary pods, made on this machine: there is no
//! registry.
//!
//! Invariant: a second call with the same inputs builds nothing; names lie outside of what the
//! proxy sends to Vmlet.
//! Failure: names the program or package that is missing.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::json;

use crate::oci::{self, Tree};
use crate::stamp::Stamp;
use crate::{packages, run, workspace};

/// The image that holds a pod's namespaces.
pub(crate) const PAUSE: &str = "localhost/pause:1";

/// The image with a shell and the usual tools.
pub(crate) const TOOLS: &str = "localhost/tools:1";

/// Raised when the way of building changes in a manner that the stamps cannot see.
const RECIPE: &str = "1";

const PASSWD: &str = "\
root:x:0:0:root:/root:/bin/sh
www-data:x:33:33:www-data:/tmp:/bin/sh
nobody:x:65534:65534:nobody:/tmp:/bin/sh
";

const GROUP: &str = "root:x:0:\nwww-data:x:33:\nnobody:x:65534:\n";

/// Builds [`PAUSE`] when it is not there; the archive that `ctr images import` takes.
pub(crate) fn pause_image() -> Result<PathBuf> {
    let source = workspace::root().join("xtask/images/pause.c");
    let stamp = stamp("pause", &["gcc", "libc6-dev"])?.file(&source)?;
    ensure("pause", &stamp, |archive| {
        let program = archive.with_file_name("pause");
        let mut compiler = run::command("cc");
        compiler.args(["-static", "-Os", "-s", "-Wall", "-Werror", "-o"]);
        run::output(compiler.arg(&program).arg(&source)).context("compile pause")?;
        let mut tree = Tree::new();
        tree.copy("pause", 0o755, &program)?;
        let config = json!({ "Entrypoint": ["/pause"], "User": "65534:65534" });
        write(PAUSE, &tree, config, archive)?;
        fs::remove_file(&program).with_context(|| format!("remove {}", program.display()))
    })
}

/// Builds [`TOOLS`] when it is not there; the archive that `ctr images import` takes.
pub(crate) fn tool_image() -> Result<PathBuf> {
    let stamp = stamp("tools", &["busybox-static"])?.file(&pgrep())?;
    ensure("tools", &stamp, |archive| {
        let config = json!({
            "Cmd": ["/bin/sh"],
            "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"],
        });
        write(TOOLS, &tools()?, config, archive)
    })
}

/// The tree of [`TOOLS`].
fn tools() -> Result<Tree> {
    let busybox = ["/bin/busybox", "/usr/bin/busybox"].map(Path::new);
    let busybox = busybox
        .into_iter()
        .find(|place| place.exists())
        .context("busybox is missing: run cargo xtask setup")?;
    let mut tree = Tree::new();
    tree.copy("bin/busybox", 0o755, busybox)?;
    let applets = run::output(run::command(busybox).arg("--list"))?;
    for applet in applets.lines().filter(|applet| *applet != "busybox") {
        // Names of one file, not symbolic links: a path that a pod masks must not take all others
        // with it.
        tree.name(format!("bin/{applet}"), "bin/busybox")?;
    }
    tree.copy("bin/pgrep", 0o755, &pgrep())?;
    tree.link("usr/bin", "../bin")?;
    tree.bytes("etc/passwd", 0o644, PASSWD)?;
    tree.bytes("etc/group", 0o644, GROUP)?;
    for (folder, mode) in [("root", 0o700), ("tmp", 0o1777), ("var/www", 0o755)] {
        tree.folder(folder, mode)?;
    }
    for mount_point in ["dev", "proc", "sys", "run"] {
        tree.folder(mount_point, 0o755)?;
    }
    Ok(tree)
}

/// The script for images whose busybox comes without this program.
pub(crate) fn pgrep() -> PathBuf {
    workspace::root().join("xtask/images/pgrep")
}

fn write(name: &str, tree: &Tree, config: serde_json::Value, archive: &Path) -> Result<()> {
    let image = oci::Image {
        name,
        tree,
        config,
        level: 3,
    };
    oci::write(&image, archive)
        .map(drop)
        .with_context(|| format!("build the image {name}"))
}

fn folder() -> PathBuf {
    workspace::target().join("images")
}

fn stamp(name: &str, inputs: &[&str]) -> Result<Stamp> {
    let stamp = Stamp::new(folder().join(format!("{name}.stamp"))).value("recipe", RECIPE);
    let versions = packages::installed(inputs)?;
    Ok(versions.iter().fold(stamp, |stamp, (package, version)| {
        stamp.value(package, version)
    }))
}

fn ensure(name: &str, stamp: &Stamp, build: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let archive = folder().join(format!("{name}.tar"));
    if !stamp.is_fresh(std::slice::from_ref(&archive)) {
        fs::create_dir_all(folder()).context("create target/images")?;
        build(&archive)?;
        stamp.write()?;
    }
    Ok(archive)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_images_are_archives_and_are_built_once() {
        for build in [pause_image, tool_image] {
            let archive = build().unwrap();
            let first = fs::metadata(&archive).unwrap().modified().unwrap();
            assert_eq!(build().unwrap(), archive);
            let second = fs::metadata(&archive).unwrap().modified().unwrap();
            assert_eq!(first, second, "built twice");
        }
    }
}
