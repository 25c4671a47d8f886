//! Converts messages of the node API to domain values and back.
//!
//! Invariant: what comes out of a request is bounded and spelt as it must be.
//! Failure: [`Invalid`] names the field.

use nodeapi::v1;
use podspec::VmUid;
use service::telemetry;

use super::task::{State, Task, TaskUid, Work};
use crate::disk::{Disk, Phase};

mod images;
mod sources;

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
    let (task, vm) = (uid("uid", &request.uid)?, uid("vm_uid", &request.vm_uid)?);
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
    };
    Ok((task, vm, work))
}

fn power_off(how: &v1::PowerOff) -> Result<Work, Invalid> {
    if how.pod_uid.is_empty() || how.pod_uid.len() > POD_UID {
        return Err(Invalid {
            field: "power_off.pod_uid",
            reason: "the UID of a pod is needed",
        });
    }
    Ok(Work::PowerOff {
        timeout: how.timeout_seconds,
        pod: how.pod_uid.clone(),
    })
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
    Ok(Work::Provision {
        image: wanted.image,
        url,
        size: wanted.size_bytes,
        linked,
        name,
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
    }
}

/// A disk, with the bytes that it takes on the node.
pub(super) fn disk(disk: &Disk, allocated: u64) -> v1::Disk {
    v1::Disk {
        vm_uid: disk.vm.to_string(),
        vm_name: disk.name.clone(),
        complete: disk.phase == Phase::Ready,
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1a";

    fn request(kind: Option<v1::run_task_request::Kind>) -> v1::RunTaskRequest {
        v1::RunTaskRequest {
            uid: UID.to_owned(),
            vm_uid: UID.to_owned(),
            kind,
        }
    }

    #[test]
    fn a_request_that_cannot_be_meant_names_its_field() {
        use v1::run_task_request::Kind;
        let wanted = |image: &str, size_bytes| {
            Some(Kind::Provision(v1::Provision {
                image: image.to_owned(),
                size_bytes,
                ..v1::Provision::default()
            }))
        };
        let of_url = |image: &str, url: &str| {
            Some(Kind::Provision(v1::Provision {
                image: image.to_owned(),
                image_url: url.to_owned(),
                ..v1::Provision::default()
            }))
        };
        let url = "http://h/Disk?v=1";
        let name = podspec::url_image_name(url);
        let save = Some(Kind::Save(v1::Save {}));
        let cases = [
            (request(None), "kind"),
            (request(wanted("", 0)), "provision.image"),
            (request(wanted("host/a b", 0)), "provision.image"),
            (
                request(wanted("host/disk", u64::MAX)),
                "provision.size_bytes",
            ),
            (request(wanted(&name, 0)), "provision.image_url"),
            (request(of_url("host/disk", url)), "provision.image_url"),
            (
                v1::RunTaskRequest {
                    uid: "../x".to_owned(),
                    ..request(save.clone())
                },
                "uid",
            ),
            (
                v1::RunTaskRequest {
                    vm_uid: UID.to_uppercase(),
                    ..request(save.clone())
                },
                "vm_uid",
            ),
        ];
        for (request, field) in cases {
            assert_eq!(task(request).unwrap_err().field, field);
        }
        assert_eq!(task(request(save)).unwrap().2, Work::Save);
        assert!(task(request(wanted("host/disk", 1 << 30))).is_ok());
        let (.., work) = task(request(of_url(&name, url))).unwrap();
        assert!(matches!(work, Work::Provision { url: Some(given), .. } if given == url));
    }

    #[test]
    fn stored_work_and_its_request_have_one_name_for_the_kind() {
        use strum::VariantNames as _;
        use v1::run_task_request::Kind;
        let provision = v1::Provision {
            image: "host/disk".to_owned(),
            ..v1::Provision::default()
        };
        let power_off = v1::PowerOff {
            pod_uid: UID.to_owned(),
            ..v1::PowerOff::default()
        };
        let inspect = v1::InspectImage {
            image: "host/disk".to_owned(),
            ..v1::InspectImage::default()
        };
        let all = [
            Kind::Provision(provision),
            Kind::DeleteDisk(v1::DeleteDisk::default()),
            Kind::GuestShutdown(v1::GuestShutdown::default()),
            Kind::GuestReboot(v1::GuestReboot::default()),
            Kind::Reset(v1::Reset::default()),
            Kind::Save(v1::Save::default()),
            Kind::Restore(v1::Restore::default()),
            Kind::Pause(v1::Pause::default()),
            Kind::Unpause(v1::Unpause::default()),
            Kind::PowerOff(power_off),
            Kind::InspectImage(inspect),
        ];
        let requested: Vec<&str> = all.iter().map(Into::into).collect();
        assert_eq!(requested, Kind::VARIANTS);
        for (kind, name) in all.into_iter().zip(requested) {
            let (.., work) = task(request(Some(kind))).unwrap();
            assert_eq!(work.kind(), name);
            let stored = serde_json::to_value(&work).unwrap();
            assert_eq!(stored["kind"], name);
        }
    }
}
