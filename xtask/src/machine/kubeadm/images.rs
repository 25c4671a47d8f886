//! The images of the control plane under their public names, made of the programs of one version.
//!
//! Invariant: the kubeadm of that version names the images and the version.
//! Failure: names the image for which there is no program.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use clap::ValueEnum as _;
use serde_json::json;

use super::{copy, create};
use crate::commands::tools::{Minor, Tool};
use crate::oci::{self, Tree};
use crate::{pod_images, run};

/// Images whose program has another name, or that the machine's cluster goes without.
const DNS: &str = "coredns";
const PAUSE: &str = "pause";

/// Where an image has its program, and where its command is looked up.
const FOLDER: &str = "usr/local/bin";

/// Where kube-proxy looks for the program that changes rules.
const NFT: &str = "/usr/sbin/nft";

/// Writes `images` and `version` below `folder`.
pub(super) fn write(kubernetes: Minor, folder: &Path) -> Result<()> {
    let archives = create(folder.join("images"))?;
    let kubeadm = || run::command(Tool::Kubeadm.product(kubernetes));
    let version = run::output(kubeadm().args(["version", "--output", "short"]))?;
    let version = version.trim();
    fs::write(folder.join("version"), version).context("failed to write the version")?;
    let list = ["config", "images", "list", "--kubernetes-version", version];
    let names = run::output(kubeadm().args(list))?;
    for name in names.lines() {
        let program = program(name);
        let archive = archives.join(format!("{program}.tar"));
        match program {
            DNS => {}
            PAUSE => copy(&pod_images::pause_image()?, &archive)?,
            _ => image(name, tool(name)?, kubernetes, &archive)
                .with_context(|| format!("failed to build the image {name}"))?,
        }
    }
    Ok(())
}

/// The last part of an image's name, without its tag.
fn program(image: &str) -> &str {
    let last = image.rsplit('/').next().unwrap_or(image);
    last.split_once(':').map_or(last, |(name, _)| name)
}

fn tool(image: &str) -> Result<Tool> {
    Tool::from_str(program(image), false)
        .map_err(|_| anyhow!("failed to find a program for the image {image}"))
}

fn image(name: &str, tool: Tool, kubernetes: Minor, archive: &Path) -> Result<()> {
    let mut tree = Tree::new();
    let place = format!("{FOLDER}/{}", program(name));
    tree.copy(place, 0o755, &tool.product(kubernetes))?;
    if tool == Tool::KubeProxy {
        rules(&mut tree)?;
    }
    let image = oci::Image {
        name,
        tree: &tree,
        config: json!({ "Env": [format!("PATH=/{FOLDER}:/usr/sbin")] }),
        level: 1,
    };
    oci::write(&image, archive).map(drop)
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
        assert_eq!(tool("registry.k8s.io/etcd:3.6.6-0").unwrap(), Tool::Etcd);
        let proxy = tool("registry.k8s.io/kube-proxy:v1.35.4").unwrap();
        assert_eq!(proxy, Tool::KubeProxy);
        assert_eq!(program("registry.k8s.io/coredns/coredns:v1.13.1"), DNS);
        assert_eq!(program("localhost:5000/pause"), PAUSE);
        let unknown = tool("registry.k8s.io/kube-scanner:v2").unwrap_err();
        assert!(unknown.to_string().ends_with("kube-scanner:v2"));
    }

    #[test]
    fn libraries_are_files_with_the_loader_and_without_the_kernels_own() {
        let listed = "\tlinux-vdso.so.1 (0x1)\n\tlibc.so.6 => /lib/libc.so.6 (0x2)\n\
                      \t/lib64/ld-linux-x86-64.so.2 (0x3)\n";
        let expected = ["/lib/libc.so.6", "/lib64/ld-linux-x86-64.so.2"].map(Path::new);
        assert_eq!(libraries(listed), expected);
    }
}
