//! The claims of a machine in its snapshots: a `VolumeSnapshot` for each, which the storage system takes.
//!
//! ```text
//! the node has taken its part ─► VolumeSnapshots ─► all are taken: Created ─► all are ready to use: CSISynced, Ready
//! ```
//!
//! Invariant: names are on record before objects are created, so that each step can be repeated; the snapshot of the
//! machine owns its parts, which are deleted with it. An object of another owner, or of another claim, is no part.
//! Failure: the words of the storage system, in the conditions; a part that is not taken in time fails the snapshot.

use std::sync::Arc;
use std::time::Duration;

use crds::conditions::{SNAPSHOT_CSI_SYNCED, SNAPSHOT_READY, Status};
use crds::{ClaimSnapshot, VirtualMachineSnapshot, VirtualMachineSnapshotStatus, names};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use kube::api::PostParams;
use kube::{Resource, ResourceExt};

use crate::context::Key;
use crate::flow::Outcome;
use crate::reconcile::answers::{again, is_conflict, is_gone, is_refused};
use crate::reconcile::vm::error::{self, Error};
use crate::reconcile::vm::observe::{parts, snapshots};
use crate::reconcile::vm::pass::Pass;
use crate::reconcile::vm::prerequisites::Disk;
use crate::reconcile::vm::write::snapshot as write;
use crate::stores::{VolumeSnapshot, VolumeSnapshotSource, VolumeSnapshotSpec};

/// The API of the parts.
pub(super) const API: &str = "snapshot.storage.k8s.io/v1";
/// The kind within it.
const PLURAL: &str = "volumesnapshots";

/// Reason of [`SNAPSHOT_CSI_SYNCED`], False: a part is not ready to use.
const SYNCING: &str = "VirtualMachineSnapshotCSISyncInProgress";
/// Reason of [`SNAPSHOT_READY`], False: the same.
const WAITING_FOR_SYNC: &str = "VirtualMachineSnapshotWaitingForCSISync";

/// Longest time for the storage system to take a part, in seconds.
const LONGEST: i64 = 600;

/// Longest time from the first part to the request of another one, in seconds: another controller takes over within
/// it, and a request that fails is repeated a few times.
const LATEST: i64 = 120;

/// How soon a part is read again that the watch does not show.
const UNSEEN: Duration = Duration::from_secs(30);

/// How far the parts are.
pub(super) enum Progress {
    /// All are taken.
    Taken,
    /// Some are not, for this reason.
    Waits(String),
    /// One never will be.
    Failed(String),
}

/// Whether the API server serves the API of the parts.
pub(super) async fn are_served(pass: &Pass<'_>) -> Outcome<bool> {
    match pass.ctx.client.list_api_group_resources(API).await {
        Ok(list) => Ok(list.resources.iter().any(|kind| kind.name == PLURAL)),
        Err(error) if is_gone(&error) => Ok(false),
        Err(source) => {
            let what = format!("the kinds of {API}");
            Err(Error::Read { what, source }.into())
        }
    }
}

/// What a snapshot records of these claims before their parts exist.
pub(super) fn records(snapshot: &VirtualMachineSnapshot, claims: &[Disk]) -> Vec<ClaimSnapshot> {
    let uid = snapshot.uid().unwrap_or_default();
    let numbered = claims.iter().enumerate();
    let records = numbered.map(|(number, disk)| ClaimSnapshot {
        claim_name: disk.claim.clone(),
        volume_name: disk.name.clone(),
        volume_snapshot_name: format!("vmsnap-{uid}-{number}"),
        ..ClaimSnapshot::default()
    });
    records.collect()
}

/// Records that the parts are requested from now on: a node has taken its own, or has none.
pub(super) fn begin(pass: &Pass<'_>, draft: &mut VirtualMachineSnapshotStatus) {
    for record in &mut draft.claims {
        record.request_time.get_or_insert_with(|| pass.now.clone());
    }
}

/// Whether the parts are what is left to do.
pub(super) fn are_begun(snapshot: &VirtualMachineSnapshot) -> bool {
    let records = snapshot.status.iter().flat_map(|status| &status.claims);
    records
        .into_iter()
        .any(|record| record.request_time.is_some())
}

/// Requests the parts that do not exist, and drafts what the storage system reports of the others.
pub(super) async fn take(
    pass: &mut Pass<'_>,
    snapshot: &VirtualMachineSnapshot,
    draft: &mut VirtualMachineSnapshotStatus,
) -> Outcome<Progress> {
    let mut waiting = Vec::new();
    // When the first part was taken, that of the node if there is one.
    let mut first = draft.creation_time.as_ref().map(|at| at.0.as_second());
    for record in &mut draft.claims {
        let found = match parts::find(pass, snapshot, record) {
            Some(found) => found,
            None if first.is_some_and(|first| pass.seconds() - first > LATEST) => {
                // The watch may show none of what was requested in time.
                pass.requeue_within(UNSEEN);
                match read(pass, snapshot, record).await? {
                    Stored::Part(found) => found,
                    Stored::Unknown if rest(pass, record.request_time.as_ref()) > 0 => {
                        let claim = &record.claim_name;
                        waiting.push(format!("{claim}: {API} is not served at present"));
                        continue;
                    }
                    Stored::Missing | Stored::Unknown => {
                        return Ok(Progress::Failed(too_late(record)));
                    }
                }
            }
            None => match request(pass, snapshot, record).await? {
                Ok(made) => {
                    record.request_time = Some(pass.now.clone());
                    made
                }
                Err(why) => return Ok(Progress::Failed(why)),
            },
        };
        parts::observe(record, Some(&found));
        let taken = record.creation_time.as_ref().map(|at| at.0.as_second());
        first = first.or(taken);
        if record.creation_time.is_some() || record.ready {
            continue;
        }
        let claim = &record.claim_name;
        let error = record.error.as_ref().map(|error| format!(": {error}"));
        let error = error.unwrap_or_default();
        let since = record.request_time.as_ref();
        let since = since.max(found.metadata.creation_timestamp.as_ref());
        let rest = rest(pass, since);
        if rest <= 0 {
            let minutes = LONGEST / 60;
            return Ok(Progress::Failed(format!(
                "the storage system has not taken a snapshot of claim {claim} within {minutes} minutes{error}"
            )));
        }
        let rest = u64::try_from(rest).unwrap_or_default();
        pass.requeue_within(Duration::from_secs(rest));
        waiting.push(format!("{claim}{error}"));
    }
    if waiting.is_empty() {
        return Ok(Progress::Taken);
    }
    Ok(Progress::Waits(format!(
        "the storage system takes snapshots of these claims: {}",
        waiting.join(", ")
    )))
}

/// Seconds that the storage system has for a part that was requested then.
fn rest(pass: &Pass<'_>, since: Option<&Time>) -> i64 {
    let since = since.map_or(pass.seconds(), |at| at.0.as_second());
    LONGEST - (pass.seconds() - since)
}

fn too_late(record: &ClaimSnapshot) -> String {
    let claim = &record.claim_name;
    format!(
        "the first part of the snapshot was taken more than {LATEST} seconds before one of claim {claim} could be requested, \
         and they would not fit each other: delete this snapshot, and create another one"
    )
}

/// What the storage system reports of the parts of snapshots that are taken.
pub(super) async fn follow(pass: &Pass<'_>, all: &mut [VirtualMachineSnapshot]) -> Outcome<()> {
    let disk = pass.disk_uid();
    for one in all {
        let is_deleting = one.metadata.deletion_timestamp.is_some();
        if is_deleting || !one.is_created() || !snapshots::is_of_disk(one, &disk) {
            continue;
        }
        let mut draft = one.status.clone().unwrap_or_default();
        for record in &mut draft.claims {
            if let Some(found) = parts::find(pass, one, record) {
                parts::observe(record, Some(&found));
                continue;
            }
            if parts::is_missing(record) {
                continue;
            }
            match read(pass, one, record).await? {
                Stored::Part(found) => parts::observe(record, Some(&found)),
                Stored::Missing => parts::observe(record, None),
                Stored::Unknown => {}
            }
        }
        if !draft.claims.is_empty() {
            conditions(pass, one, &mut draft);
            write::status(pass.ctx, one, draft).await?;
        }
    }
    Ok(())
}

/// Drafts whether a snapshot that is taken can be used.
pub(super) fn conditions(
    pass: &Pass<'_>,
    snapshot: &VirtualMachineSnapshot,
    draft: &mut VirtualMachineSnapshotStatus,
) {
    let open = draft.claims.iter().filter(|record| !record.ready);
    let open = open.map(|record| match &record.error {
        Some(error) => format!("{}: {error}", record.claim_name),
        None => record.claim_name.clone(),
    });
    let open: Vec<_> = open.collect();
    let why = format!(
        "the storage system is not ready with these claims: {}",
        open.join(", ")
    );
    let state = |reason| {
        if open.is_empty() {
            (Status::True, "", "")
        } else {
            (Status::False, reason, why.as_str())
        }
    };
    if !draft.claims.is_empty() {
        let synced = state(SYNCING);
        write::condition(pass.ctx, snapshot, draft, SNAPSHOT_CSI_SYNCED, synced);
    }
    let ready = state(WAITING_FOR_SYNC);
    write::condition(pass.ctx, snapshot, draft, SNAPSHOT_READY, ready);
}

/// What the API server has of a part.
enum Stored {
    Part(Arc<VolumeSnapshot>),
    /// It does not exist, or is another one.
    Missing,
    /// The API server that answered does not serve the kind at present.
    Unknown,
}

/// The part at the API server: while the watch of the kind begins, or has lost the label of the part, it shows none.
async fn read(
    pass: &Pass<'_>,
    snapshot: &VirtualMachineSnapshot,
    record: &ClaimSnapshot,
) -> Outcome<Stored> {
    let api = pass.api::<VolumeSnapshot>();
    let name = &record.volume_snapshot_name;
    match api.get(name).await {
        Ok(found) if parts::is_part(&found, snapshot, record) => Ok(Stored::Part(Arc::new(found))),
        Ok(_) => Ok(Stored::Missing),
        // Of the path alone there is no status.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(match status.reason.as_str() {
            "NotFound" => Stored::Missing,
            _ => Stored::Unknown,
        }),
        Err(source) => {
            let what = format!("VolumeSnapshot {name}");
            Err(Error::Read { what, source }.into())
        }
    }
}

/// Creates the part; `Err`: there will be none, and why.
async fn request(
    pass: &mut Pass<'_>,
    snapshot: &VirtualMachineSnapshot,
    record: &ClaimSnapshot,
) -> Outcome<Result<Arc<VolumeSnapshot>, String>> {
    let api = pass.api::<VolumeSnapshot>();
    let name = record.volume_snapshot_name.as_str();
    let claim = &record.claim_name;
    let failed = |source: kube::Error| {
        let name = name.to_owned();
        Error::VolumeSnapshot { name, source }.into()
    };
    let refused = |why: &str| {
        let text = format!("failed to request a snapshot of claim {claim}: {why}");
        Ok(Err(text))
    };
    let new = new(pass, snapshot, record);
    match api.create(&PostParams::default(), &new).await {
        Ok(made) => {
            pass.count_change();
            Ok(Ok(Arc::new(made)))
        }
        // Its event is on its way, or it is none of ours.
        Err(error) if is_conflict(&error) => match api.get_opt(name).await.map_err(failed)? {
            Some(found) if parts::is_part(&found, snapshot, record) => Ok(Ok(Arc::new(found))),
            Some(_) => refused(&format!("VolumeSnapshot {name} exists, and is another one")),
            None => Err(again()),
        },
        // Of several API servers one may have the kind later than the others.
        Err(source) if is_gone(&source) => {
            if are_served(pass).await? {
                Err(failed(source))
            } else {
                refused(&format!("the cluster does not serve {API}"))
            }
        }
        Err(source) if is_refused(&source) => refused(&error::text(&anyhow::Error::new(source))),
        Err(source) => Err(failed(source)),
    }
}

fn new(
    pass: &Pass<'_>,
    snapshot: &VirtualMachineSnapshot,
    record: &ClaimSnapshot,
) -> VolumeSnapshot {
    let source = VolumeSnapshotSource {
        persistent_volume_claim_name: Some(record.claim_name.clone()),
    };
    let spec = VolumeSnapshotSpec {
        source,
        volume_snapshot_class_name: class(pass, &record.claim_name),
    };
    let mut new = VolumeSnapshot::new(&record.volume_snapshot_name, spec);
    new.metadata.namespace = Some(pass.key.namespace.clone());
    let owner = OwnerReference {
        block_owner_deletion: None,
        ..snapshot.controller_owner_ref(&()).unwrap_or_default()
    };
    new.metadata.owner_references = Some(vec![owner]);
    let labels = new.labels_mut();
    let uid = snapshot.uid().unwrap_or_default();
    labels.insert(names::SNAPSHOT_UID_LABEL.to_owned(), uid);
    new
}

/// The class that the storage class of a claim names; none: the default of its driver.
fn class(pass: &Pass<'_>, claim: &str) -> Option<String> {
    let key = Key::new(&pass.key.namespace, claim);
    let claim = pass.ctx.stores.claims.get(&key.reference())?;
    let class = claim.spec.as_ref()?.storage_class_name.as_deref()?;
    let class = pass.ctx.stores.storage_class(class)?;
    let named = class.annotations().get(names::VOLUME_SNAPSHOT_CLASS)?;
    Some(named.clone()).filter(|named| !named.is_empty())
}
