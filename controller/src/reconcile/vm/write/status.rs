//! The parts of a machine's status that do not follow from its life cycle.
//!
//! Invariant: no part stops another; what cannot be found out keeps its last value.
//! Failure: the parts that failed, together.

mod class;
mod guest;
mod network;
mod place;
mod readiness;

use crds::conditions::{self, Status};
use crds::vm::PrintableStatus;
use crds::{PowerState, names};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use lifecycle::Machine;
use lifecycle::conditions::Guest;
use lifecycle::printable;

use crate::flow::{Flow, Outcome, PassError};
use crate::reconcile::vm::act::{config, create};
use crate::reconcile::vm::error::joined;
use crate::reconcile::vm::observe::pods;
use crate::reconcile::vm::pass::{Pass, shortened};
use crate::reconcile::vm::prerequisites::unsupported;

pub(crate) use network::is_enabled;

/// Drafts all parts of the status.
pub(crate) fn run(pass: &mut Pass<'_>) -> Outcome {
    remember_disk(pass);
    create::exists(pass);
    class::run(pass);
    power_synced(pass);
    let facts = guest::facts(pass);
    unsupported::run(pass, facts.as_ref().ok().and_then(Option::as_ref));
    place::run(pass);
    let mut errors = Vec::new();
    match facts {
        Ok(facts) => {
            guest::run(pass, facts.as_ref());
            network::run(pass, facts.as_ref());
            readiness::run(pass, facts.as_ref());
        }
        Err(error) => errors.push(error),
    }
    config::sync_paused_label(pass);
    mark_paused(pass);
    match joined(errors) {
        Some(error) => Err(PassError::Failed(error)),
        None => Ok(Flow::Continue),
    }
}

/// An adopted pod whose machine was not recorded as its disk's owner yet.
fn remember_disk(pass: &mut Pass<'_>) {
    let pod = pass.view.pod.clone();
    let Some(pod) = pod.filter(|p| !pods::is_over(p)) else {
        return;
    };
    let disk = pods::annotation(&pod, names::VM_DISK).map(str::to_owned);
    if let Some(disk) = disk.filter(|d| *d != pass.disk_uid()) {
        let is_own = disk == pass.uid();
        pass.status().disk_uid = Some(disk).filter(|_| !is_own);
    }
}

fn power_synced(pass: &mut Pass<'_>) {
    let status = pass.vm.status.clone().unwrap_or_default();
    let instance = pass.view.instance.as_ref();
    let wanted = lifecycle::desired_power_state(&pass.vm.spec, &status, instance);
    let seen = status.power_state.unwrap_or(PowerState::PoweredOff);
    let kind = conditions::POWER_STATE_SYNCED;
    match wanted {
        Ok(wanted) if wanted == seen => pass.condition(kind, Status::True, "Synced", ""),
        Ok(wanted) => {
            let text = format!("{wanted:?} is wanted, {seen:?} is so");
            pass.condition(kind, Status::False, "NotSynced", &text);
        }
        Err(error) => pass.condition(kind, Status::False, "NotSynced", &error.to_string()),
    }
}

/// Says who paused the machine.
pub(crate) fn mark_paused(pass: &mut Pass<'_>) {
    let who = pass.vm.labels().get(names::PAUSED_LABEL).cloned();
    let kind = conditions::RECONCILE_READY;
    match who {
        Some(who) => {
            let text = format!("paused by {who}");
            let reason = "VirtualMachineReconcilePaused";
            pass.condition(kind, Status::False, reason, &text);
        }
        None => pass.condition(kind, Status::True, "", ""),
    }
}

/// The conditions that are written ahead of an effect. How the pass ends is not known yet: the
/// failure of the last one stays, or two passes that fail in the same way would write it twice.
pub(crate) fn announce(pass: &mut Pass<'_>) {
    let before = pass.seen().map_or(&[][..], |status| &status.conditions);
    let is_failure = |c: &Condition| c.type_ == conditions::FAILURE;
    let index = before.iter().position(is_failure);
    let failure = index.map(|index| (index, before[index].clone()));
    conclude(pass, None);
    if let Some((index, failure)) = failure {
        let all = &mut pass.status().conditions;
        all.insert(index.min(all.len()), failure);
        summarize(pass);
    }
}

/// What the conditions say in one word and one sentence.
fn summarize(pass: &mut Pass<'_>) {
    let status = pass.status();
    let message = printable::obstacle(&status.conditions);
    status.message = message.map(|text| shortened(&text).to_owned());
    if let Some(word) = status.printable_status {
        status.printable_status = Some(printable::with_obstacle(word, &status.conditions));
    }
}

/// A machine that is on its way and gets no pod is shown with the word of the failure, unless a part that
/// is missing has given it one.
pub(crate) fn without_pod(pass: &mut Pass<'_>, word: Option<PrintableStatus>) {
    let status = pass.status();
    let is_on_its_way = matches!(
        status.printable_status,
        Some(PrintableStatus::Provisioning | PrintableStatus::Starting)
    );
    if is_on_its_way && !status.created {
        status.printable_status = word.or(status.printable_status);
    }
}

/// The conditions that follow from the instance and from how the pass ended.
pub(crate) fn conclude(pass: &mut Pass<'_>, failure: Option<&lifecycle::Failure>) {
    if !pass.view.is_known {
        if let Some(failure) = failure {
            let text = failure.message.as_str();
            pass.condition(conditions::FAILURE, Status::True, failure.reason, text);
        }
        return;
    }
    let generation = pass.vm.metadata.generation;
    let now = pass.now.clone();
    let status = pass.vm.status.clone().unwrap_or_default();
    let guest = readiness::guest(pass);
    let mut all = status.conditions.clone();
    let mut meta = pass.view.meta.clone();
    meta.generation = generation.unwrap_or_default();
    let machine = Machine {
        spec: &pass.vm.spec,
        status: &status,
        meta: &meta,
        instance: pass.view.instance.as_ref(),
        preconditions: &pass.view.preconditions,
    };
    lifecycle::conditions::update(&mut all, &machine, failure, guest, &now);
    if let Some((reason, text)) = readiness::unknown(pass) {
        let kind = conditions::READY;
        let status = Status::Unknown;
        conditions::set(&mut all, kind, status, reason, text, generation, &now);
    }
    let status = pass.status();
    status.ready &= !matches!(guest, Guest::Silent(_));
    status.conditions = all;
    summarize(pass);
}
