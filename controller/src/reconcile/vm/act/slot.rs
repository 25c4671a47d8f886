//! Reserves a create slot for the root disk of a machine.
//!
//! Invariant: a slot that a pass has taken is given back when the pass ends without a task.
//! Failure: a machine without a slot is woken when one is reserved for it.

use crds::names;
use kube::ResourceExt;

use crate::context::{Context, Key};
use crate::flow::Flow;
use crate::reconcile::vm::observe::view;
use crate::reconcile::vm::pass::Pass;
use crate::shared::slots::{Limits, Made, Slot, SlotRequest};

/// Whether a task on that node counts: while the node or its agent is away, others may make disks.
fn works(ctx: &Context, node: &str) -> bool {
    view::reports(&ctx.stores, node) && ctx.stores.agents.lives(node)
}

/// Its task owns the machine until it ends; its event wakes it.
pub(crate) fn is_being_made(pass: &Pass<'_>) -> Flow {
    Flow::RequeueAfter(pass.ctx.config.runner.recheck.get())
}

/// The machine is woken when there is a slot for it.
pub(crate) fn no_slot(pass: &Pass<'_>) -> Flow {
    tracing::debug!(vm = %pass.key, "machine waits for a create slot");
    Flow::RequeueAfter(pass.ctx.config.runner.recheck.get())
}

/// A slot, unless all are taken.
pub(crate) fn take_slot(pass: &Pass<'_>, node: Option<&str>) -> Option<Slot> {
    let tasks = &*pass.ctx.stores.tasks.state();
    let works = &|node: &str| works(pass.ctx, node);
    let uid = &*pass.disk_uid();
    let key = pass.key;
    let request = SlotRequest { uid, key, node };
    let slots = &pass.ctx.shared.slots;
    let made = Made { tasks, works };
    slots.take(request, made, limits(pass.ctx), pass.seconds())
}

fn limits(ctx: &Context) -> Limits {
    Limits {
        cluster: ctx.config.create_slots(),
        node: ctx.config.machines.creates_per_node,
    }
}

/// Slots that this pass left free, or found free, go to those who wait for one.
pub(crate) fn pass_on_slots(ctx: &Context) {
    let wants = |key: &Key, uid: &str| {
        ctx.stores.vm(key).is_some_and(|vm| {
            vm.metadata.uid.as_deref() == Some(uid)
                && vm.metadata.deletion_timestamp.is_none()
                && !vm.annotations().contains_key(names::PAUSED)
        })
    };
    let now = (ctx.clock)().0.as_second();
    let tasks = || ctx.stores.tasks.state();
    let works = &|node: &str| works(ctx, node);
    let slots = &ctx.shared.slots;
    slots.pass_on(tasks, works, wants, limits(ctx), now);
}
