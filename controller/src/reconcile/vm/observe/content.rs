//! What the root disk of a machine has, if it is a claim, in the manifest of a snapshot.
//!
//! Invariant: recorded before the disk is taken: what a guest filled afterwards is not in the snapshot.
//! Failure: none; a snapshot of an earlier version has no record, and its disk counts as that of the present.

use crds::{VirtualMachineSnapshot, names};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::reconcile::vm::pass::Pass;
use crate::reconcile::vm::prerequisites::{has_content, made_root_claim, root_is_clone};

/// Field of the manifest.
pub(crate) const KEY: &str = "rootDisk";

/// The content of a claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Content {
    /// A guest has run from the disk, or it is a clone: no pod needs the image.
    pub(crate) is_complete: bool,
    /// The claim was made for the machine, and goes with it.
    #[serde(default)]
    pub(crate) goes_with_machine: bool,
    /// The image that it was filled from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) image: Option<String>,
    /// The URL that the name of the image refers to.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "imageURL")]
    pub(crate) image_url: Option<String>,
}

/// That of the machine at present; `None`: its root disk is no claim.
pub(crate) fn present(pass: &Pass<'_>) -> Option<Value> {
    pass.root_claim()?;
    let status = pass.seen().cloned().unwrap_or_default();
    // A clone needs no image before its guest has run, too.
    let of_clone = root_is_clone(pass).then(|| names::NO_IMAGE.to_owned());
    let content = Content {
        is_complete: has_content(pass),
        goes_with_machine: made_root_claim(pass).is_some(),
        image: status.image.or(of_clone),
        image_url: status.image_url,
    };
    serde_json::to_value(content).ok()
}

/// That on record in a snapshot.
pub(crate) fn recorded(snapshot: &VirtualMachineSnapshot) -> Option<Content> {
    let manifest = snapshot.status.as_ref()?.manifest.as_ref()?.fields()?;
    serde_json::from_value(manifest.get(KEY)?.clone()).ok()
}
