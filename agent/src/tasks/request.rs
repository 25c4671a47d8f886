//! Converts the specification of a task object to a request of the daemon's node API.
//!
//! Invariant: the same spec always gives the same request, so that one sent twice is recognised;
//! `cancel` is no part of it.
//! Failure: a sentence for people: what this node cannot do, or what the spec lacks.

use crds::{
    BackupRequest, DiskSource, NodeProbe, SnapshotRequest, TaskKind, VirtualMachineTaskSpec,
};
use nodeapi::v1::run_task_request::Kind;
use nodeapi::v1::{
    Adopt, Backup, CloneDisk, DeleteBackup, DeleteDisk, DeleteSnapshot, Freeze, GuestReboot,
    GuestShutdown, InspectImage, Pause, PowerOff, Promote, Provision, PullImage, Reset, Restore,
    RestoreBackup, Revert, RunTaskRequest, Save, SetProbe, Snapshot, TcpProbe, Unpause,
    VerifyBackup, provision,
};

/// Seconds that a guest gets when the task names none.
const GUEST_TIMEOUT: u32 = 300;

/// The same for a freeze: guests thaw by themselves after that.
const LONGEST_FREEZE: u32 = 60;

/// The request for a task, if a daemon with these `kinds` can run it.
pub(super) fn for_task(
    uid: &str,
    namespace: &str,
    spec: &VirtualMachineTaskSpec,
    kinds: &[String],
) -> Result<RunTaskRequest, String> {
    let kind = kind(namespace, spec)?;
    let name: &str = (&kind).into();
    if !kinds.iter().any(|known| known == name) {
        return Err(format!(
            "this node cannot run tasks of kind {:?}: its daemon does not offer them; upgrade the \
             node",
            spec.kind
        ));
    }
    Ok(RunTaskRequest {
        uid: uid.to_owned(),
        vm_uid: spec.vm_uid.clone(),
        kind: Some(kind),
    })
}

fn kind(namespace: &str, spec: &VirtualMachineTaskSpec) -> Result<Kind, String> {
    let timeout_seconds = spec.timeout_seconds.unwrap_or(GUEST_TIMEOUT);
    Ok(match spec.kind {
        TaskKind::Provision => Kind::Provision(provision(namespace, spec)?),
        TaskKind::DeleteDisk => Kind::DeleteDisk(DeleteDisk {}),
        TaskKind::GuestShutdown => Kind::GuestShutdown(GuestShutdown { timeout_seconds }),
        TaskKind::PowerOff => Kind::PowerOff(PowerOff {
            timeout_seconds: spec.timeout_seconds.unwrap_or_default(),
            pod_uid: pod_uid(spec)?,
        }),
        TaskKind::GuestReboot => Kind::GuestReboot(GuestReboot { timeout_seconds }),
        TaskKind::Reset => Kind::Reset(Reset {}),
        TaskKind::Save => Kind::Save(Save {}),
        TaskKind::Restore => Kind::Restore(Restore {
            discard: spec.discard,
        }),
        TaskKind::Pause => Kind::Pause(Pause {}),
        TaskKind::Unpause => Kind::Unpause(Unpause {}),
        TaskKind::InspectImage => Kind::InspectImage(InspectImage {
            image: image(spec)?,
            image_url: spec.image_url.clone().unwrap_or_default(),
            image_tls_secret: spec.image_tls_secret.clone().unwrap_or_default(),
            image_checksum_url: spec.image_checksum_url.clone().unwrap_or_default(),
        }),
        TaskKind::PullImage => Kind::PullImage(PullImage {
            image: image(spec)?,
            image_url: spec.image_url.clone().unwrap_or_default(),
            image_tls_secret: spec.image_tls_secret.clone().unwrap_or_default(),
        }),
        TaskKind::SetProbe => Kind::SetProbe(SetProbe {
            pod_uid: pod_uid(spec)?,
            probe: spec.probe.as_ref().map(probe),
        }),
        TaskKind::Promote => Kind::Promote(Promote {
            online: spec.online,
        }),
        TaskKind::Adopt => Kind::Adopt(Adopt {
            vm_name: format!("{namespace}/{}", spec.vm_name),
        }),
        TaskKind::CloneDisk => Kind::CloneDisk(clone_disk(namespace, spec)?),
        TaskKind::Backup => {
            let requested = backup(spec)?;
            Kind::Backup(Backup {
                uid: requested.uid.clone(),
                target: requested.target.clone(),
                vm_name: vm_name(namespace, spec),
                full: requested.full,
                quiesce_seconds: requested.quiesce_seconds.unwrap_or_default(),
                most_increments: 0,
            })
        }
        TaskKind::VerifyBackup => {
            let requested = backup(spec)?;
            Kind::VerifyBackup(VerifyBackup {
                uid: requested.uid.clone(),
                target: requested.target.clone(),
                vm_name: vm_name(namespace, spec),
                sha256: requested.manifest_sha256.clone().unwrap_or_default(),
            })
        }
        TaskKind::DeleteBackup => {
            let requested = backup(spec)?;
            Kind::DeleteBackup(DeleteBackup {
                uid: requested.uid.clone(),
                target: requested.target.clone(),
                vm_name: vm_name(namespace, spec),
            })
        }
        TaskKind::RestoreBackup => {
            let requested = backup(spec)?;
            let disk_uid = requested.disk_uid.clone();
            Kind::RestoreBackup(RestoreBackup {
                uid: requested.uid.clone(),
                target: requested.target.clone(),
                source_vm_uid: disk_uid.ok_or_else(|| {
                    "a task of kind RestoreBackup needs spec.backup.diskUID".to_owned()
                })?,
                size_bytes: size_bytes(spec)?,
                vm_name: vm_name(namespace, spec),
                sha256: requested.manifest_sha256.clone().unwrap_or_default(),
            })
        }
        TaskKind::Snapshot => {
            let requested = snapshot(spec)?;
            Kind::Snapshot(Snapshot {
                uid: requested.uid.clone(),
                quiesce_seconds: requested.quiesce_seconds.unwrap_or_default(),
                memory: requested.memory,
            })
        }
        TaskKind::Revert => {
            let requested = snapshot(spec)?;
            Kind::Revert(Revert {
                uid: requested.uid.clone(),
                memory: requested.memory,
            })
        }
        TaskKind::DeleteSnapshot => Kind::DeleteSnapshot(DeleteSnapshot {
            uid: snapshot(spec)?.uid.clone(),
        }),
        TaskKind::Freeze => {
            let requested = snapshot(spec)?;
            Kind::Freeze(Freeze {
                uid: requested.uid.clone(),
                seconds: requested.quiesce_seconds.unwrap_or(LONGEST_FREEZE),
            })
        }
    })
}

fn snapshot(spec: &VirtualMachineTaskSpec) -> Result<&SnapshotRequest, String> {
    let requested = spec.snapshot.as_ref();
    requested.ok_or_else(|| format!("a task of kind {:?} needs spec.snapshot", spec.kind))
}

fn backup(spec: &VirtualMachineTaskSpec) -> Result<&BackupRequest, String> {
    let requested = spec.backup.as_ref();
    requested.ok_or_else(|| format!("a task of kind {:?} needs spec.backup", spec.kind))
}

/// The machine, as nodes name it.
fn vm_name(namespace: &str, spec: &VirtualMachineTaskSpec) -> String {
    format!("{namespace}/{}", spec.vm_name)
}

fn clone_disk(namespace: &str, spec: &VirtualMachineTaskSpec) -> Result<CloneDisk, String> {
    let source: Option<&DiskSource> = spec.source.as_ref();
    let source =
        source.ok_or_else(|| format!("a task of kind {:?} needs spec.source", spec.kind))?;
    Ok(CloneDisk {
        source_vm_uid: source.disk_uid.clone(),
        snapshot_uid: source.snapshot_uid.clone().unwrap_or_default(),
        size_bytes: size_bytes(spec)?,
        vm_name: format!("{namespace}/{}", spec.vm_name),
    })
}

fn size_bytes(spec: &VirtualMachineTaskSpec) -> Result<u64, String> {
    let size = u64::try_from(spec.size_bytes.unwrap_or_default());
    size.map_err(|_| "spec.sizeBytes must not be negative".to_owned())
}

fn pod_uid(spec: &VirtualMachineTaskSpec) -> Result<String, String> {
    let uid = spec.instance_uid.clone();
    uid.ok_or_else(|| format!("a task of kind {:?} needs spec.instanceUID", spec.kind))
}

fn probe(probe: &NodeProbe) -> TcpProbe {
    TcpProbe {
        host: probe.host.clone().unwrap_or_default(),
        port: probe.port.into(),
        period_seconds: probe.period_seconds,
        timeout_seconds: probe.timeout_seconds,
    }
}

fn provision(namespace: &str, spec: &VirtualMachineTaskSpec) -> Result<Provision, String> {
    let size_bytes = size_bytes(spec)?;
    let mode = if spec.linked {
        provision::Mode::Linked
    } else {
        provision::Mode::Direct
    };
    Ok(Provision {
        image: image(spec)?,
        image_url: spec.image_url.clone().unwrap_or_default(),
        image_tls_secret: spec.image_tls_secret.clone().unwrap_or_default(),
        size_bytes,
        mode: mode.into(),
        vm_name: format!("{namespace}/{}", spec.vm_name),
    })
}

fn image(spec: &VirtualMachineTaskSpec) -> Result<String, String> {
    let image = spec.image.clone().filter(|image| !image.is_empty());
    image.ok_or_else(|| format!("a task of kind {:?} needs spec.image", spec.kind))
}

/// A kind of the daemon's list as objects spell it: `delete_disk` is `DeleteDisk`.
pub(crate) fn object_kind(field: &str) -> String {
    let words = field.split('_');
    words
        .flat_map(|word| {
            let mut letters = word.chars();
            let first = letters.next().map(|c| c.to_ascii_uppercase());
            first.into_iter().chain(letters)
        })
        .collect()
}

#[cfg(test)]
mod tests;
