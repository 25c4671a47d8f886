//! The status of an image cache.
//!
//! Invariant: a condition changes its time only with its status; what is known of the disk is of the
//! digest in `metadata.providerVersion`. A cache with all the locations that it can have fits into the
//! largest object of the API server.
//! Failure: none.

use crds::conditions::{
    self, CACHE_FILES_READY, CACHE_HARDWARE_READY, CACHE_PROVIDER_READY, READY, Status,
};
use crds::{
    CacheLocationStatus, CacheMetadata, CachedFile, CachedFileType, VirtualMachineImageCache,
    VirtualMachineImageCacheStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::Subject;
use super::location::{FAILED, Verdict};
use super::write::location;
use crate::reconcile::image::LONGEST;
use crate::reconcile::image::object::AVAILABLE;

/// Longest message about a location, in bytes: a cache may have a thousand of them.
const LONGEST_OF_LOCATION: usize = 200;

/// A condition before it is compared with the one that is known.
struct Draft {
    kind: &'static str,
    status: Status,
    reason: &'static str,
    message: String,
}

/// The status that the cache should have.
pub(super) fn draft(
    cache: &VirtualMachineImageCache,
    subject: &Subject<'_>,
    kept: &[&Verdict],
    now: &Time,
) -> VirtualMachineImageCacheStatus {
    let mut new = cache.status.clone().unwrap_or_default();
    let old = std::mem::take(&mut new.locations);
    new.locations = kept
        .iter()
        .map(|verdict| {
            let known = old.iter().find(|old| old.node == verdict.node);
            at(subject, verdict, known, now)
        })
        .collect();
    let image = subject.status;
    let ready = conditions::find(&image.conditions, READY);
    let is_read = ready.is_some_and(|ready| ready.reason == AVAILABLE);
    if is_read {
        new.metadata = Some(CacheMetadata {
            provider_version: Some(version(subject)),
            type_: image.type_.clone(),
            virtual_size: image.disks.first().and_then(|disk| disk.limit.clone()),
            firmware: image.firmware.clone(),
        });
    }
    let known = ready.map(|ready| (ready.status.as_str(), ready.message.as_str()));
    let provider = match known {
        _ if is_read => Draft::new(CACHE_PROVIDER_READY, Status::True, "", ""),
        Some(("False", message)) => {
            Draft::new(CACHE_PROVIDER_READY, Status::False, FAILED, message)
        }
        Some((_, message)) => Draft::new(CACHE_PROVIDER_READY, Status::Unknown, "", message),
        None => Draft::new(CACHE_PROVIDER_READY, Status::Unknown, "", ""),
    };
    let hardware = Draft {
        kind: CACHE_HARDWARE_READY,
        message: provider.message.clone(),
        ..provider
    };
    let files = files(kept);
    let all = match (hardware.status, files.status) {
        (Status::False, _) => Draft {
            kind: READY,
            message: hardware.message.clone(),
            ..hardware
        },
        (_, _) => Draft {
            kind: READY,
            message: files.message.clone(),
            ..files
        },
    };
    for draft in [hardware, provider, files, all] {
        let end = draft.message.floor_char_boundary(LONGEST);
        conditions::set(
            &mut new.conditions,
            draft.kind,
            draft.status,
            draft.reason,
            &draft.message[..end],
            None,
            now,
        );
    }
    new
}

impl Draft {
    fn new(kind: &'static str, status: Status, reason: &'static str, message: &str) -> Self {
        Self {
            kind,
            status,
            reason,
            message: message.to_owned(),
        }
    }
}

/// The digest that is desired; empty as long as none is known.
pub(super) fn version(subject: &Subject<'_>) -> String {
    let known = subject.status.provider_content_version.clone();
    known.unwrap_or_default()
}

fn files(kept: &[&Verdict]) -> Draft {
    let open: Vec<_> = kept.iter().filter(|v| v.status != Status::True).collect();
    let failed = open.iter().find(|verdict| verdict.reason == FAILED);
    match (failed.or(open.first()), open.len()) {
        (None, _) => Draft::new(CACHE_FILES_READY, Status::True, "", ""),
        (Some(first), count) => {
            let reason = match first.reason {
                FAILED => FAILED,
                _ => "NotReady",
            };
            let message = match count {
                1 => first.message.clone(),
                more => format!("{}; {more} locations are not ready", first.message),
            };
            Draft::new(CACHE_FILES_READY, Status::False, reason, &message)
        }
    }
}

fn at(
    subject: &Subject<'_>,
    verdict: &Verdict,
    known: Option<&CacheLocationStatus>,
    now: &Time,
) -> CacheLocationStatus {
    let key = location(subject, &verdict.node);
    let mut all: Vec<Condition> = known
        .map(|known| known.conditions.clone())
        .unwrap_or_default();
    let end = verdict.message.floor_char_boundary(LONGEST_OF_LOCATION);
    conditions::set(
        &mut all,
        READY,
        verdict.status,
        verdict.reason,
        &verdict.message[..end],
        None,
        now,
    );
    let digest = subject.status.provider_content_version.clone();
    let digest = digest.filter(|_| verdict.status == Status::True);
    let file = digest.map(|id| CachedFile {
        id,
        type_: CachedFileType::Disk,
        name: "root".to_owned(),
    });
    CacheLocationStatus {
        node: key.node,
        store: key.store,
        format: key.format,
        files: file.into_iter().collect(),
        unused_since: verdict.unused_since.clone(),
        conditions: all,
    }
}
