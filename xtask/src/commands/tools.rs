//! `tools`: the programs that only the tests need, built from pinned versions.
//!
//! Invariant: versions stand in `tests/tools/*/go.mod` and in this file, nowhere else; a second run with
//! the same versions builds nothing.
//! Failure: without Go, or without access to the module proxy, the error is Go's own.

mod go;

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::ValueEnum;

pub(crate) use self::go::can_build;
use self::go::{Family, Verb};
use crate::stamp::Stamp;
use crate::{run, workspace};

const CARGO_DENY_VERSION: &str = "0.20.2";

/// What a cluster is made of, besides our own programs.
pub(crate) const CLUSTER: &[Tool] = &[
    Tool::Containerd,
    Tool::ContainerdShimRuncV2,
    Tool::Crictl,
    Tool::Ctr,
    Tool::Etcd,
    Tool::KubeApiserver,
    Tool::KubeControllerManager,
    Tool::KubeProxy,
    Tool::KubeScheduler,
    Tool::Kubectl,
    Tool::Kubelet,
];

/// What a cluster without nodes is made of.
pub(crate) const API: &[Tool] = &[
    Tool::Etcd,
    Tool::KubeApiserver,
    Tool::KubeControllerManager,
    Tool::KubeScheduler,
    Tool::Kubectl,
];

/// Builds the programs that the tests need into target/tools/bin.
#[derive(Debug, clap::Args)]
pub(crate) struct Tools {
    /// Only these.
    names: Vec<Tool>,
    /// Only what a cluster is made of.
    #[arg(long, conflicts_with = "names")]
    cluster: bool,
}

/// A program that only the tests need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Tool {
    /// The command-line client of the Container Runtime Interface.
    Crictl,
    /// Its conformance suite.
    Critest,
    /// The checker of licences and sources of dependencies.
    CargoDeny,
    /// The container runtime of the cluster's ordinary pods.
    Containerd,
    /// What containerd starts for each of them.
    ContainerdShimRuncV2,
    /// containerd's own client, which imports images.
    Ctr,
    /// The cluster's database.
    Etcd,
    /// The cluster's API.
    KubeApiserver,
    /// Its controllers.
    KubeControllerManager,
    /// Its scheduler.
    KubeScheduler,
    /// What makes Services reachable on a node.
    KubeProxy,
    /// The cluster's command-line client.
    Kubectl,
    /// The node agent.
    Kubelet,
}

impl Tools {
    /// Runs the command.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        ensure(match self.names.as_slice() {
            [] if self.cluster => CLUSTER,
            [] => Tool::value_variants(),
            names => names,
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The part that `test` and `up` share.
pub(crate) fn ensure(tools: &[Tool]) -> Result<()> {
    fs::create_dir_all(workspace::tools_bin()).context("create target/tools/bin")?;
    for tool in tools {
        let name = tool.name();
        let stamp = tool.inputs(&name)?;
        let product = workspace::tools_bin().join(&name);
        let fresh = stamp.is_fresh(std::slice::from_ref(&product));
        if !fresh {
            println!("tools: building {name}");
            tool.build(&product)
                .with_context(|| format!("build {name}"))?;
            stamp.write()?;
        }
        println!(
            "tools: {} is {}",
            product.display(),
            if fresh { "up to date" } else { "built" }
        );
    }
    Ok(())
}

/// Where a tool comes from.
enum Source {
    /// A package of a pinned Go module.
    Go(Family, Verb, &'static str),
    /// cargo-deny, from the crate registry.
    Crate,
}

impl Tool {
    fn name(self) -> String {
        self.to_possible_value()
            .map(|value| value.get_name().to_owned())
            .unwrap_or_default()
    }

    fn source(self) -> Source {
        use Family::{Containerd, CriTools, Etcd, Kubernetes};
        match self {
            Self::Crictl => Source::Go(CriTools, Verb::Build, "cmd/crictl"),
            Self::Critest => Source::Go(CriTools, Verb::BuildTest, "cmd/critest"),
            Self::CargoDeny => Source::Crate,
            Self::Containerd => Source::Go(Containerd, Verb::Build, "cmd/containerd"),
            Self::ContainerdShimRuncV2 => {
                Source::Go(Containerd, Verb::Build, "cmd/containerd-shim-runc-v2")
            }
            Self::Ctr => Source::Go(Containerd, Verb::Build, "cmd/ctr"),
            // Its root package is the program.
            Self::Etcd => Source::Go(Etcd, Verb::Build, ""),
            Self::KubeApiserver => Source::Go(Kubernetes, Verb::Build, "cmd/kube-apiserver"),
            Self::KubeControllerManager => {
                Source::Go(Kubernetes, Verb::Build, "cmd/kube-controller-manager")
            }
            Self::KubeScheduler => Source::Go(Kubernetes, Verb::Build, "cmd/kube-scheduler"),
            Self::KubeProxy => Source::Go(Kubernetes, Verb::Build, "cmd/kube-proxy"),
            Self::Kubectl => Source::Go(Kubernetes, Verb::Build, "cmd/kubectl"),
            Self::Kubelet => Source::Go(Kubernetes, Verb::Build, "cmd/kubelet"),
        }
    }

    fn inputs(self, name: &str) -> Result<Stamp> {
        let stamp = Stamp::new(workspace::target().join(format!("tools/{name}.stamp")));
        match self.source() {
            Source::Go(family, ..) => family.inputs(stamp),
            Source::Crate => Ok(stamp.value("version", CARGO_DENY_VERSION)),
        }
    }

    fn build(self, product: &Path) -> Result<()> {
        match self.source() {
            Source::Go(family, verb, package) => family.build(verb, package, product),
            Source::Crate => cargo_deny(),
        }
    }
}

fn cargo_deny() -> Result<()> {
    let mut cargo = workspace::cargo();
    // It runs for a second: optimising it takes four times as long as compiling it.
    cargo.env("CARGO_PROFILE_DEV_DEBUG", "false").args([
        "install",
        "--quiet",
        "--debug",
        "--locked",
        "--version",
        CARGO_DENY_VERSION,
    ]);
    cargo.arg("--root").arg(workspace::target().join("tools"));
    cargo
        .arg("--target-dir")
        .arg(workspace::target().join("tools/build"));
    run::check(cargo.arg("cargo-deny"))?;
    // Two hundred megabytes that nothing needs any more.
    fs::remove_dir_all(workspace::target().join("tools/build")).context("tidy up")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_has_the_name_of_its_program() {
        assert_eq!(Tool::ContainerdShimRuncV2.name(), "containerd-shim-runc-v2");
        for tool in Tool::value_variants() {
            if let Source::Go(_, _, package) = tool.source() {
                let last = package.rsplit('/').next().unwrap_or_default();
                assert!(last.is_empty() || last == tool.name(), "{package}");
            }
        }
    }
}
