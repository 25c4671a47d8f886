//! The status of an image: what it is, which nodes have it, whether machines can be made from it.
//!
//! | `Ready` | reason | when |
//! | --- | --- | --- |
//! | True | `Available` | a node has read its first bytes, or its claim is bound |
//! | True | `OnNodes` | no node can read it at its source now, but some have it |
//! | False | `NotReady` | no node can read it, it is no disk, or its claim is not bound |
//! | False | `NotSupported` | its source cannot be used |
//! | False | `VersionGone` | the web server has another version of the file, and no node has this one |
//! | Unknown | `VersionNotSeen` | the same, but nodes whose list of images is not whole may have it |
//! | Unknown | `NoVersion` | it follows a tag or a file that no node has checked yet |
//! | Unknown | `Inspecting`, `NoNode`, `NotInspected` | a node reads it; no node can; it has a pull secret |
//!
//! Invariant: facts and `Ready` are of the source in `providerItemID`; `usedSince` is written
//! elsewhere.
//! Failure: a write that the API server refuses is repeated with the pass.

use crds::conditions::{self, READY, Status};
use crds::{ImageDisk, InspectedImage, VirtualMachineImageStatus};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::LONGEST;
use super::inspect::Answer;
use super::nodes::Holders;
use super::object::{AVAILABLE, Object};
use super::pre_pull::Pulls;
use super::update::{self, UP_TO_DATE, Updates};
use crate::context::Context;
use crate::flow::{Outcome, PassError};
use crate::reconcile::answers::{is_conflict, is_gone};
use crate::reconcile::vm::quantity;

/// Owner of the status fields.
const MANAGER: &str = "vmlet-controller";
/// Condition: a BIOS finds something to boot. Absent while that is not known.
const BOOTABLE: &str = "Bootable";

/// The status that the image should have.
pub(crate) fn draft(
    object: &Object,
    answer: &Answer,
    (holders, pulls, updates): (&Holders, &Pulls, &Updates),
    now: &Time,
) -> VirtualMachineImageStatus {
    let mut new = object.status().cloned().unwrap_or_default();
    new.used_since = None;
    new.provider_item_id = object.provider_id();
    let of_source = object.source().http.as_ref().and_then(|h| h.digest.clone());
    let one = holders
        .digests
        .first()
        .filter(|_| holders.digests.len() == 1);
    let of_source = of_source.filter(|d| !d.is_empty());
    let of_source = of_source.or_else(|| object.version().map(str::to_owned));
    new.provider_content_version = of_source.or_else(|| one.cloned());
    new.update.clone_from(&updates.status);
    new.versions.clone_from(&updates.versions);
    new.node_names = holders
        .nodes
        .iter()
        .take(VirtualMachineImageStatus::MOST_NODES)
        .cloned()
        .collect();
    new.pre_pull = pulls.status.clone();
    new.node_count = Some(u32::try_from(holders.nodes.len()).unwrap_or(u32::MAX));
    if let Answer::Found(found) | Answer::VersionNotSeen(_, found) = answer {
        new.type_ = Some(found.format.clone()).filter(|format| !format.is_empty());
        new.firmware = found.firmware.clone();
        new.disks = vec![ImageDisk {
            name: "root".to_owned(),
            limit: bytes(found.virtual_bytes),
            requested: bytes(found.file_bytes),
        }];
        if new.type_.is_some() {
            bootable(&mut new, found, object.generation(), now);
        } else {
            conditions::remove(&mut new.conditions, BOOTABLE);
        }
    } else if let Answer::Claim(bytes) = answer {
        // Both kinds of claims hold raw disks.
        new.type_ = Some("raw".to_owned());
        new.firmware = None;
        new.disks = vec![ImageDisk {
            name: "root".to_owned(),
            limit: bytes.map(quantity),
            requested: None,
        }];
        conditions::remove(&mut new.conditions, BOOTABLE);
    } else if object.ready().is_none() {
        // What is known is of another source.
        new.type_ = None;
        new.firmware = None;
        new.disks.clear();
        conditions::remove(&mut new.conditions, BOOTABLE);
    }
    ready(&mut new, object, answer, holders, now);
    up_to_date(&mut new, object, updates, now);
    new
}

fn up_to_date(new: &mut VirtualMachineImageStatus, object: &Object, updates: &Updates, now: &Time) {
    let all = &mut new.conditions;
    let Some(verdict) = &updates.verdict else {
        conditions::remove(all, UP_TO_DATE);
        return;
    };
    let end = verdict.message.floor_char_boundary(LONGEST);
    let message = &verdict.message[..end];
    conditions::set(
        all,
        UP_TO_DATE,
        verdict.status,
        verdict.reason,
        message,
        Some(object.generation()),
        now,
    );
}

fn bootable(
    new: &mut VirtualMachineImageStatus,
    found: &InspectedImage,
    generation: i64,
    now: &Time,
) {
    let (status, reason, message) = match (found.bootable, found.firmware.as_deref()) {
        (true, None) if found.format == "qcow2" => (
            Status::Unknown,
            "BootSectorNotSeen",
            "the first bytes of the file do not show the boot sector of the disk, or the disk is empty; the \
             pod has an event if no machine boots from it",
        ),
        (true, _) => (Status::True, "BootSectorFound", ""),
        (false, Some("efi")) => (
            Status::True,
            "BootsByUEFI",
            "only UEFI boots it: it has a partition table and no boot code. Its machines boot by UEFI, on \
             nodes with the label node.vmlet.dev/uefi",
        ),
        (false, _) => (
            Status::False,
            "NoBootSector",
            "a disk without a boot sector or partition table: a guest may not start from it; check that \
             the URL is the disk itself. An ISO image boots only if it is a hybrid: machines have it as a \
             hard disk",
        ),
    };
    let all = &mut new.conditions;
    conditions::set(
        all,
        BOOTABLE,
        status,
        reason,
        message,
        Some(generation),
        now,
    );
}

fn ready(
    new: &mut VirtualMachineImageStatus,
    object: &Object,
    answer: &Answer,
    holders: &Holders,
    now: &Time,
) {
    let on_nodes = |why: &str| match holders.nodes.len() {
        0 => None,
        1 => Some(format!("{why}; one node has it")),
        more => Some(format!("{why}; {more} nodes have it")),
    };
    let (status, reason, message) = match answer {
        Answer::Found(found) if found.format.is_empty() => (
            Status::True,
            AVAILABLE,
            "its first bytes do not show what disk is in it: a pull does".to_owned(),
        ),
        Answer::OnRecord | Answer::Found(_) => (Status::True, AVAILABLE, several(holders)),
        Answer::Claim(_) => (Status::True, AVAILABLE, String::new()),
        Answer::NoClaim(why) => (Status::False, "NotReady", why.clone()),
        Answer::Failed { message, .. } => match on_nodes(message) {
            Some(message) => (Status::True, "OnNodes", message),
            None => (Status::False, "NotReady", message.clone()),
        },
        Answer::NotSupported(message) => (Status::False, "NotSupported", message.clone()),
        Answer::NoVersion(message) => (Status::Unknown, "NoVersion", message.clone()),
        Answer::VersionGone(message) => (Status::False, "VersionGone", message.clone()),
        Answer::VersionNotSeen(message, _) => (Status::Unknown, "VersionNotSeen", message.clone()),
        // The last answer counts until there is a new one.
        Answer::Waiting { .. } if object.ready().is_some() => return,
        Answer::Waiting { node } => {
            let message = format!("node {node} reads its first bytes");
            (Status::Unknown, "Inspecting", message)
        }
        Answer::Private => {
            let why = "the image has a pull secret: kubelet pulls it, and no node reads it before";
            match on_nodes(why) {
                Some(message) => (Status::True, "OnNodes", message),
                None => (Status::Unknown, "NotInspected", why.to_owned()),
            }
        }
        Answer::NoNode => {
            let why = "no node with a vmlet-agent that can read images is alive";
            match on_nodes(why) {
                Some(message) => (Status::True, "OnNodes", message),
                None => (Status::Unknown, "NoNode", why.to_owned()),
            }
        }
    };
    let end = message.floor_char_boundary(LONGEST);
    let generation = Some(object.generation());
    let all = &mut new.conditions;
    conditions::set(all, READY, status, reason, &message[..end], generation, now);
}

/// A warning where nodes have different contents.
fn several(holders: &Holders) -> String {
    match holders.digests.len() {
        0 | 1 => String::new(),
        more => format!(
            "nodes have {more} different contents of it: the file was changed at its source; set source.http.digest, \
             or give each version a URL of its own"
        ),
    }
}

fn bytes(count: i64) -> Option<Quantity> {
    (count > 0).then(|| quantity(i128::from(count)))
}

/// Writes the status where it differs, and states what is new about `Ready`.
pub(crate) async fn write(
    ctx: &Context,
    object: &Object,
    new: &VirtualMachineImageStatus,
) -> Outcome<()> {
    let mut old = object.status().cloned().unwrap_or_default();
    old.used_since = None;
    if *new == old {
        return Ok(());
    }
    let key = object.key();
    let mut body = json!({
        "apiVersion": format!("{}/{}", crds::GROUP, crds::VERSION),
        "kind": object.kind(),
        "metadata": { "name": key.name, "uid": object.uid() },
        "status": new,
    });
    if !key.namespace.is_empty() {
        body["metadata"]["namespace"] = json!(key.namespace);
    }
    let params = PatchParams::apply(MANAGER).force();
    let patch = Patch::Apply(body);
    match object.patch_status(&ctx.client, &params, &patch).await {
        Ok(()) => {
            record_events(ctx, object, &old, new);
            Ok(())
        }
        // Deleted, or made again, while it was checked.
        Err(error) if is_gone(&error) || is_conflict(&error) => Ok(()),
        Err(source) => {
            let error = anyhow::Error::new(source);
            Err(PassError::Failed(
                error.context(format!("write the status of image {key}")),
            ))
        }
    }
}

fn record_events(
    ctx: &Context,
    object: &Object,
    old: &VirtualMachineImageStatus,
    new: &VirtualMachineImageStatus,
) {
    record_pulls(ctx, object, old, new);
    update::record_events(ctx, object, old, new);
    for kind in [READY, BOOTABLE] {
        let of = |status: &VirtualMachineImageStatus| {
            let found = conditions::find(&status.conditions, kind);
            found.map(|c| (c.status.clone(), c.reason.clone(), c.message.clone()))
        };
        let Some((status, reason, message)) = of(new).filter(|new| of(old).as_ref() != Some(new))
        else {
            continue;
        };
        match status.as_str() {
            "False" => object.report(&ctx.events, true, &reason, &message),
            "True" if kind == READY => {
                let type_ = new.type_.as_deref().unwrap_or("image");
                let text = match message.as_str() {
                    "" if object.claim().is_some() => "its claim is bound".to_owned(),
                    "" => format!("a disk of format {type_} can be read at its source"),
                    message => message.to_owned(),
                };
                object.report(&ctx.events, !message.is_empty(), &reason, &text);
            }
            _ => {}
        }
    }
}

/// A failure of a node, and the moment at which all desired nodes have the image.
fn record_pulls(
    ctx: &Context,
    object: &Object,
    old: &VirtualMachineImageStatus,
    new: &VirtualMachineImageStatus,
) {
    let Some(pulls) = &new.pre_pull else { return };
    let before = old.pre_pull.clone().unwrap_or_default();
    if pulls.failed > 0 && (pulls.failed, &pulls.message) != (before.failed, &before.message) {
        object.report(&ctx.events, true, "PrePullFailed", &pulls.message);
    }
    if pulls.is_complete() && !before.is_complete() {
        let text = match pulls.ready {
            1 => "one node has the image".to_owned(),
            count => format!("{count} nodes have the image"),
        };
        object.report(&ctx.events, false, "PrePulled", &text);
    }
}
