//! What kubeadm needs to make a cluster in the machine: programs of the node, and the images of the
//! control plane under their public names; and the installer, the node image and the chart that put
//! Vmlet into that cluster.
//!
//! Invariant: kubeadm names the images, and all programs are of one version; the folder is complete
//! when the function returns.
//! Failure: names the tool that cannot be built, or the image for which there is no program.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::json;

use crate::commands::tools::{self, Tool};
use crate::node_image::{self, FOR_THE_NODE, Profile};
use crate::oci::{self, Tree};
use crate::static_program::StaticProgram;
use crate::{pod_images, run, workspace};

/// Those of `tests/machine/kubeadm`, besides the control plane's.
const TOOLS: &[Tool] = &[Tool::Kubeadm, Tool::Helm];

/// Programs that the node runs.
const NODE: &[&str] = &[
    "containerd",
    "containerd-shim-runc-v2",
    "ctr",
    "kubeadm",
    "kubectl",
    "kubelet",
];

/// Tag of the node image, and its archive's name.
const NODE_TAG: &str = "machine";
const NODE_IMAGE: &str = "node.tar";

/// Images whose program has another name, or that the machine's cluster goes without.
const DNS: &str = "coredns";
const PAUSE: &str = "pause";
const PROXY: &str = "kube-proxy";

/// Where an image has its program, and where its command is looked up.
const FOLDER: &str = "usr/local/bin";

/// Where kube-proxy looks for the program that changes rules.
const NFT: &str = "/usr/sbin/nft";

/// Writes `bin`, `images`, `installer`, `version`, `helm`, `chart` and the node image below `folder`.
pub(crate) fn write(folder: &Path) -> Result<()> {
    tools::ensure(tools::CLUSTER)?;
    tools::ensure(TOOLS)?;
    let programs = create(folder.join("bin"))?;
    for name in NODE {
        copy(&tool(name), &programs.join(name))?;
    }
    let installer = create(folder.join("installer"))?;
    for program in FOR_THE_NODE {
        let program = StaticProgram {
            profile: "dev",
            ..program
        };
        let mut strip = run::command("strip");
        strip.arg("-o").arg(installer.join(program.name));
        run::output(strip.arg(program.build()?))?;
    }
    copy(&tool("helm"), &folder.join("helm"))?;
    let chart = workspace::root().join("deploy/chart");
    run::check(
        run::command("cp")
            .arg("-rT")
            .arg(chart)
            .arg(folder.join("chart")),
    )?;
    let node = node_image::ensure(Profile::Debug, NODE_TAG)?;
    copy(&node, &folder.join(NODE_IMAGE))?;
    let archives = create(folder.join("images"))?;
    let kubeadm = || run::command(tool("kubeadm"));
    let version = run::output(kubeadm().args(["version", "--output", "short"]))?;
    let version = version.trim();
    fs::write(folder.join("version"), version).context("failed to write the version")?;
    let list = ["config", "images", "list", "--kubernetes-version", version];
    let names = run::output(kubeadm().args(list))?;
    for name in names.lines() {
        let program = program(name);
        match program {
            DNS => {}
            PAUSE => copy(&pod_images::pause_image()?, &archives.join("pause.tar"))?,
            _ => image(name, program, &archives.join(format!("{program}.tar")))?,
        }
    }
    Ok(())
}

fn create(folder: PathBuf) -> Result<PathBuf> {
    fs::create_dir_all(&folder)
        .with_context(|| format!("failed to create {}", folder.display()))?;
    Ok(folder)
}

fn tool(name: &str) -> PathBuf {
    workspace::tools_bin().join(name)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to)
        .map(drop)
        .with_context(|| format!("failed to copy {}", from.display()))
}

/// The last part of an image's name, without its tag.
fn program(image: &str) -> &str {
    let last = image.rsplit('/').next().unwrap_or(image);
    last.split_once(':').map_or(last, |(name, _)| name)
}

fn image(name: &str, program: &str, archive: &Path) -> Result<()> {
    let mut tree = Tree::new();
    tree.copy(format!("{FOLDER}/{program}"), 0o755, &tool(program))
        .with_context(|| format!("failed to find a program for the image {name}"))?;
    if program == PROXY {
        rules(&mut tree)?;
    }
    let image = oci::Image {
        name,
        tree: &tree,
        config: json!({ "Env": [format!("PATH=/{FOLDER}:/usr/sbin")] }),
        level: 1,
    };
    oci::write(&image, archive)
        .map(drop)
        .with_context(|| format!("failed to build the image {name}"))
}

/// nft and its libraries, those of this machine.
fn rules(tree: &mut Tree) -> Result<()> {
    let listed = run::output(run::command("ldd").arg(NFT))?;
    let libraries = libraries(&listed);
    for file in libraries.into_iter().chain([Path::new(NFT)]) {
        let place = file.strip_prefix("/").unwrap_or(file);
        let file = file
            .canonicalize()
            .with_context(|| format!("failed to find {}", file.display()))?;
        tree.copy(place.display().to_string(), 0o755, &file)?;
    }
    Ok(())
}

/// The files that the loader takes, itself among them.
fn libraries(listed: &str) -> Vec<&Path> {
    listed
        .lines()
        .filter_map(|line| {
            line.split_whitespace()
                .find(|word| word.starts_with('/'))
                .map(Path::new)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_has_the_program_of_its_name() {
        assert_eq!(program("registry.k8s.io/etcd:3.6.6-0"), "etcd");
        assert_eq!(program("registry.k8s.io/coredns/coredns:v1.13.1"), DNS);
        assert_eq!(program("localhost:5000/pause"), PAUSE);
    }

    #[test]
    fn libraries_are_files_with_the_loader_and_without_the_kernels_own() {
        let listed = "\tlinux-vdso.so.1 (0x1)\n\tlibc.so.6 => /lib/libc.so.6 (0x2)\n\
                      \t/lib64/ld-linux-x86-64.so.2 (0x3)\n";
        let expected = ["/lib/libc.so.6", "/lib64/ld-linux-x86-64.so.2"].map(Path::new);
        assert_eq!(libraries(listed), expected);
    }
}
