//! Makes the source of an image immutable from the first disk on.
//!
//! Invariant: `usedSince` is recorded before a task that makes a disk exists, on the version of
//! the image whose source the task has: an edit in between makes the write fail.
//! Failure: the machine's pass is repeated, with the image as it is then.

use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::object::Object;
use crate::context::Context;
use crate::flow::{Outcome, PassError};
use crate::reconcile::answers::{again, is_conflict, is_gone};

/// Owner of the one field.
const MANAGER: &str = "vmlet-controller-used";

/// Records that a disk is about to be made from this version of the image.
pub(crate) async fn record(ctx: &Context, object: &Object) -> Outcome<()> {
    if object.status().is_some_and(|s| s.used_since.is_some()) {
        return Ok(());
    }
    let body = json!({
        "metadata": { "uid": object.uid(), "resourceVersion": object.meta().resource_version },
        "status": { "usedSince": (ctx.clock)() },
    });
    let params = PatchParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let patch = Patch::Merge(body);
    match object.patch_status(&ctx.client, &params, &patch).await {
        Ok(()) => Ok(()),
        Err(error) if is_gone(&error) || is_conflict(&error) => Err(again()),
        Err(source) => {
            let text = format!("write the status of image {}", object.key());
            Err(PassError::Failed(anyhow::Error::new(source).context(text)))
        }
    }
}
