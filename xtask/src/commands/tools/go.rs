//! The tools that are written in Go: one module of ours per family pins the version of each.
//!
//! Invariant: the version in `go.mod` is what the program reports about itself; go.sum pins every
//! byte.
//! Failure: without Go, or without access to the module proxy, the error is Go's own.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::minor::Minor;
use crate::stamp::Stamp;
use crate::{run, workspace};

/// Programs that come from one module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    /// crictl and critest.
    CriTools,
    /// containerd, its shim and its client.
    Containerd,
    /// etcd.
    Etcd,
    /// Helm.
    Helm,
    /// The control plane, kubelet and kubectl, of this version.
    Kubernetes(Minor),
    /// Our checker of alerts and dashboards, which uses Prometheus's parsers.
    Prometheus,
    /// Our driver of volumes that are directories, by the interface of storage systems.
    CsiDriver,
    /// What makes volumes of claims by such a driver.
    CsiProvisioner,
    /// What takes snapshots of claims by such a driver, and their controller.
    CsiSnapshotter,
    /// A server that speaks S3, for backups.
    Versitygw,
}

/// How Go makes the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    /// From a package `main`.
    Build,
    /// From the tests of a package.
    BuildTest,
}

/// Whether these tools can be built here.
pub(crate) fn can_build() -> bool {
    run::capture(run::command("go").arg("version")).is_ok_and(|output| output.status.success())
}

impl Family {
    /// Adds what the family's programs are made from.
    pub(crate) fn inputs(self, stamp: Stamp) -> Result<Stamp> {
        let folder = self.folder();
        let stamp = stamp
            .file(&folder.join("go.mod"))?
            .file(&folder.join("go.sum"))?;
        let stamp = match self {
            Self::Prometheus | Self::CsiDriver => stamp.file(&folder.join("main.go"))?,
            _ => stamp,
        };
        Ok(stamp.value("flags", &self.flags("").join(" ")))
    }

    /// Builds `package` of the family's module (its root package when empty).
    pub(crate) fn build(self, verb: Verb, package: &str, product: &Path) -> Result<()> {
        let version = self.version()?;
        let mut go = run::command("go");
        // A program without libc runs in every container and on every node.
        go.current_dir(self.folder()).env("CGO_ENABLED", "0");
        match verb {
            Verb::Build => go.arg("build"),
            Verb::BuildTest => go.args(["test", "-c"]),
        };
        go.args(["-mod=mod", "-trimpath"]);
        go.args(self.flags(&version)).arg("-o").arg(product);
        go.arg(match package {
            "" => self.module().to_owned(),
            // The program is ours, in the folder itself.
            "check-rules" | "csi-files" => ".".to_owned(),
            package => format!("{}/{package}", self.module()),
        });
        run::check(&mut go)
    }

    fn folder(self) -> PathBuf {
        workspace::root().join("tests/tools").join(match self {
            Self::CriTools => "cri",
            Self::Containerd => "containerd",
            Self::Etcd => "etcd",
            Self::Helm => "helm",
            Self::Kubernetes(minor) => minor.module(),
            Self::Prometheus => "prometheus",
            Self::CsiDriver | Self::CsiProvisioner | Self::CsiSnapshotter => "csi",
            Self::Versitygw => "s3",
        })
    }

    fn module(self) -> &'static str {
        match self {
            Self::CriTools => "sigs.k8s.io/cri-tools",
            Self::Containerd => "github.com/containerd/containerd/v2",
            Self::Etcd => "go.etcd.io/etcd/server/v3",
            Self::Helm => "helm.sh/helm/v4",
            Self::Kubernetes(_) => "k8s.io/kubernetes",
            Self::Prometheus => "github.com/prometheus/prometheus",
            Self::CsiDriver => "github.com/container-storage-interface/spec",
            Self::CsiProvisioner => "github.com/kubernetes-csi/external-provisioner/v6",
            Self::CsiSnapshotter => "github.com/kubernetes-csi/external-snapshotter/v8",
            Self::Versitygw => "github.com/versity/versitygw",
        }
    }

    /// Without symbols, without what needs C headers, and with the version that programs report.
    fn flags(self, version: &str) -> Vec<String> {
        let stamp = match self {
            Self::CriTools => {
                let number = version.trim_start_matches('v');
                format!(" -X sigs.k8s.io/cri-tools/pkg/version.Version={number}")
            }
            Self::Containerd => {
                format!(" -X github.com/containerd/containerd/v2/version.Version={version}")
            }
            Self::Etcd | Self::Prometheus | Self::CsiDriver => String::new(),
            Self::CsiProvisioner | Self::CsiSnapshotter => format!(" -X main.version={version}"),
            Self::Versitygw => format!(" -X main.Version={version}"),
            Self::Helm => format!(" -X helm.sh/helm/v4/internal/version.version={version}"),
            Self::Kubernetes(_) => kubernetes_version(version),
        };
        let mut flags = vec!["-ldflags".to_owned(), format!("-s -w{stamp}")];
        if self == Self::Containerd {
            flags.extend(["-tags", "no_btrfs no_devmapper"].map(str::to_owned));
        }
        flags
    }

    fn version(self) -> Result<String> {
        let path = self.folder().join("go.mod");
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let module = self.module();
        required_version(&text, module)
            .map(str::to_owned)
            .with_context(|| format!("{} does not require {module}", path.display()))
    }
}

/// kubelet, the API server and kubectl compare these.
fn kubernetes_version(version: &str) -> String {
    let mut numbers = version.trim_start_matches('v').split('.');
    let mut next = || numbers.next().unwrap_or_default();
    let fields = [
        ("gitVersion", version),
        ("gitMajor", next()),
        ("gitMinor", next()),
        ("gitTreeState", "clean"),
    ];
    fields
        .map(|(field, value)| format!(" -X k8s.io/component-base/version.{field}={value}"))
        .concat()
}

/// The version, with its `v`, that `go_mod` requires of `module`.
fn required_version<'a>(go_mod: &'a str, module: &str) -> Option<&'a str> {
    go_mod.lines().find_map(|line| {
        let mut words = line.trim_start_matches("require").split_whitespace();
        (words.next() == Some(module)).then(|| words.next())?
    })
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn the_version_is_the_one_of_the_require_line() {
        let text = "module x\n\ngo 1.26.2\n\nrequire sigs.k8s.io/cri-tools v1.36.0\n";
        let module = "sigs.k8s.io/cri-tools";
        assert_eq!(required_version(text, module), Some("v1.36.0"));
        let text =
            "require (\n\tk8s.io/kubernetes v1.36.3\n)\nreplace k8s.io/api => k8s.io/api v1\n";
        assert_eq!(required_version(text, "k8s.io/kubernetes"), Some("v1.36.3"));
        assert_eq!(required_version("module x\n", module), None);
    }

    #[test]
    fn the_kubernetes_version_is_parsed_from_its_parts() {
        let flags = kubernetes_version("v1.36.3");
        assert!(
            flags.contains("version.gitMajor=1 ")
                && flags.contains("version.gitMinor=36 ")
                && flags.contains("version.gitVersion=v1.36.3 "),
            "{flags}"
        );
    }

    #[test]
    fn every_family_pins_its_version() {
        for family in [
            Family::CriTools,
            Family::Containerd,
            Family::Etcd,
            Family::Helm,
            Family::Prometheus,
            Family::CsiDriver,
            Family::CsiProvisioner,
            Family::CsiSnapshotter,
            Family::Versitygw,
        ] {
            assert!(family.version().unwrap().starts_with('v'));
        }
    }

    #[test]
    fn each_minor_version_pins_a_patch_version_and_all_staging_modules_of_it() {
        for minor in Minor::value_variants() {
            let family = Family::Kubernetes(*minor);
            let name = minor.to_possible_value().unwrap();
            let version = family.version().unwrap();
            let patch = version.strip_prefix(&format!("v{}.", name.get_name()));
            assert!(patch.is_some(), "{version} is not a {name:?}");
            let staging = version.replacen("v1", "v0", 1);
            let text = fs::read_to_string(family.folder().join("go.mod")).unwrap();
            let replaced: Vec<_> = text.lines().filter(|line| line.contains("=>")).collect();
            assert!(replaced.len() > 30, "{replaced:?}");
            for line in replaced {
                assert!(line.ends_with(&format!(" {staging}")), "{line}");
            }
        }
    }
}
