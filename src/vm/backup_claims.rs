//! Containers that have a claim mounted, in which the node keeps backups.
//!
//! Invariant: such a container boots nothing. Its claim is a volume of its own pod, which ends with no pod, and can be written
//! to; it serves machines of its own namespace, and only while it runs.
//! Failure: [`BackupClaimError`] when the container is made; afterwards there is no mount.

use std::path::Path;

use podspec::names::BACKUP_TARGET_MOUNT;
use podspec::{Instance, Role};
use uuid::Uuid;

use super::error::Result;
use super::model::{Container, ContainerConfig};
use super::service::Containers;
use super::state::Phase;
use crate::backup::{Claims, MountPoint};
use crate::platform::Platform;
use crate::sandbox::Sandbox;

/// A container that cannot have the claim of a target of backups.
#[derive(Debug, thiserror::Error)]
pub enum BackupClaimError {
    /// Nothing is mounted there.
    #[error(
        "nothing is mounted at {BACKUP_TARGET_MOUNT}: mount the claim there, with volumeMode Filesystem"
    )]
    NotMounted,
    /// Backups are written.
    #[error("the claim is mounted read-only at {BACKUP_TARGET_MOUNT}: mount it for writing")]
    ReadOnly,
    /// A directory of the node, or a volume that goes with its pod.
    #[error(
        "{0} is no volume of this pod that a claim can be: a volume of type hostPath, or one that ends with its pod, cannot \
         have backups"
    )]
    NoVolume(String),
}

/// Where the container of a pod has the claim that it names.
fn mount_point(
    root: &Path,
    pod_uid: &str,
    config: &ContainerConfig,
) -> Result<MountPoint, BackupClaimError> {
    let mut mounts = config.mounts.iter();
    let mount = mounts.find(|mount| mount.container_path == BACKUP_TARGET_MOUNT);
    let mount = mount.ok_or(BackupClaimError::NotMounted)?;
    if mount.readonly {
        return Err(BackupClaimError::ReadOnly);
    }
    let path = &mount.host_path;
    let found = MountPoint::of_volume(root, path, pod_uid);
    found.ok_or_else(|| BackupClaimError::NoVolume(path.chars().take(256).collect()))
}

impl<P: Platform> Containers<P> {
    /// Refuses a container whose claim could have no backups.
    pub(in crate::vm) fn check_backup_claim(
        &self,
        sandbox: &Sandbox,
        config: &ContainerConfig,
        instance: &Instance,
    ) -> Result<()> {
        if instance.role == Role::BackupTarget {
            let root = &self.settings.shares.root;
            mount_point(root, &sandbox.config.metadata.uid, config)?;
        }
        Ok(())
    }

    fn claim_of(&self, row: &Container, claim: Uuid, namespace: &str) -> Option<MountPoint> {
        let instance = &row.spec.instance;
        let has_claim = instance.role == Role::BackupTarget && instance.backup_claim == Some(claim);
        if row.phase != Phase::Running || !has_claim {
            return None;
        }
        let pod = &self.sandbox_of(row)?.config.metadata;
        if pod.namespace != namespace {
            return None;
        }
        mount_point(&self.settings.shares.root, &pod.uid, &row.spec.config).ok()
    }
}

impl<P: Platform> Claims for Containers<P> {
    fn mounted(&self, claim: Uuid, namespace: &str) -> Option<MountPoint> {
        let all = self.parts.table.all();
        let mut found = all.iter();
        found.find_map(|row| self.claim_of(row, claim, namespace))
    }
}

#[cfg(test)]
mod tests {
    use libvirt::Hypervisor as _;

    use super::*;
    use crate::testkit::Node;
    use crate::vm::{Error, ImageSpec, Mount};

    const CLAIM: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b01";
    const OTHER: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b02";
    /// Of the pod that [`Node::annotated`] makes.
    const VOLUME: &str = "/var/lib/kubelet/pods/uid of pod/volumes/kubernetes.io~csi/pvc/mount";
    const ROLE: (&str, &str) = ("role", "backup-target");

    fn with(node: &Node, host_path: &str, readonly: bool) -> ContainerConfig {
        let mount = Mount {
            container_path: BACKUP_TARGET_MOUNT.to_owned(),
            host_path: host_path.to_owned(),
            readonly,
            ..Mount::default()
        };
        ContainerConfig {
            mounts: vec![mount],
            image: ImageSpec {
                image: podspec::names::NO_IMAGE.to_owned(),
                ..ImageSpec::default()
            },
            ..node.machine(0)
        }
    }

    fn uid(text: &str) -> Uuid {
        text.parse().unwrap()
    }

    #[tokio::test]
    async fn a_claim_is_reached_by_its_namespace_while_its_container_runs() {
        let node = Node::new().await;
        let annotations = [ROLE, ("backup-target-claim", CLAIM)];
        let sandbox = node.annotated("pod", &annotations).await;
        let config = with(&node, VOLUME, false);
        let id = node.containers.create(&sandbox, config).await.unwrap();
        let mounted = |claim, namespace| node.containers.mounted(uid(claim), namespace);
        assert_eq!(mounted(CLAIM, "default"), None);
        node.containers.start(&id).await.unwrap();
        let found = mounted(CLAIM, "default").unwrap();
        let below = "uid of pod/volumes/kubernetes.io~csi/pvc/mount";
        assert_eq!(found.mount, Path::new(below));
        assert_eq!(mounted(CLAIM, "other"), None);
        assert_eq!(mounted(OTHER, "default"), None);
        let domains = node.hypervisor.list().await.unwrap();
        assert!(domains.is_empty(), "nothing boots: {domains:?}");
        let grace = std::time::Duration::from_secs(1);
        node.containers.stop(&id, grace).await.unwrap();
        assert_eq!(mounted(CLAIM, "default"), None);
    }

    #[tokio::test]
    async fn a_container_that_says_nothing_of_a_target_is_none() {
        let node = Node::new().await;
        let sandbox = node.annotated("pod", &[("role", "provision")]).await;
        let config = ContainerConfig {
            mounts: with(&node, VOLUME, false).mounts,
            ..node.machine(0)
        };
        let id = node.containers.create(&sandbox, config).await.unwrap();
        node.containers.start(&id).await.unwrap();
        assert_eq!(node.containers.mounted(uid(CLAIM), "default"), None);
    }

    #[tokio::test]
    async fn a_volume_that_can_have_no_backups_is_refused_in_words() {
        let node = Node::new().await;
        let annotations = [ROLE, ("backup-target-claim", CLAIM)];
        let sandbox = node.annotated("pod", &annotations).await;
        let none = ContainerConfig {
            mounts: Vec::new(),
            ..with(&node, VOLUME, false)
        };
        let empty = VOLUME.replace("csi", "empty-dir");
        for (config, words) in [
            (none, "nothing is mounted"),
            (with(&node, VOLUME, true), "read-only"),
            (with(&node, "/etc", false), "/etc is no volume of this pod"),
            (with(&node, &empty, false), "ends with its pod"),
        ] {
            let refused = node.containers.create(&sandbox, config).await.unwrap_err();
            assert!(matches!(refused, Error::BackupClaim(_)), "{refused}");
            assert!(refused.to_string().contains(words), "{refused}");
        }
    }
}
