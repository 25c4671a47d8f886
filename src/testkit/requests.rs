//! What tests request of a node: sandboxes, machines and disks.
//!
//! Invariant: names are those of the pod `pod` in `default`, unless the test says others.
//! Failure: a panic.

use podspec::{ContainerId, SandboxId, VmUid};

use super::Node;
use crate::disk::DesiredDisk;
use crate::sandbox::{PodMetadata, SandboxConfig};
use crate::vm::{ContainerConfig, ContainerMetadata, ImageSpec};

impl Node {
    pub(crate) fn image(&self, name: &str) -> String {
        format!("{}/{name}", self.web.authority)
    }

    /// Number of requests that the web server received.
    pub(crate) fn requests(&self) -> usize {
        self.web.requests()
    }

    pub(crate) fn pod(&self, name: &str) -> SandboxConfig {
        SandboxConfig {
            metadata: PodMetadata {
                name: name.to_owned(),
                uid: format!("uid of {name}"),
                namespace: "default".to_owned(),
                attempt: 0,
            },
            log_directory: self.scratch.path().join("logs").display().to_string(),
            ..SandboxConfig::default()
        }
    }

    pub(crate) fn machine(&self, attempt: u32) -> ContainerConfig {
        self.machine_of("disk", attempt)
    }

    pub(crate) fn machine_of(&self, image: &str, attempt: u32) -> ContainerConfig {
        ContainerConfig {
            metadata: ContainerMetadata {
                name: "vm".to_owned(),
                attempt,
            },
            image: ImageSpec {
                image: self.image(image),
                ..ImageSpec::default()
            },
            log_path: format!("vm/{attempt}.log"),
            ..ContainerConfig::default()
        }
    }

    pub(crate) async fn ready(&self) -> SandboxId {
        self.sandboxes.run(self.pod("pod")).await.unwrap()
    }

    /// A sandbox with annotations of ours.
    pub(crate) async fn annotated(&self, name: &str, all: &[(&str, &str)]) -> SandboxId {
        let mut pod = self.pod(name);
        let named = all
            .iter()
            .map(|(k, v)| (format!("vmlet.dev/{k}"), (*v).to_owned()));
        pod.annotations.extend(named);
        self.sandboxes.run(pod).await.unwrap()
    }

    /// The disk of a virtual machine.
    pub(crate) async fn make_disk(&self, vm: VmUid) {
        let desired = DesiredDisk {
            vm,
            name: "default/vm".to_owned(),
            image: self.image("disk"),
            url: None,
            size: 0,
            linked: true,
        };
        self.disks.make(&desired, |_| {}).await.unwrap();
    }

    pub(crate) async fn created(&self) -> ContainerId {
        let sandbox = self.ready().await;
        let created = self.containers.create(&sandbox, self.machine(0));
        created.await.unwrap()
    }

    pub(crate) async fn started(&self) -> ContainerId {
        let id = self.created().await;
        self.containers.start(&id).await.unwrap();
        id
    }
}
