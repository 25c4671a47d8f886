//! Whether disks are linked exactly where their machines say so, and flattened where they should be.
//!
//! Invariant: the node's record decides whether a disk is linked.
//! Failure: none; the condition is in the line.

use super::{Expected, Mode, Nodes, Objects, text};
use crate::chaos::desired::Promotion;
use crate::machines::condition;

const SYNCED: &str = "VirtualMachineDiskPromotionSynced";

pub(super) fn compare(wrong: &mut Vec<String>, expected: &Expected, seen: &Objects, nodes: &Nodes) {
    for (name, vm) in &seen.machines {
        let uid = text(&vm["metadata"]["uid"]);
        let Some(disk) = nodes.listed.iter().find(|disk| disk.vm_uid == uid) else {
            continue;
        };
        let desired = expected.machines.get(name);
        let synced = condition(vm, SYNCED);
        let is_promoted = synced["reason"] == "Promoted";
        if is_promoted && disk.linked {
            wrong.push(format!(
                "{name} is called promoted, and its disk is linked: {synced}"
            ));
        }
        let is_due = desired.is_some_and(|desired| {
            desired.promotion == Promotion::Offline
                && matches!(desired.mode, Mode::Off | Mode::Halted)
        });
        let is_off = text(&vm["status"]["printableStatus"]) == "Stopped";
        if is_due && is_off && disk.snapshots.is_empty() && disk.linked {
            wrong.push(format!("the disk of {name} is not flattened: {synced}"));
        }
    }
}
