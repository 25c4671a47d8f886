//! Converts messages of the node API to domain values and back.
//!
//! Invariant: what comes out of a request is bounded and spelt as it must be.
//! Failure: [`Invalid`] names the field.

use nodeapi::v1;
use podspec::VmUid;
use service::telemetry;

use super::task::{State, Task, TaskUid, Work};
use crate::disk::{Disk, TakenSnapshot, UnreadableDisk};

mod backups;
mod clones;
mod export;
mod host;
mod images;
mod manifests;
mod probes;
mod pulls;
mod settings;
mod snapshots;
mod sources;

pub(super) use export::{complete_export, export, export_backup, export_snapshot};
pub(super) use host::host;
pub(super) use manifests::{manifest, with_manifest};
pub(super) use probes::probe_state;
pub(super) use pulls::pull_event;
pub(super) use settings::{node_settings, settings_answer, settings_error};
pub(super) use sources::{answer, source_event};

/// Longest `namespace/name` in bytes.
const NAME: usize = 512;

/// Longest UID of a pod in bytes.
const POD_UID: usize = 128;

/// Nanoseconds in a millisecond.
const MILLI: i64 = 1_000_000;

/// A request that cannot be meant.
#[derive(Debug, thiserror::Error)]
#[error("{field}: {reason}")]
pub(super) struct Invalid {
    field: &'static str,
    reason: &'static str,
}

/// A uid of a request.
pub(super) fn uid(field: &'static str, text: &str) -> Result<TaskUid, Invalid> {
    text.parse().map_err(|reason| Invalid { field, reason })
}

/// The task that a request requests.
pub(super) fn task(request: v1::RunTaskRequest) -> Result<(TaskUid, VmUid, Work), Invalid> {
    use v1::run_task_request::Kind;
    let task = uid("uid", &request.uid)?;
    let vm = uid("vm_uid", &request.vm_uid)?;
    let kind = request.kind.ok_or(Invalid {
        field: "kind",
        reason: "a kind that this daemon knows is needed",
    })?;
    let work = match kind {
        Kind::Provision(wanted) => provision(wanted)?,
        Kind::DeleteDisk(_) => Work::DeleteDisk,
        Kind::GuestShutdown(how) => Work::GuestShutdown {
            timeout: how.timeout_seconds,
        },
        Kind::PowerOff(how) => power_off(&how)?,
        Kind::GuestReboot(how) => Work::GuestReboot {
            timeout: how.timeout_seconds,
        },
        Kind::Reset(_) => Work::Reset,
        Kind::Save(_) => Work::Save,
        Kind::Restore(how) => Work::Restore {
            discard: how.discard,
        },
        Kind::Pause(_) => Work::Pause,
        Kind::Unpause(_) => Work::Unpause,
        Kind::InspectImage(wanted) => images::inspect(wanted)?,
        Kind::PullImage(wanted) => images::pull(wanted)?,
        Kind::SetProbe(wanted) => probes::set_probe(&wanted)?,
        Kind::Promote(how) => Work::Promote { online: how.online },
        Kind::Adopt(wanted) => manifests::adopt(&wanted)?,
        Kind::CloneDisk(wanted) => clones::clone_disk(vm, &wanted)?,
        Kind::Snapshot(wanted) => snapshots::take(&wanted)?,
        Kind::Revert(wanted) => snapshots::revert(&wanted)?,
        Kind::DeleteSnapshot(wanted) => snapshots::delete(&wanted)?,
        Kind::Freeze(wanted) => snapshots::freeze(&wanted)?,
        Kind::Backup(wanted) => backups::take(&wanted)?,
        Kind::VerifyBackup(wanted) => backups::verify(&wanted)?,
        Kind::DeleteBackup(wanted) => backups::delete(&wanted)?,
        Kind::RestoreBackup(wanted) => backups::restore(vm, &wanted)?,
    };
    Ok((task, vm, work))
}

fn power_off(how: &v1::PowerOff) -> Result<Work, Invalid> {
    Ok(Work::PowerOff {
        timeout: how.timeout_seconds,
        pod: pod_uid("power_off.pod_uid", &how.pod_uid)?,
    })
}

fn pod_uid(field: &'static str, text: &str) -> Result<String, Invalid> {
    if text.is_empty() || text.len() > POD_UID {
        let reason = "the UID of a pod is needed";
        return Err(Invalid { field, reason });
    }
    Ok(text.to_owned())
}

fn provision(wanted: v1::Provision) -> Result<Work, Invalid> {
    images::name("provision.image", &wanted.image)?;
    let linked = match wanted.mode() {
        v1::provision::Mode::Linked => true,
        v1::provision::Mode::Direct => false,
    };
    if i64::try_from(wanted.size_bytes).is_err() {
        return Err(Invalid {
            field: "provision.size_bytes",
            reason: "a size up to 8 EiB is allowed",
        });
    }
    let mut name = telemetry::bounded(&wanted.vm_name);
    name.truncate(name.floor_char_boundary(NAME));
    let url = images::url("provision.image_url", &wanted.image, wanted.image_url)?;
    let tls_secret = images::secret("provision.image_tls_secret", wanted.image_tls_secret)?;
    Ok(Work::Provision {
        image: wanted.image,
        url,
        size: wanted.size_bytes,
        linked,
        name,
        tls_secret,
    })
}

/// The state of a task.
pub(super) fn status(task: &Task) -> v1::TaskStatus {
    use v1::task_status::State as Wire;
    let failure = task.failure.as_ref();
    v1::TaskStatus {
        uid: task.uid.to_string(),
        vm_uid: task.vm.to_string(),
        state: match task.state {
            State::Queued => Wire::Queued,
            State::Running => Wire::Running,
            State::Success => Wire::Success,
            State::Error => Wire::Error,
            State::Cancelled => Wire::Cancelled,
        }
        .into(),
        transient: failure.is_some_and(|failure| failure.transient),
        message: failure.map(|f| f.message.clone()).unwrap_or_default(),
        progress_percent: task.percent.into(),
        started_ms: task.started_at / MILLI,
        completed_ms: task.completed_at / MILLI,
        kind: task.work.kind().to_owned(),
        image: task.image.map(images::inspected),
        snapshot: task.snapshot.as_ref().map(snapshots::taken),
        backup: task.backup.as_ref().map(backups::done),
    }
}

/// A disk, with the bytes that it takes on the node, and its snapshots.
pub(super) fn disk(disk: &Disk, allocated: u64, taken: &[TakenSnapshot]) -> v1::Disk {
    v1::Disk {
        vm_uid: disk.vm.to_string(),
        vm_name: disk.name.clone(),
        complete: disk.phase.is_complete(),
        image: disk.image.clone(),
        image_digest: disk.digest.clone(),
        virtual_bytes: disk.virtual_bytes,
        allocated_bytes: allocated,
        linked: disk.linked,
        saved_memory: disk.has_memory(),
        in_use_by: disk
            .holder
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
        snapshots: taken.iter().map(snapshots::taken).collect(),
        current_snapshot: snapshots::current(disk),
        ..v1::Disk::default()
    }
}

/// A disk of which no record can be read, with the bytes that it takes on the node.
pub(super) fn unreadable_disk(disk: &UnreadableDisk, allocated: u64) -> v1::Disk {
    v1::Disk {
        vm_uid: disk
            .vm
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
        allocated_bytes: allocated,
        unreadable: disk.reason.clone(),
        ..v1::Disk::default()
    }
}

#[cfg(test)]
mod tests;
