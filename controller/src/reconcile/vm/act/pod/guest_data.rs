//! The volumes by which a node gets the guest data of a machine.
//!
//! Invariant: kubelet, which may read what pods of its node mount, brings Secrets to the node:
//! no program of ours there reads Secrets by itself. Only the keys that are used are in the volumes,
//! and each Secret has one volume.
//! Failure: a Secret or key that was removed since it was checked keeps the pod from starting;
//! kubelet reports it in the pod's events and tries again.

use k8s_openapi::api::core::v1::{KeyToPath, SecretVolumeSource, Volume, VolumeMount};
use podspec::{ANSWER_FILES, Source, SourceKind};

use super::Plan;
use crate::reconcile::vm::prerequisites::{DEFAULT_KEY, NETWORK_KEY};

/// Names of the volumes, unless a disk of the machine has one of them.
const USER_DATA: &str = "vmlet-user-data";
const NETWORK_DATA: &str = "vmlet-network-data";
const SYSPREP: &str = "vmlet-sysprep";
/// Nothing but the daemon reads them, as root.
const MODE: i32 = 0o400;

/// A Secret, and the keys of it that are used.
struct Wanted {
    volume: String,
    secret: String,
    keys: Vec<String>,
    /// Not all of the keys need to be there.
    optional: bool,
}

/// The Secrets with guest data, as volumes; none for a guest that continues from saved memory, since
/// that has its data already.
pub(super) fn volumes(plan: &Plan<'_>) -> Vec<Volume> {
    let item = |key: &String| KeyToPath {
        key: key.clone(),
        path: key.clone(),
        ..KeyToPath::default()
    };
    let volume = |wanted: Wanted| Volume {
        name: wanted.volume,
        secret: Some(SecretVolumeSource {
            secret_name: Some(wanted.secret),
            default_mode: Some(MODE),
            items: Some(wanted.keys.iter().map(item).collect()),
            optional: Some(wanted.optional),
            ..SecretVolumeSource::default()
        }),
        ..Volume::default()
    };
    wanted(plan).into_iter().map(volume).collect()
}

/// Where the daemon expects those volumes.
pub(super) fn mounts(plan: &Plan<'_>) -> Vec<VolumeMount> {
    let mount = |wanted: Wanted| {
        let source = Source::new(SourceKind::Secret, &wanted.secret).ok()?;
        Some(VolumeMount {
            name: wanted.volume,
            mount_path: source.mount_path(),
            read_only: Some(true),
            ..VolumeMount::default()
        })
    };
    wanted(plan).into_iter().filter_map(mount).collect()
}

fn wanted(plan: &Plan<'_>) -> Vec<Wanted> {
    let bootstrap = plan.vm.spec.bootstrap.as_ref().filter(|_| !plan.restore);
    if let Some(sysprep) = bootstrap.and_then(|b| b.sysprep.as_ref()) {
        return vec![Wanted {
            volume: name(plan, SYSPREP),
            secret: sysprep.secret_name.clone(),
            keys: ANSWER_FILES.map(str::to_owned).into(),
            optional: true,
        }];
    }
    let Some(cloud_init) = bootstrap.and_then(|b| b.cloud_init.as_ref()) else {
        return Vec::new();
    };
    let mut all: Vec<Wanted> = Vec::new();
    for (source, volume, default) in [
        (&cloud_init.user_data, USER_DATA, DEFAULT_KEY),
        (&cloud_init.network_data, NETWORK_DATA, NETWORK_KEY),
    ] {
        let Some(source) = source else { continue };
        let key = source.key.clone().unwrap_or_else(|| default.to_owned());
        match all.iter_mut().find(|wanted| wanted.secret == source.name) {
            Some(same) if same.keys.contains(&key) => {}
            Some(same) => same.keys.push(key),
            None => all.push(Wanted {
                volume: name(plan, volume),
                secret: source.name.clone(),
                keys: vec![key],
                optional: false,
            }),
        }
    }
    all
}

/// A name that no disk has: names of volumes are unique in a pod.
fn name(plan: &Plan<'_>, base: &str) -> String {
    let mut name = base.to_owned();
    while plan.prerequisites.disks.iter().any(|d| d.name == name) {
        name.push('0');
    }
    name
}
