//! One pass over one machine: the observed state, and the draft that is written at its end.
//!
//! Invariant: steps change the draft only; [`super::write::patch`] writes the difference to what
//! was read.
//! Failure: none of its own.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use crds::conditions::{self, Status};
use crds::names;
use crds::vm::InstanceStatus;
use crds::{GuestProbe, VirtualMachine, VirtualMachineStatus};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use kube::{Api, Resource, ResourceExt};
use lifecycle::{Instance, Meta, StartPreconditions};

use crate::context::{Context, Key};
use crate::reconcile::vm::observe::answer::Answer;
use crate::reconcile::vm::observe::mode::Mode;
use crate::stores::own_root_claim;

/// How long a change of progress may wait for the next step, so that both are one write.
const PROGRESS: Duration = Duration::from_secs(1);
/// How soon, and how late, a Secret that cannot be used is looked at again: no watch shows it.
const SECRET: RangeInclusive<u64> = 2..=30;
/// Longest message of a condition, in bytes.
const LONGEST_MESSAGE: usize = 2048;

/// What was observed. Only `observe/` and the status's own parts set it.
#[derive(Debug, Clone, Default)]
pub(crate) struct View {
    /// The machine was checked in this pass.
    pub(crate) is_known: bool,
    pub(crate) pod: Option<Arc<Pod>>,
    pub(crate) instance: Option<Instance>,
    pub(crate) preconditions: StartPreconditions,
    pub(crate) meta: Meta,
    /// What the machine's own readiness probe says; `None`: it has none.
    pub(crate) readiness: Option<Answer>,
    /// The probe that the node makes of it, as its agent reports it.
    pub(crate) probe: Option<GuestProbe>,
    /// Which signs of life the guest has not shown; `None`: it has, or does not have to.
    pub(crate) silence: Option<&'static str>,
}

/// What [`super::write::patch`] does beside writing the draft.
#[derive(Debug, Clone, Default)]
pub(crate) struct Writes {
    /// The pod whose end is in the draft: its finalizer goes once the draft is written.
    pub(crate) releases: Option<Arc<Pod>>,
    /// The first request was fulfilled, and is removed.
    pub(crate) pops_request: bool,
    /// The status may wait for the next pass.
    pub(crate) postpones_status: bool,
}

/// A pass.
pub(crate) struct Pass<'a> {
    // Given.
    pub(crate) ctx: &'a Context,
    pub(crate) key: &'a Key,
    pub(crate) now: Time,
    /// How the root disk is made.
    pub(crate) mode: Mode,
    /// As read, or as last written.
    pub(crate) base: VirtualMachine,
    // Observed.
    pub(crate) view: View,
    // To be written.
    /// The draft: as the machine shall be.
    pub(crate) vm: VirtualMachine,
    pub(crate) writes: Writes,
    /// How often something was done that a user should learn of.
    changes: u32,
    /// Look again after this time.
    requeue: Option<Duration>,
    /// A Secret cannot be used, and no watch shows when it can.
    waits_for_secret: bool,
}

impl<'a> Pass<'a> {
    pub(crate) fn new(
        ctx: &'a Context,
        key: &'a Key,
        found: &Arc<VirtualMachine>,
        mode: Mode,
    ) -> Self {
        Self {
            ctx,
            key,
            base: VirtualMachine::clone(found),
            vm: VirtualMachine::clone(found),
            now: (ctx.clock)(),
            mode,
            view: View::default(),
            writes: Writes::default(),
            changes: 0,
            requeue: None,
            waits_for_secret: false,
        }
    }

    /// Something was done that a user should learn of.
    pub(crate) const fn count_change(&mut self) {
        self.changes += 1;
    }

    /// How often that was so in this pass.
    pub(crate) const fn changes(&self) -> u32 {
        self.changes
    }

    /// When to look again at the latest, if something is due at a time.
    pub(crate) const fn requeue(&self) -> Option<Duration> {
        self.requeue
    }

    /// The Secret of the first boot cannot be used.
    pub(crate) const fn wait_for_secret(&mut self) {
        self.waits_for_secret = true;
    }

    /// When to look again for the Secret, if one is missing.
    pub(crate) fn secret_due(&self) -> Option<Duration> {
        // A user who forgot it makes it at once, or not soon.
        let missing = self.seen().and_then(|status| {
            let found = conditions::find(&status.conditions, conditions::BOOTSTRAP_READY)?;
            let since = found.last_transition_time.0.as_second();
            u64::try_from(self.seconds() - since).ok()
        });
        let seconds = (missing.unwrap_or_default() / 4).clamp(*SECRET.start(), *SECRET.end());
        let recheck = self.ctx.config.runner.recheck.get();
        self.waits_for_secret
            .then(|| recheck.min(Duration::from_secs(seconds)))
    }

    pub(crate) fn uid(&self) -> String {
        self.vm.uid().unwrap_or_default()
    }

    /// The status draft.
    pub(crate) fn status(&mut self) -> &mut VirtualMachineStatus {
        self.vm.status.get_or_insert_default()
    }

    /// The status draft, to read.
    pub(crate) fn seen(&self) -> Option<&VirtualMachineStatus> {
        self.vm.status.as_ref()
    }

    pub(crate) fn instance(&self) -> Option<&InstanceStatus> {
        self.seen().and_then(|s| s.instance.as_ref())
    }

    pub(crate) fn node_name(&self) -> Option<String> {
        self.seen().and_then(|s| s.node_name.clone())
    }

    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.ctx.client.clone(), &self.key.namespace)
    }

    pub(crate) fn has(&self, annotation: &str) -> bool {
        self.vm.annotations().contains_key(annotation)
    }

    pub(crate) fn has_below(&self, prefix: &str) -> bool {
        let mut keys = self.vm.annotations().keys();
        keys.any(|key| key.starts_with(prefix))
    }

    pub(crate) fn is_created(&self) -> bool {
        let status = self.seen();
        status.is_some_and(|s| conditions::is_true(&s.conditions, conditions::CREATED))
    }

    pub(crate) fn condition(&mut self, kind: &str, status: Status, reason: &str, message: &str) {
        let generation = self.vm.metadata.generation;
        let now = self.now.clone();
        let message = shortened(message);
        let all = &mut self.status().conditions;
        conditions::set(all, kind, status, reason, message, generation, &now);
    }

    pub(crate) fn drop_condition(&mut self, kind: &str) {
        if let Some(status) = &mut self.vm.status {
            conditions::remove(&mut status.conditions, kind);
        }
    }

    pub(crate) fn normal(&self, reason: &str, message: &str) {
        self.ctx.events.normal(&self.vm, reason, message);
    }

    pub(crate) fn warning(&self, reason: &str, message: &str) {
        self.ctx.events.warning(&self.vm, reason, message);
    }

    /// UID under which the node keeps the root disk: another machine's when its running pod was
    /// adopted.
    pub(crate) fn disk_uid(&self) -> String {
        let adopted = self.seen().and_then(|s| s.disk_uid.clone());
        adopted.unwrap_or_else(|| self.uid())
    }

    /// Name of the claim that is the root disk, if one is.
    pub(crate) fn root_claim(&self) -> Option<String> {
        let claims = self.vm.spec.volumes.iter();
        let mut claims = claims.filter_map(|v| v.persistent_volume_claim.as_ref());
        let named = claims.find(|c| c.root).map(|c| c.claim_name.clone());
        named.or_else(|| self.own_root_claim())
    }

    /// Name of the claim that is made for the root disk, if one is.
    pub(crate) fn own_root_claim(&self) -> Option<String> {
        own_root_claim(&self.vm)
    }

    pub(crate) fn owner(&self) -> OwnerReference {
        OwnerReference {
            block_owner_deletion: Some(true),
            ..self.vm.controller_owner_ref(&()).unwrap_or_default()
        }
    }

    /// Requests another pass after `delay` at the latest.
    pub(crate) fn requeue_within(&mut self, delay: Duration) {
        self.requeue = Some(self.requeue.map_or(delay, |old| old.min(delay)));
    }

    /// All that this pass has to say is that something continues, and the next step is likely to
    /// come at once: its pass writes the status of both.
    pub(crate) fn postpone_status(&mut self) {
        self.postpone_status_for(PROGRESS);
    }

    /// The same, for a step that is likely to come within `most`.
    pub(crate) fn postpone_status_for(&mut self, most: Duration) {
        self.writes.postpones_status = true;
        self.requeue_within(most);
    }

    /// Seconds since the Unix epoch.
    pub(crate) fn seconds(&self) -> i64 {
        self.now.0.as_second()
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.has(names::PAUSED)
    }
}

/// What a condition may say: people read it, and the API server refuses longer ones than it knows.
pub(crate) fn shortened(text: &str) -> &str {
    let end = text.len().min(LONGEST_MESSAGE);
    let end = (0..=end).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or_default()]
}
