//! The volume by which a node gets the guest data of a machine.
//!
//! Invariant: kubelet, which may read what pods of its node mount, brings a Secret to the node:
//! no program of ours there reads Secrets by itself. Only the key that is used is in the volume.
//! Failure: a Secret or key that was removed since it was checked keeps the pod from starting;
//! kubelet reports it in the pod's events and tries again.

use k8s_openapi::api::core::v1::{KeyToPath, SecretVolumeSource, Volume, VolumeMount};
use podspec::{Source, SourceKind};

use super::Plan;
use crate::reconcile::vm::prerequisites::DEFAULT_KEY;

/// Name of the volume, unless a disk of the machine has it.
const NAME: &str = "vmlet-user-data";
/// Nothing but the daemon reads it, as root.
const MODE: i32 = 0o400;

/// The Secret with the user data, as a volume; none for a guest that continues from saved memory,
/// since that has its data already.
pub(super) fn volume(plan: &Plan<'_>) -> Option<Volume> {
    let bootstrap = plan.vm.spec.bootstrap.as_ref().filter(|_| !plan.restore)?;
    let source = bootstrap.cloud_init.as_ref()?.user_data.as_ref()?;
    let key = source.key.as_deref().unwrap_or(DEFAULT_KEY);
    Some(Volume {
        name: name(plan),
        secret: Some(SecretVolumeSource {
            secret_name: Some(source.name.clone()),
            default_mode: Some(MODE),
            items: Some(vec![KeyToPath {
                key: key.to_owned(),
                path: key.to_owned(),
                ..KeyToPath::default()
            }]),
            optional: Some(false),
            ..SecretVolumeSource::default()
        }),
        ..Volume::default()
    })
}

/// Where the daemon expects that volume.
pub(super) fn mount(plan: &Plan<'_>) -> Option<VolumeMount> {
    let volume = volume(plan)?;
    let secret = volume.secret?.secret_name?;
    let source = Source::new(SourceKind::Secret, &secret).ok()?;
    Some(VolumeMount {
        name: volume.name,
        mount_path: source.mount_path(),
        read_only: Some(true),
        ..VolumeMount::default()
    })
}

/// A name that no disk has: names of volumes are unique in a pod.
fn name(plan: &Plan<'_>) -> String {
    let mut name = NAME.to_owned();
    while plan.prerequisites.disks.iter().any(|d| d.name == name) {
        name.push('0');
    }
    name
}
