//! `up`: a node stack for hands-on work.
//!
//! Invariant: when it returns, CRI responds and `DIR/env.sh` has its address.
//! Failure: nothing is left of a stack that did not come up.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use nix::unistd::geteuid;

use super::build::Build;
use super::tools::{self, Tool};
use super::{guest, setup};
use crate::{pod_images, run, stack, workspace};

/// Starts libvirtd, vmlet-tapmanager and vmlet in a directory and network namespace of their own.
#[derive(Debug, clap::Args)]
pub(crate) struct Up {
    /// Directory of the stack; must be absent or empty. Several stacks can run side by side.
    #[arg(long)]
    dir: PathBuf,
    /// Also start a Kubernetes cluster: control plane, kubelet, containerd and the CRI proxy.
    #[arg(long)]
    cluster: bool,
    /// Number of nodes in the cluster.
    #[arg(long, default_value_t = 1, requires = "cluster",
          value_parser = clap::value_parser!(u8).range(1..=i64::from(stack::MAX_NODES)))]
    nodes: u8,
    /// Start only containerd, kubelet and the proxy on the nodes, so that Vmlet can be deployed
    /// into the cluster.
    #[arg(long, requires = "cluster")]
    no_vmlet: bool,
    /// Start no node, only etcd and the API server. `restart` adds the controller manager or the
    /// scheduler.
    #[arg(long, requires = "cluster", conflicts_with_all = ["nodes", "no_vmlet"])]
    no_node: bool,
    /// Also start containerd and the CRI proxy, without a cluster.
    #[arg(long, conflicts_with = "cluster")]
    containerd: bool,
    /// Also start two registries with disks, in the first node of a cluster: 127.0.0.1:5000, and
    /// 127.0.0.1:5443 with TLS for the user `me` with the password `hush`.
    #[arg(long, conflicts_with = "no_node")]
    registries: bool,
    #[command(flatten)]
    build: Build,
}

impl Up {
    /// Runs the command.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        if !self.build.no_build && self.prepare()? != ExitCode::SUCCESS {
            return Ok(ExitCode::FAILURE);
        }
        let built = if self.no_node {
            workspace::target()
        } else {
            self.build.programs()?
        };
        if !geteuid().is_root() {
            let mut up = run::myself_as_root()?;
            up.arg("up").arg("--dir").arg(&self.dir).arg("--no-build");
            up.args(self.build.release.then_some("--release"));
            up.args(self.cluster.then_some("--cluster"));
            up.args(self.no_vmlet.then_some("--no-vmlet"));
            up.args(self.no_node.then_some("--no-node"));
            up.args(self.containerd.then_some("--containerd"));
            up.args(self.registries.then_some("--registries"));
            if self.cluster && !self.no_node {
                up.arg("--nodes").arg(self.nodes.to_string());
            }
            run::check(&mut up)?;
            return Ok(ExitCode::SUCCESS);
        }
        let options = stack::Options {
            dir: self.dir.clone(),
            built,
            cluster: self.plan(),
            registries: self.registries,
        };
        let (layout, record) = stack::bring_up(&options)?;
        if !self.no_node {
            println!("up: CRI on unix://{}", layout.cri_socket().display());
            println!("up: image vmlet.dev/hello served at {}", record.image_url());
        }
        let hint = if self.no_node {
            "kubectl get namespaces"
        } else if self.cluster {
            "kubectl get nodes"
        } else {
            "crictl info"
        };
        println!(
            "up: source {} and try {hint}",
            layout.path("env.sh").display()
        );
        Ok(ExitCode::SUCCESS)
    }

    fn plan(&self) -> Option<stack::Plan> {
        let guests = if self.no_node {
            stack::Guests::NoNode
        } else if self.no_vmlet {
            stack::Guests::Deployed
        } else if self.containerd {
            stack::Guests::Runtimes
        } else {
            stack::Guests::Vmlet
        };
        (self.cluster || self.containerd).then_some(stack::Plan {
            nodes: self.nodes,
            guests,
        })
    }

    fn prepare(&self) -> Result<ExitCode> {
        if self.no_node {
            tools::ensure(tools::API)?;
            return Ok(ExitCode::SUCCESS);
        }
        let prepared = prepare_alone()?;
        if self.cluster && prepared == ExitCode::SUCCESS {
            prepare_cluster()?;
        }
        if self.containerd && prepared == ExitCode::SUCCESS {
            prepare_containerd()?;
        }
        Ok(prepared)
    }
}

/// What clusters need besides packages and our own programs.
pub(crate) fn prepare_cluster() -> Result<()> {
    tools::ensure(tools::CLUSTER)?;
    prepare_containerd()
}

/// What containerd needs.
pub(crate) fn prepare_containerd() -> Result<()> {
    tools::ensure(tools::CONTAINERD)?;
    pod_images::pause_image()?;
    pod_images::tool_image().map(drop)
}

/// Packages, guest image, and crictl where it can be built.
fn prepare_alone() -> Result<ExitCode> {
    let installed = setup::ensure(false)?;
    if installed != ExitCode::SUCCESS {
        return Ok(installed);
    }
    guest::ensure()?;
    if tools::can_build() {
        tools::ensure(&[Tool::Crictl])?;
    } else {
        println!("up: there is no Go to build crictl with; vmletctl serves without");
    }
    Ok(ExitCode::SUCCESS)
}
