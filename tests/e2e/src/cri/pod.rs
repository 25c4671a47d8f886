//! The pods that tests run.
//!
//! Invariant: requests look like kubelet's: metadata, labels, a log directory.
//! Failure: none.

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::{fs, io};

use crate::v1;

/// What a guest of the small image needs.
const SMALL_MIB: u32 = 128;

/// What a test pod looks like.
#[derive(Debug, Clone, Default)]
pub struct PodOptions {
    /// Pod name; also its UID.
    pub name: String,
    /// Where logs go; none when empty.
    pub logs: PathBuf,
    /// Annotations of the pod.
    pub annotations: BTreeMap<String, String>,
    /// Ports of the node and of the guest, TCP.
    pub ports: Vec<(i32, i32)>,
    /// Memory of the guest; without it as much as the small image needs.
    pub memory_mib: Option<u32>,
    /// The pod's cgroup.
    pub cgroup_parent: String,
    /// Environment of the container.
    pub environment: Vec<(String, String)>,
    /// Mounts of the container: read-only, path on the node and in the guest.
    pub mounts: Vec<(PathBuf, String)>,
    /// Mounts of the container that the guest may write to.
    pub writable: Vec<(PathBuf, String)>,
}

impl PodOptions {
    /// A pod of this name that logs below the stack's directory.
    pub fn named(name: &str, stack: &crate::Stack) -> Self {
        let logs = stack.dir().join("logs").join(name);
        Self {
            name: name.to_owned(),
            logs,
            ..Self::default()
        }
    }

    /// The sandbox part of the request.
    pub fn sandbox(&self) -> v1::PodSandboxConfig {
        let metadata = v1::PodSandboxMetadata {
            name: self.name.clone(),
            uid: format!("uid-{}", self.name),
            namespace: "default".to_owned(),
            attempt: 0,
        };
        let port = |(host, container): &(i32, i32)| v1::PortMapping {
            protocol: v1::Protocol::Tcp.into(),
            host_port: *host,
            container_port: *container,
            ..v1::PortMapping::default()
        };
        v1::PodSandboxConfig {
            metadata: Some(metadata),
            hostname: self.name.clone(),
            log_directory: self.logs.display().to_string(),
            labels: [("io.kubernetes.pod.name".to_owned(), self.name.clone())].into(),
            annotations: self.annotations.clone(),
            port_mappings: self.ports.iter().map(port).collect(),
            linux: Some(v1::LinuxPodSandboxConfig {
                cgroup_parent: self.cgroup_parent.clone(),
                ..v1::LinuxPodSandboxConfig::default()
            }),
            ..v1::PodSandboxConfig::default()
        }
    }

    /// The container part of the request.
    pub fn container(&self, image: &str, attempt: u32) -> v1::ContainerConfig {
        let limits = v1::LinuxContainerResources {
            memory_limit_in_bytes: i64::from(self.memory_mib.unwrap_or(SMALL_MIB)) << 20,
            ..Default::default()
        };
        v1::ContainerConfig {
            metadata: Some(v1::ContainerMetadata {
                name: "vm".to_owned(),
                attempt,
            }),
            image: Some(v1::ImageSpec {
                image: image.to_owned(),
                ..v1::ImageSpec::default()
            }),
            log_path: format!("vm/{attempt}.log"),
            envs: self.environment.iter().map(variable).collect(),
            mounts: self.mounts(),
            linux: Some(v1::LinuxContainerConfig {
                resources: Some(limits),
                ..v1::LinuxContainerConfig::default()
            }),
            ..v1::ContainerConfig::default()
        }
    }

    fn mounts(&self) -> Vec<v1::Mount> {
        let read_only = self.mounts.iter().map(|mounted| mount(mounted, true));
        let writable = self.writable.iter().map(|mounted| mount(mounted, false));
        read_only.chain(writable).collect()
    }

    /// Makes a volume with one file as kubelet makes one for a ConfigMap, and mounts it at `path`.
    pub fn mount_config(
        &mut self,
        stack: &crate::Stack,
        path: &str,
        file: &str,
        text: &str,
    ) -> io::Result<()> {
        let pods = stack.dir().join("kubelet/pods");
        let volume = pods
            .join(format!("uid-{}", self.name))
            .join("volumes/kubernetes.io~configmap/config");
        let version = volume.join("..version");
        fs::create_dir_all(&version)?;
        fs::write(version.join(file), text)?;
        symlink("..version", volume.join("..data"))?;
        symlink(format!("..data/{file}"), volume.join(file))?;
        self.mounts.push((volume, path.to_owned()));
        Ok(())
    }

    /// Changes the file of a volume that [`Self::mount_config`] has made, as kubelet does.
    pub fn update_config(&self, file: &str, text: &str) -> io::Result<()> {
        let (volume, _) = self.mounts.first().ok_or(io::ErrorKind::NotFound)?;
        let version = volume.join("..next");
        fs::create_dir_all(&version)?;
        fs::write(version.join(file), text)?;
        let link = volume.join("..data_tmp");
        symlink("..next", &link)?;
        fs::rename(link, volume.join("..data"))
    }

    /// Where the log of a container ends up.
    pub fn log(&self, attempt: u32) -> PathBuf {
        self.logs.join(format!("vm/{attempt}.log"))
    }
}

fn variable((key, value): &(String, String)) -> v1::KeyValue {
    v1::KeyValue {
        key: key.clone(),
        value: value.clone().into(),
    }
}

fn mount((host_path, container_path): &(PathBuf, String), readonly: bool) -> v1::Mount {
    v1::Mount {
        host_path: host_path.display().to_string(),
        container_path: container_path.clone(),
        readonly,
        ..v1::Mount::default()
    }
}
