//! Which claims a revert makes, and how the machine names them.
//!
//! Invariant: a function of the snapshot, the name of the machine and the begin of the revert.
//! Failure: none; what the manifest does not have is not renamed.

use crds::{ClaimSnapshot, VirtualMachineSnapshot};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::reconcile::vm::observe::content;
use crate::reconcile::vm::prerequisites::ROOT;

/// Most characters of the name of a claim that the name of a new one begins with.
const PREFIX: usize = 200;

/// A claim that a revert makes.
#[derive(Debug)]
pub(super) struct Replacement<'a> {
    /// What it is made of, and the claim that it replaces.
    pub(super) record: &'a ClaimSnapshot,
    pub(super) name: String,
    /// It is deleted with the machine, as the one that it replaces.
    pub(super) goes_with_machine: bool,
    /// No volume of the manifest names the one that it replaces: the controller made that for the storage class.
    is_of_class: bool,
}

/// The claims that a snapshot has parts of.
pub(in crate::reconcile::vm::act) fn records(
    snapshot: &VirtualMachineSnapshot,
) -> &[ClaimSnapshot] {
    let status = snapshot.status.as_ref();
    status.map_or(&[][..], |status| status.claims.as_slice())
}

/// The claims that one revert of this machine makes.
pub(super) fn replacements<'a>(
    vm: &str,
    snapshot: &'a VirtualMachineSnapshot,
    seed: &str,
) -> Vec<Replacement<'a>> {
    let manifest = snapshot.status.as_ref();
    let manifest = manifest.and_then(|status| status.manifest.as_ref()?.fields());
    let volumes = manifest.as_ref().and_then(|all| all.get("spec"));
    let volumes = volumes.and_then(|spec| spec.get("volumes")?.as_array());
    let volumes = volumes.map_or(&[][..], Vec::as_slice);
    let content = content::recorded(snapshot);
    let goes_with_machine = content.is_some_and(|content| content.goes_with_machine);
    let replacement = |record: &'a ClaimSnapshot| {
        let mut named = volumes.iter();
        let named = named.find(|volume| volume["name"] == record.volume_name);
        let is_root = named.is_some_and(|volume| volume["persistentVolumeClaim"]["root"] == true);
        let is_of_class = record.volume_name == ROOT && named.is_none();
        let goes_with_machine = is_of_class || is_root && goes_with_machine;
        let claim = &record.claim_name;
        // Otherwise the name would grow with each revert.
        let begin = if goes_with_machine {
            format!("{vm}-root")
        } else {
            claim.clone()
        };
        Replacement {
            record,
            name: name(&begin, claim, seed),
            goes_with_machine,
            is_of_class,
        }
    };
    records(snapshot).iter().map(replacement).collect()
}

/// The new claims take the place of the earlier ones in the manifest of the machine. That of the storage class, which the
/// manifest does not name, is a volume from then on: the name that the controller chooses is that of the earlier claim.
pub(in super::super) fn rename(
    manifest: &mut Map<String, Value>,
    snapshot: &VirtualMachineSnapshot,
    vm: &str,
    seed: &str,
) {
    let all = replacements(vm, snapshot, seed);
    let spec = manifest.get_mut("spec").and_then(Value::as_object_mut);
    let Some(spec) = spec.filter(|_| !all.is_empty()) else {
        return;
    };
    let volumes = spec.entry("volumes").or_insert_with(|| json!([]));
    let Some(volumes) = volumes.as_array_mut() else {
        return;
    };
    for volume in volumes.iter_mut() {
        let Some(claim) = volume.pointer_mut("/persistentVolumeClaim/claimName") else {
            continue;
        };
        let mut all = all.iter();
        if let Some(new) = all.find(|new| *claim == new.record.claim_name) {
            *claim = json!(new.name);
        }
    }
    if let Some(new) = all.iter().find(|new| new.is_of_class) {
        let claim = json!({ "claimName": new.name, "root": true });
        let root = json!({ "name": ROOT, "persistentVolumeClaim": claim });
        volumes.insert(0, root);
    }
}

/// Name of the claim that replaces this one in one revert.
fn name(begin: &str, claim: &str, seed: &str) -> String {
    let digest = Sha256::digest(format!("{seed}/{claim}"));
    let begin = &begin[..begin.len().min(PREFIX)];
    let begin = begin.trim_end_matches(['.', '-']);
    let hex: String = digest[..4]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("{begin}-{hex}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_name_is_valid_and_of_one_revert() {
        let first = name("data", "data", "uid/1");
        assert!(first.starts_with("data-") && first.len() == 13, "{first}");
        assert_eq!(first, name("data", "data", "uid/1"));
        assert_ne!(first, name("data", "data", "uid/2"));
        assert_ne!(first, name("data", "data-1", "uid/1"));
        let long = format!("{}.x", "a".repeat(PREFIX - 1));
        let long = name(&long, &long, "uid/1");
        assert!(long.len() < 253 && !long.contains('.'), "{long}");
    }
}
