//! The group of a machine, and what the machine waits for because of it.
//!
//! Invariant: a machine that its group does not name gets no disk, and one that its group has not given a
//! power state yet does not start for the first time. A machine that has a disk, or has started once, goes on
//! whatever becomes of its group.
//! Failure: the condition `GroupLinked` says why; a change of the group, or of the machine, ends the wait.

use crds::conditions::{GROUP_LINKED, Status};
use crds::names::FIRST_BOOT_DONE;
use kube::ResourceExt;
use lifecycle::group::waits_for_group;

use crate::reconcile::group::family;
use crate::reconcile::group::placement::Grouping;
use crate::reconcile::vm::observe::find;
use crate::reconcile::vm::pass::Pass;

/// Sets or drops the condition.
pub(crate) fn link(pass: &mut Pass<'_>) {
    match family::of_machine(&pass.ctx.stores, &pass.vm) {
        None => pass.drop_condition(GROUP_LINKED),
        Some(Err(why)) => {
            pass.condition(GROUP_LINKED, Status::False, why.reason(), why.message());
        }
        Some(Ok(_)) => {
            let waits = holds_start(pass).unwrap_or_default();
            pass.condition(GROUP_LINKED, Status::True, "", &waits);
        }
    }
}

/// Why no disk is made; `None`: one may be made, or is being made.
pub(crate) fn holds_disk(pass: &Pass<'_>) -> Option<String> {
    if pass.node_name().is_some() || find::placeholder(pass).is_some() {
        return None;
    }
    let why = family::of_machine(&pass.ctx.stores, &pass.vm)?.err()?;
    Some(why.message().to_owned())
}

/// Why the machine does not start; `None`: its group does not keep it from that.
pub(crate) fn holds_start(pass: &Pass<'_>) -> Option<String> {
    if pass.has(FIRST_BOOT_DONE) {
        return None;
    }
    let group = family::of_machine(&pass.ctx.stores, &pass.vm)?.ok()?;
    let desired = group.spec.power_state?;
    let uid = group.uid().unwrap_or_default();
    waits_for_group(&pass.vm.spec, pass.vm.annotations(), &uid, desired).then(|| {
        let name = group.name_any();
        format!("the group {name} has not set its power state yet")
    })
}

/// What the scheduler is to know of the group.
pub(crate) fn grouping(pass: &Pass<'_>) -> Option<Grouping> {
    Grouping::find(&pass.ctx.stores, &pass.vm)
}
