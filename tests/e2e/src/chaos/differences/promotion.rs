//! Whether disks are linked exactly where their machines say so, and flattened where they should be.
//!
//! Invariant: the node's record decides whether a disk is linked.
//! Failure: none; the condition is in the line.

use super::{Expected, Mode, Nodes, Objects, backups, text};
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
        let is_due = desired.is_some_and(|desired| match desired.promotion {
            Promotion::Offline => matches!(desired.mode, Mode::Off | Mode::Halted),
            Promotion::Online => expected.promotes_online && desired.mode.is_on(),
            Promotion::Disabled => false,
        });
        // A machine that is to be on, and is not, is a line of its own.
        let word = text(&vm["status"]["printableStatus"]);
        let is_its_turn = is_due && ["Stopped", "Running"].contains(&word);
        let has_layers = !disk.snapshots.is_empty() || backups::kept(seen, uid) > 0;
        if is_its_turn && !has_layers && disk.linked {
            wrong.push(format!("the disk of {name} is not flattened: {synced}"));
        }
    }
}
