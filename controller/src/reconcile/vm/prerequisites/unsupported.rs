//! Fields of a machine that no program acts on, or not in this machine, and what its node reports
//! that the guest does not get, such as user data that cloud-init ignores.
//!
//! Invariant: the condition is set in every pass, and is there exactly as long as the machine has
//! such a field, or runs without something. Fields that nothing acts on come from
//! [`crds::vm::fields`], so that none is forgotten.
//! Failure: none; the machine starts without them, or its node refuses it with a message.

use crds::VirtualMachineSpec;
use crds::conditions::{self, Status};
use crds::guest_facts::GuestFacts;
use crds::names;
use crds::vm::fields::{Actor, FIELDS};
use crds::vm::{InterfaceSpec, PowerOpMode};

use super::Image;
use crate::reconcile::vm::pass::Pass;
use crate::reconcile::vm::prerequisites;

/// What decides besides the specification.
struct Facts {
    cpu_model: Option<String>,
    image: Option<Image>,
    has_root_claim: bool,
    makes_root_claim: bool,
    asks_for_fast_deploy: bool,
}

/// Sets or drops the condition; `reported` are the facts of the machine that runs.
pub(crate) fn run(pass: &mut Pass<'_>, reported: Option<&GuestFacts>) {
    let class = prerequisites::class(pass).ok().flatten();
    let facts = Facts {
        cpu_model: class.and_then(|class| class.spec.cpu_model.clone()),
        image: prerequisites::image(pass),
        has_root_claim: pass.root_claim().is_some(),
        makes_root_claim: super::root_claim::made(pass).is_some(),
        asks_for_fast_deploy: pass.has(names::FAST_DEPLOY),
    };
    let fields = list(&pass.vm.spec, &facts);
    let lost = reported.map_or(&[][..], |facts| facts.unsupported.as_slice());
    let reason = if fields.is_empty() {
        conditions::NOT_GIVEN
    } else {
        conditions::NOT_IMPLEMENTED
    };
    match message(&fields, lost) {
        Some(text) => pass.condition(conditions::UNSUPPORTED, Status::True, reason, &text),
        None => pass.drop_condition(conditions::UNSUPPORTED),
    }
}

/// What has no effect, then what the node reports.
fn message(fields: &[String], lost: &[String]) -> Option<String> {
    let fields = (!fields.is_empty()).then(|| format!("without effect: {}", fields.join(", ")));
    let lost = (!lost.is_empty()).then(|| format!("reported by the node: {}", lost.join("; ")));
    let parts: Vec<_> = fields.into_iter().chain(lost).collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// What is not supported, in the order of the fields.
fn list(spec: &VirtualMachineSpec, facts: &Facts) -> Vec<String> {
    let value = serde_json::to_value(spec).unwrap_or_default();
    let partly = partly(spec, facts);
    let mut found = Vec::new();
    for field in FIELDS {
        let some = partly.iter().find(|(path, _)| *path == field.path);
        match some {
            Some((_, true)) => found.push(named(field.path, field.limit)),
            Some((_, false)) => {}
            None if field.actor == Actor::NoneYet && field.is_in(&value) => {
                found.push(named(field.path, field.limit));
            }
            None => {}
        }
    }
    let cpu_model = facts.cpu_model.as_deref().unwrap_or_default();
    let image = facts.image.as_ref();
    let elsewhere = [
        (
            "the class's cpuModel",
            !matches!(cpu_model, "" | "host-model"),
        ),
        (
            "the image's source.http.tlsSecret (a Secret belongs to one namespace: use \
             VirtualMachineImage)",
            image.is_some_and(|i| i.has_unused_tls_secret),
        ),
        (
            "the annotation vmlet.dev/fast-deploy (the root disk is a claim, and no node makes it)",
            facts.asks_for_fast_deploy && facts.has_root_claim,
        ),
        (
            "the annotation vmlet.dev/fast-deploy (the root disk is a clone, which is a full copy)",
            facts.asks_for_fast_deploy && spec.source.is_some(),
        ),
    ];
    let elsewhere = elsewhere.into_iter().filter(|(_, is_so)| *is_so);
    found.extend(elsewhere.map(|(name, _)| name.to_owned()));
    found
}

fn named(path: &str, limit: &str) -> String {
    match limit {
        "" => path.to_owned(),
        limit => format!("{path} ({limit})"),
    }
}

/// Fields whose value, or the rest of the machine, decides whether they have an effect; `true`:
/// they have none.
fn partly(spec: &VirtualMachineSpec, facts: &Facts) -> Vec<(&'static str, bool)> {
    let network = spec.network.clone().unwrap_or_default();
    let interfaces: &[InterfaceSpec] = &network.interfaces;
    let renamed = |(index, nic): (usize, &InterfaceSpec)| nic.name != format!("eth{index}");
    let probe = spec.readiness_probe.as_ref();
    let by_agent = probe.filter(|probe| probe.tcp_socket.is_none());
    vec![
        (
            "suspendMode",
            spec.suspend_mode
                .is_some_and(|mode| mode != PowerOpMode::TrySoft),
        ),
        (
            "network.interfaces[].name",
            interfaces.iter().enumerate().any(renamed),
        ),
        (
            "network.interfaces[].addresses",
            interfaces
                .first()
                .is_some_and(|nic| !nic.addresses.is_empty()),
        ),
        (
            "readinessProbe.periodSeconds",
            by_agent.is_some_and(|probe| probe.period_seconds.is_some()),
        ),
        (
            "readinessProbe.timeoutSeconds",
            by_agent.is_some_and(|probe| probe.timeout_seconds.is_some()),
        ),
        (
            "instanceUUID",
            facts.has_root_claim && spec.instance_uuid.is_some(),
        ),
        (
            "bootDiskCapacity",
            facts.has_root_claim && !facts.makes_root_claim && spec.boot_disk_capacity.is_some(),
        ),
    ]
}
