//! What kubeadm needs to make a cluster in the machine: programs of the node, and the images of the
//! control plane; and the installer, the images and the chart that put Vmlet into that cluster.
//!
//! Invariant: all programs of Kubernetes are of the version that was asked for; the folder is
//! complete when the function returns, and has nothing of an earlier call.
//! Failure: names the tool that cannot be built, or the image for which there is no program.

mod images;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::commands::tools::{self, Minor, Tool};
use crate::image::fresh_folder;
use crate::node_image::{self, AGENT, CONTROLLER, FOR_THE_NODE, Profile};
use crate::static_program::StaticProgram;
use crate::{run, workspace};

/// Those of `tests/machine/kubeadm`, besides the control plane's.
const TOOLS: &[Tool] = &[Tool::Kubeadm, Tool::Helm];

/// Programs of Kubernetes that the node runs.
const NODE: &[Tool] = &[Tool::Kubeadm, Tool::Kubectl, Tool::Kubelet];

/// Those of containerd 2.
const CONTAINERD: &[Tool] = &[Tool::Containerd, Tool::ContainerdShimRuncV2, Tool::Ctr];

/// Tag of the images.
const TAG: &str = "machine";

/// What the cluster is made of.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct Cluster {
    /// The minor version of Kubernetes.
    #[arg(long, value_enum, default_value_t, value_name = "VERSION")]
    kubernetes: Minor,
    /// The containerd of the node.
    #[arg(long, value_enum, default_value_t)]
    containerd: Containerd,
}

/// Which containerd the node has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
enum Containerd {
    /// containerd 2, in the version of all other clusters.
    #[default]
    #[value(name = "2")]
    Two,
    /// The package that the machine has: 1.7 in Debian 13, 1.6 in Debian 12.
    Distribution,
}

impl Cluster {
    /// Makes `folder` one with `bin`, `images`, `installer`, `version`, `helm`, `chart` and the images
    /// `node.tar`, `controller.tar` and `agent.tar`. Without a containerd in `bin` the steps use that of the machine.
    pub(crate) fn write(self, folder: PathBuf) -> Result<()> {
        tools::ensure_with(self.kubernetes, tools::CLUSTER)?;
        tools::ensure_with(self.kubernetes, TOOLS)?;
        let folder = fresh_folder(folder)?;
        let bin = create(folder.join("bin"))?;
        for tool in self.node() {
            copy(&tool.product(self.kubernetes), &bin.join(tool.name()))?;
        }
        images::write(self.kubernetes, &folder)?;
        vmlet(&folder)
    }

    fn node(self) -> impl Iterator<Item = Tool> {
        let containerd = match self.containerd {
            Containerd::Two => CONTAINERD,
            Containerd::Distribution => &[],
        };
        NODE.iter().chain(containerd).copied()
    }
}

/// What installs Vmlet: the installer with its programs, Helm with the chart, the images.
fn vmlet(folder: &Path) -> Result<()> {
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
    copy(&workspace::tools_bin().join("helm"), &folder.join("helm"))?;
    let chart = workspace::root().join("deploy/chart");
    run::check(
        run::command("cp")
            .arg("-rT")
            .arg(chart)
            .arg(folder.join("chart")),
    )?;
    let images = [
        ("node.tar", node_image::ensure(Profile::Debug, TAG)?),
        ("controller.tar", CONTROLLER.ensure(Profile::Debug, TAG)?),
        ("agent.tar", AGENT.ensure(Profile::Debug, TAG)?),
    ];
    images
        .iter()
        .try_for_each(|(name, archive)| copy(archive, &folder.join(name)))
}

fn create(folder: PathBuf) -> Result<PathBuf> {
    fs::create_dir_all(&folder)
        .with_context(|| format!("failed to create {}", folder.display()))?;
    Ok(folder)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to)
        .map(drop)
        .with_context(|| format!("failed to copy {}", from.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(containerd: Containerd) -> Vec<Tool> {
        let cluster = Cluster {
            kubernetes: Minor::V1_35,
            containerd,
        };
        cluster.node().collect()
    }

    #[test]
    fn a_node_with_the_containerd_of_its_distribution_gets_no_program_of_containerd_2() {
        assert_eq!(node(Containerd::Two), [NODE, CONTAINERD].concat());
        assert_eq!(node(Containerd::Distribution), NODE);
    }
}
