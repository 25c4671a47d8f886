//! The recorded class.
//!
//! Invariant: with resizing on, only a resize that was done writes the class of a machine that has
//! one.
//! Failure: none.

use crds::conditions::CLASS_CONFIGURATION_SYNCED;

use super::Pass;

pub(super) fn run(pass: &mut Pass<'_>) {
    let name = pass.vm.spec.class_name.clone();
    let resize = pass.ctx.config.machines.resize;
    let status = pass.status();
    match name {
        None => {
            status.class = None;
            status.class_revision = None;
            pass.drop_condition(CLASS_CONFIGURATION_SYNCED);
        }
        Some(name) if status.class.is_none() && !resize => status.class = Some(name),
        Some(_) => {}
    }
}
