//! A storage system for a cluster: the provisioner, the snapshotter and the snapshot controller of Kubernetes, and a
//! driver of ours whose volumes are directories (`tests/tools/csi`).
//!
//! Invariant: the programs run in the namespaces of the first node, where kubelet finds the driver; the definitions are
//! those of the pinned module.
//! Failure: a program that ended is named with its log, which is among the logs of the cluster.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::cluster::Cluster;
use crate::program;
use crate::wait::eventually;

/// Name of the driver, in `tests/tools/csi/main.go`.
const DRIVER: &str = "files.csi.vmlet.dev";
/// Storage class, and class of snapshots, of the driver.
pub const CLASS: &str = "files";
/// The folders of kubelet, as the node sees them.
const PLUGINS: &str = "/var/lib/kubelet/plugins/csi-files";
const REGISTRY: &str = "/var/lib/kubelet/plugins_registry";
/// The module with the definitions.
const DEFINITIONS: &str = "github.com/kubernetes-csi/external-snapshotter/client/v8";
/// Kinds that it defines.
const KINDS: [&str; 3] = [
    "volumesnapshots",
    "volumesnapshotcontents",
    "volumesnapshotclasses",
];
const READY: Duration = Duration::from_secs(120);

/// The programs of a storage system, which end with it.
#[derive(Debug)]
pub struct Storage {
    programs: Vec<(&'static str, Child)>,
    dir: PathBuf,
}

impl Storage {
    /// Installs the definitions and starts the programs; when this returns, claims of the class [`CLASS`] get volumes.
    pub async fn start(cluster: &Cluster) -> Result<Self> {
        for definition in definitions()? {
            cluster.apply(&fs::read_to_string(&definition)?)?;
        }
        for kind in KINDS {
            let name = format!("crd/{kind}.snapshot.storage.k8s.io");
            cluster.await_condition(&name, "condition=Established", READY)?;
        }
        let dir = cluster.stack().dir().join("csi");
        fs::create_dir_all(&dir)?;
        let mut storage = Self {
            programs: Vec::new(),
            dir,
        };
        let node = cluster.stack().var("VMLET_CLUSTER_NODE")?;
        let dir = storage.dir.to_string_lossy().into_owned();
        storage.run(cluster, "csi-files", &[&dir, node, PLUGINS, REGISTRY])?;
        let socket = format!("--csi-address={PLUGINS}/csi.sock");
        let kubeconfig = format!("--kubeconfig={}", cluster.stack().var("KUBECONFIG")?);
        let sidecar = [socket.as_str(), &kubeconfig, "--retry-interval-max=5s"];
        storage.run(cluster, "csi-provisioner", &sidecar)?;
        storage.run(cluster, "csi-snapshotter", &sidecar)?;
        let alone = [kubeconfig.as_str(), "--retry-interval-max=5s"];
        storage.run(cluster, "snapshot-controller", &alone)?;
        cluster.apply(&classes().to_string())?;
        eventually(READY, "kubelet knows the driver", || async {
            let known = cluster.get_json(&["csinode", node])?;
            ensure!(known.to_string().contains(DRIVER), "{known}");
            storage.alive()
        })
        .await?;
        Ok(storage)
    }

    fn run(&mut self, cluster: &Cluster, name: &'static str, arguments: &[&str]) -> Result<()> {
        let log = cluster.stack().dir().join(format!("log/{name}.log"));
        let log = File::create(&log).with_context(|| log.display().to_string())?;
        let mut command = cluster.stack().command_inside(name)?;
        command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let child = command.spawn().with_context(|| format!("start {name}"))?;
        self.programs.push((name, child));
        Ok(())
    }

    /// An error if one of the programs has ended.
    fn alive(&self) -> Result<()> {
        for (name, child) in &self.programs {
            let process = Path::new("/proc").join(child.id().to_string());
            let status = fs::read_to_string(process.join("stat")).unwrap_or_default();
            ensure!(
                !status.is_empty() && !status.contains(") Z "),
                "{name} ended"
            );
        }
        Ok(())
    }

    /// Names of the volumes, or of the `snapshots`, that the driver has.
    pub fn names(&self, kind: &str) -> Result<Vec<String>> {
        let folder = self.dir.join(kind);
        let entries = fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
        entries
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect()
    }

    /// Ends the programs. No pod may use a volume any more: its mount would stay.
    pub fn stop(mut self) -> Result<()> {
        self.alive()?;
        self.end();
        Ok(())
    }

    fn end(&mut self) {
        for (_, mut child) in self.programs.drain(..) {
            // One that has ended needs no signal.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        self.end();
    }
}

/// The driver with its classes. The storage class names that of snapshots, which is no default.
fn classes() -> serde_json::Value {
    json!({ "apiVersion": "v1", "kind": "List", "items": [
        {
            "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": { "name": DRIVER },
            "spec": { "attachRequired": false, "podInfoOnMount": false, "fsGroupPolicy": "None" },
        },
        {
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": {
                "name": CLASS, "annotations": { "vmlet.dev/volume-snapshot-class": CLASS },
            },
            "provisioner": DRIVER,
        },
        {
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass",
            "metadata": { "name": CLASS }, "driver": DRIVER, "deletionPolicy": "Delete",
        },
    ]})
}

/// The files with the definitions of snapshots, in the folder of the pinned module.
fn definitions() -> Result<Vec<PathBuf>> {
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools/csi");
    let mut go = Command::new("go");
    go.current_dir(module)
        .args(["mod", "download", "-json", DEFINITIONS]);
    let output = program::output(&mut go)?;
    ensure!(output.status.success(), "{output:?}");
    let found: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let folder = found["Dir"].as_str().context("no folder of the module")?;
    let files = KINDS.map(|kind| {
        let file = format!("config/crd/snapshot.storage.k8s.io_{kind}.yaml");
        Path::new(folder).join(file)
    });
    Ok(files.to_vec())
}
