//! `tools`: the programs that only the tests need, built from pinned versions.
//!
//! Invariant: versions stand in `tests/tools/*/go.mod` and in this file, nowhere else; a second run
//! with the same versions builds nothing.
//! Failure: without Go, or without access to the module proxy, the error is Go's own.

mod go;
mod minor;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::ValueEnum;

pub(crate) use self::go::can_build;
use self::go::{Family, Verb};
pub(crate) use self::minor::Minor;
use crate::stamp::Stamp;
use crate::{run, workspace};

const CARGO_DENY_VERSION: &str = "0.20.2";
const CARGO_FUZZ_VERSION: &str = "0.13.2";
const CARGO_LLVM_COV_VERSION: &str = "0.9.1";
const CARGO_MUTANTS_VERSION: &str = "27.1.0";

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

/// What ordinary containers need.
pub(crate) const CONTAINERD: &[Tool] = &[
    Tool::Containerd,
    Tool::ContainerdShimRuncV2,
    Tool::Crictl,
    Tool::Ctr,
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
    /// Programs to build [default: those that the tests need].
    names: Vec<Tool>,
    /// Only the programs of a cluster.
    #[arg(long, conflicts_with = "names")]
    cluster: bool,
}

/// A storage system for claims.
pub(crate) const STORAGE: &[Tool] = &[
    Tool::CsiFiles,
    Tool::CsiProvisioner,
    Tool::CsiSnapshotter,
    Tool::SnapshotController,
];

/// A program that only the tests need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Tool {
    /// Command-line client of the Container Runtime Interface.
    Crictl,
    /// Conformance suite of the Container Runtime Interface.
    Critest,
    /// Checker of the licences and sources of dependencies.
    CargoDeny,
    /// Driver of the fuzzer. Built only by name, and by `fuzz`.
    CargoFuzz,
    /// Runner of tests whose lines are counted. Built only by name, and by `coverage`.
    CargoLlvmCov,
    /// Mutation tester. Built only by name, and by `mutants`.
    CargoMutants,
    /// Container runtime of the ordinary pods in the cluster.
    Containerd,
    /// Shim that containerd starts for each ordinary pod.
    ContainerdShimRuncV2,
    /// Client of containerd, which imports images.
    Ctr,
    /// Database of the cluster.
    Etcd,
    /// API server of the cluster.
    KubeApiserver,
    /// Controllers of the cluster.
    KubeControllerManager,
    /// Scheduler of the cluster.
    KubeScheduler,
    /// Installer of a cluster. Built only by name, and for the machine with a cluster.
    Kubeadm,
    /// Proxy that makes Services reachable on a node.
    KubeProxy,
    /// Command-line client of the cluster.
    Kubectl,
    /// Node agent of the cluster.
    Kubelet,
    /// Checker of alerts and of the queries of dashboards.
    CheckRules,
    /// Driver of the Container Storage Interface whose volumes are directories. Built only by name, and for the
    /// tests of claims.
    CsiFiles,
    /// Maker of volumes for claims, on demand as well.
    CsiProvisioner,
    /// Taker of snapshots of claims, on demand as well.
    CsiSnapshotter,
    /// Controller of snapshots of claims, on demand as well.
    SnapshotController,
    /// Installer of charts. Built only by name, and for the tests of the chart.
    Helm,
    /// Server that speaks S3. Built only by name, and for the tests of backups to a bucket.
    Versitygw,
}

impl Tools {
    /// Runs the command.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        match self.names.as_slice() {
            [] if self.cluster => ensure(CLUSTER),
            [] => ensure(&suite()),
            names => ensure(names),
        }?;
        Ok(ExitCode::SUCCESS)
    }
}

/// What the test suite needs.
fn suite() -> Vec<Tool> {
    let mut tools = Tool::value_variants().to_vec();
    tools.retain(|tool| {
        let by_name = [
            Tool::CargoFuzz,
            Tool::CargoLlvmCov,
            Tool::CargoMutants,
            Tool::Helm,
            Tool::Kubeadm,
            Tool::Versitygw,
        ];
        !by_name.contains(tool) && !STORAGE.contains(tool)
    });
    tools
}

/// The part that `test` and `up` share.
pub(crate) fn ensure(tools: &[Tool]) -> Result<()> {
    ensure_with(Minor::default(), tools)
}

/// Builds `tools`, those of Kubernetes in this version.
pub(crate) fn ensure_with(kubernetes: Minor, tools: &[Tool]) -> Result<()> {
    for tool in tools {
        let name = tool.name();
        let stamp = tool.inputs(kubernetes)?;
        let bin = tool.folder(kubernetes).join("bin");
        fs::create_dir_all(&bin).with_context(|| format!("create {}", bin.display()))?;
        let product = tool.product(kubernetes);
        let fresh = stamp.is_fresh(std::slice::from_ref(&product));
        if !fresh {
            println!("tools: building {name}");
            tool.build(kubernetes, &product)
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
    /// A program from the crate registry, at this version.
    Crate(&'static str),
}

impl Tool {
    /// The name of its program.
    pub(crate) fn name(self) -> String {
        self.to_possible_value()
            .map(|value| value.get_name().to_owned())
            .unwrap_or_default()
    }

    /// The program, of this version if it belongs to Kubernetes. `ensure_with` builds it.
    pub(crate) fn product(self, kubernetes: Minor) -> PathBuf {
        self.folder(kubernetes).join("bin").join(self.name())
    }

    /// The folder of its stamp, with the program in `bin`.
    fn folder(self, kubernetes: Minor) -> PathBuf {
        match self.source(kubernetes) {
            Source::Go(Family::Kubernetes(minor), ..) => minor.folder(),
            _ => workspace::tools(),
        }
    }

    fn source(self, minor: Minor) -> Source {
        use Family::{
            Containerd, CriTools, CsiDriver, CsiProvisioner, CsiSnapshotter, Etcd, Helm,
            Prometheus, Versitygw,
        };
        let kubernetes = Family::Kubernetes(minor);
        match self {
            Self::Crictl => Source::Go(CriTools, Verb::Build, "cmd/crictl"),
            Self::Critest => Source::Go(CriTools, Verb::BuildTest, "cmd/critest"),
            Self::CargoDeny => Source::Crate(CARGO_DENY_VERSION),
            Self::CargoFuzz => Source::Crate(CARGO_FUZZ_VERSION),
            Self::CargoLlvmCov => Source::Crate(CARGO_LLVM_COV_VERSION),
            Self::CargoMutants => Source::Crate(CARGO_MUTANTS_VERSION),
            Self::Containerd => Source::Go(Containerd, Verb::Build, "cmd/containerd"),
            Self::ContainerdShimRuncV2 => {
                Source::Go(Containerd, Verb::Build, "cmd/containerd-shim-runc-v2")
            }
            Self::Ctr => Source::Go(Containerd, Verb::Build, "cmd/ctr"),
            // Its root package is the program.
            Self::Etcd => Source::Go(Etcd, Verb::Build, ""),
            Self::KubeApiserver => Source::Go(kubernetes, Verb::Build, "cmd/kube-apiserver"),
            Self::KubeControllerManager => {
                Source::Go(kubernetes, Verb::Build, "cmd/kube-controller-manager")
            }
            Self::KubeScheduler => Source::Go(kubernetes, Verb::Build, "cmd/kube-scheduler"),
            Self::KubeProxy => Source::Go(kubernetes, Verb::Build, "cmd/kube-proxy"),
            Self::Kubeadm => Source::Go(kubernetes, Verb::Build, "cmd/kubeadm"),
            Self::Kubectl => Source::Go(kubernetes, Verb::Build, "cmd/kubectl"),
            Self::Kubelet => Source::Go(kubernetes, Verb::Build, "cmd/kubelet"),
            Self::CheckRules => Source::Go(Prometheus, Verb::Build, "check-rules"),
            Self::CsiFiles => Source::Go(CsiDriver, Verb::Build, "csi-files"),
            Self::CsiProvisioner => Source::Go(CsiProvisioner, Verb::Build, "cmd/csi-provisioner"),
            Self::CsiSnapshotter => Source::Go(CsiSnapshotter, Verb::Build, "cmd/csi-snapshotter"),
            Self::SnapshotController => {
                Source::Go(CsiSnapshotter, Verb::Build, "cmd/snapshot-controller")
            }
            Self::Helm => Source::Go(Helm, Verb::Build, "cmd/helm"),
            Self::Versitygw => Source::Go(Versitygw, Verb::Build, "cmd/versitygw"),
        }
    }

    fn inputs(self, kubernetes: Minor) -> Result<Stamp> {
        let name = format!("{}.stamp", self.name());
        let stamp = Stamp::new(self.folder(kubernetes).join(name));
        match self.source(kubernetes) {
            Source::Go(family, ..) => family.inputs(stamp),
            Source::Crate(version) => Ok(stamp.value("version", version)),
        }
    }

    fn build(self, kubernetes: Minor, product: &Path) -> Result<()> {
        match self.source(kubernetes) {
            Source::Go(family, verb, package) => family.build(verb, package, product),
            Source::Crate(version) => cargo_install(&self.name(), version),
        }
    }
}

fn cargo_install(name: &str, version: &str) -> Result<()> {
    let build = workspace::target().join("tools/build");
    let mut cargo = workspace::cargo();
    // It runs for a second: optimising it takes four times as long as compiling it.
    cargo.env("CARGO_PROFILE_DEV_DEBUG", "false");
    // `--force`: a program without a stamp is of another version, or of a build that was cut.
    cargo.args(["install", "--quiet", "--debug", "--locked", "--force"]);
    cargo.args(["--version", version, "--root"]);
    cargo.arg(workspace::target().join("tools"));
    run::check(cargo.arg("--target-dir").arg(&build).arg(name))?;
    // Two hundred megabytes that nothing needs any more.
    fs::remove_dir_all(build).context("tidy up")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_has_the_name_of_its_program() {
        assert_eq!(Tool::ContainerdShimRuncV2.name(), "containerd-shim-runc-v2");
        for tool in Tool::value_variants() {
            if let Source::Go(_, _, package) = tool.source(Minor::default()) {
                let last = package.rsplit('/').next().unwrap_or_default();
                assert!(last.is_empty() || last == tool.name(), "{package}");
            }
        }
    }

    #[test]
    fn only_programs_of_kubernetes_are_in_the_folder_of_an_older_version() {
        let bin = workspace::tools_bin();
        assert_eq!(Tool::Kubelet.product(Minor::default()), bin.join("kubelet"));
        assert_eq!(Tool::Etcd.product(Minor::V1_36), bin.join("etcd"));
        let older = workspace::tools().join("kubernetes-1.36");
        assert_eq!(
            Tool::Kubelet.product(Minor::V1_36),
            older.join("bin/kubelet")
        );
        assert_eq!(Tool::Kubelet.folder(Minor::V1_36), older);
    }
}
