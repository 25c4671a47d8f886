//! Gives the change of a group to its members.
//!
//! Invariant: the change is on record before the first member is written. One write has the desired state,
//! the time at which it applies and the record of the change, on the version of the member that was read:
//! a member is given each change once, and what its owner changes after that stays. Members are written in
//! the order in which their tiers change: a pass that is cut off leaves none of a later tier before one of
//! an earlier.
//! Failure: a member that the API server refuses to change is reported, and tried again with the pass; the
//! others go on.

use crds::names::{APPLY_POWER_STATE_TIME, GROUP_POWER_STATE, RESUME_STATE, RESUME_STATE_OLD};
use crds::{
    GroupPowerChange, PowerState, VirtualMachine, VirtualMachineGroup, VirtualMachineGroupSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use lifecycle::DesiredState;
use lifecycle::group::{Record, member_change};
use lifecycle::verbs::Change;
use serde_json::{Map, Value, json};
use service::telemetry::one_line;

use super::change;
use super::members::{Member, Object};
use super::synced::Standard;
use crate::context::{Context, Key};
use crate::flow::{Outcome, PassError};
use crate::reconcile::answers::{again, is_conflict, is_gone, is_lost_test, json_patch};

/// Owner of the fields that groups write into members.
const MANAGER: &str = "vmlet-controller-groups";

/// What became of the members.
#[derive(Debug, Default)]
pub(super) struct Pushed {
    /// Positions of members that the API server refused to change, and why.
    pub(super) refused: Vec<(usize, String)>,
    /// How often a member was in another version than expected.
    pub(super) conflicts: usize,
    /// The stores do not show the last write of a member yet.
    pub(super) is_early: bool,
    /// The first refusal, as the result of the pass.
    pub(super) error: Option<anyhow::Error>,
}

/// Gives the change to every member that has not got it, if its tier has a time.
pub(super) async fn run(ctx: &Context, standard: &Standard<'_>, members: &[Member]) -> Pushed {
    let mut pushed = Pushed::default();
    let Some(change) = standard.change else {
        return pushed;
    };
    let tiers = standard.group.spec.boot_order.len();
    let position = |member: &Member| change::position(change.power_state, member.tier, tiers);
    let mut order: Vec<_> = members.iter().enumerate().collect();
    order.sort_by_key(|(_, member)| position(member));
    for (index, member) in order {
        let object = member.object.as_ref();
        let open = object.filter(|object| member.unlinked.is_none() && !standard.is_given(object));
        let at = position(member);
        let Some(object) = open else {
            continue;
        };
        let Some(time) = change.tier_times.get(at) else {
            continue;
        };
        let work = Write {
            ctx,
            group: standard.group,
            change,
            time,
            is_later: time.0 > standard.now,
        };
        if work.is_early(object) {
            pushed.is_early = true;
            continue;
        }
        match work.run(object).await {
            Ok(false) => {}
            Ok(true) => {
                let power_state = format!("{:?}", change.power_state);
                let member = &member.name;
                tracing::info!(member, power_state, at = %time.0, "group member changed");
            }
            Err(PassError::Conflict(_)) => pushed.conflicts += 1,
            Err(PassError::Failed(error)) => {
                pushed.refused.push((index, one_line(&*error)));
                pushed.error.get_or_insert(error);
            }
        }
    }
    pushed
}

/// One member.
struct Write<'a> {
    ctx: &'a Context,
    group: &'a VirtualMachineGroup,
    change: &'a GroupPowerChange,
    time: &'a Time,
    is_later: bool,
}

impl Write<'_> {
    /// Whether the event of the last write of a machine is on its way.
    fn is_early(&self, object: &Object) -> bool {
        let Object::Machine(vm) = object else {
            return false;
        };
        let seconds = (self.ctx.clock)().0.as_second();
        self.ctx
            .shared
            .expected
            .is_old(&Key::from_object(&**vm), vm, seconds)
    }

    /// Whether anything was written.
    async fn run(&self, object: &Object) -> Outcome<bool> {
        match object {
            Object::Machine(vm) => self.machine(vm).await,
            Object::Group(group) => self.nested(group).await,
        }
    }

    async fn machine(&self, vm: &VirtualMachine) -> Outcome<bool> {
        let key = Key::from_object(vm);
        if vm.metadata.deletion_timestamp.is_some() {
            return Ok(false);
        }
        let state = self.change.power_state;
        let Ok(new) = member_change(&vm.spec, vm.annotations(), state) else {
            // Its condition says why.
            return Ok(false);
        };
        let api = self.api::<VirtualMachine>();
        let version = match self.without_requests(&api, vm).await? {
            Some(version) => version,
            None => return Ok(false),
        };
        let observed = vm.status.as_ref().and_then(|status| status.power_state);
        let is_there = DesiredState::from_spec(&vm.spec) == Ok(Some(new.desired_state))
            && observed == Some(state);
        let mut annotations = Map::new();
        let record = self.record(new.desired_state, new.restores_rerun);
        annotations.insert(GROUP_POWER_STATE.to_owned(), json!(record));
        let time = (self.is_later && !is_there).then(|| self.time.0.to_string());
        annotations.insert(APPLY_POWER_STATE_TIME.to_owned(), json!(time));
        if let Some(remembered) = new.remember {
            annotations.insert(RESUME_STATE.to_owned(), json!(remembered.to_string()));
        } else if new.forget {
            annotations.insert(RESUME_STATE.to_owned(), Value::Null);
            annotations.insert(RESUME_STATE_OLD.to_owned(), Value::Null);
        }
        let mut spec = self.modes();
        for field in DesiredState::FIELDS {
            spec.insert(field.to_owned(), Value::Null);
        }
        let desired = new.desired_state;
        spec.insert(desired.field().to_owned(), desired.value());
        let body = json!({
            "metadata": { "uid": vm.uid(), "resourceVersion": version, "annotations": annotations },
            "spec": spec,
        });
        let patched = api.patch(&key.name, &params(), &Patch::Merge(&body)).await;
        let Some(written) = taken(patched, &key.name)? else {
            return Ok(false);
        };
        let seconds = (self.ctx.clock)().0.as_second();
        self.ctx.shared.expected.wrote(&key, &written, seconds);
        Ok(true)
    }

    /// A start that waits in the queue of a machine would power it on again. The version of the machine
    /// after that; `None`: it does not exist.
    async fn without_requests(
        &self,
        api: &Api<VirtualMachine>,
        vm: &VirtualMachine,
    ) -> Outcome<Option<String>> {
        let has_requests = vm
            .status
            .as_ref()
            .is_some_and(|status| !status.state_change_requests.is_empty());
        let version = vm.metadata.resource_version.clone().unwrap_or_default();
        if self.change.power_state != PowerState::PoweredOff || !has_requests {
            return Ok(Some(version));
        }
        let emptied = Change {
            requests: Some(Vec::new()),
            ..Change::default()
        };
        let Some(operations) = emptied.status_patch(vm) else {
            return Ok(Some(version));
        };
        let patch = json_patch(operations)?;
        let name = vm.name_any();
        let patched = api.patch_status(&name, &params(), &patch).await;
        if patched.as_ref().is_err_and(is_lost_test) {
            return Err(again());
        }
        let written = taken(patched, &name)?;
        Ok(written.and_then(|vm| vm.metadata.resource_version))
    }

    async fn nested(&self, group: &VirtualMachineGroup) -> Outcome<bool> {
        if group.metadata.deletion_timestamp.is_some() {
            return Ok(false);
        }
        let state = DesiredState::PowerState(self.change.power_state);
        let mut spec = self.modes();
        spec.insert(state.field().to_owned(), state.value());
        let body = json!({
            "metadata": {
                "uid": group.uid(),
                "resourceVersion": group.metadata.resource_version,
                "annotations": {
                    GROUP_POWER_STATE: self.record(state, false),
                    APPLY_POWER_STATE_TIME: self.time.0.to_string(),
                },
            },
            "spec": spec,
        });
        let name = group.name_any();
        let api = self.api::<VirtualMachineGroup>();
        let patched = api.patch(&name, &params(), &Patch::Merge(&body)).await;
        Ok(taken(patched, &name)?.is_some())
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        let namespace = self.group.namespace().unwrap_or_default();
        Api::namespaced(self.ctx.client.clone(), &namespace)
    }

    fn record(&self, desired: DesiredState, restores_rerun: bool) -> String {
        let record = Record {
            group: self.group.uid().unwrap_or_default(),
            change: change::name(self.change),
            desired: desired.to_string(),
            restores_rerun,
        };
        record.to_string()
    }

    /// Modes that the group sets.
    fn modes(&self) -> Map<String, Value> {
        let VirtualMachineGroupSpec {
            power_off_mode,
            suspend_mode,
            ..
        } = &self.group.spec;
        let all = [
            ("powerOffMode", power_off_mode),
            ("suspendMode", suspend_mode),
        ];
        let set = all.into_iter().filter(|(_, mode)| mode.is_some());
        set.map(|(field, mode)| (field.to_owned(), json!(mode)))
            .collect()
    }
}

fn params() -> PatchParams {
    PatchParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PatchParams::default()
    }
}

/// The object as it is now; `None`: it does not exist.
fn taken<K>(answer: kube::Result<K>, member: &str) -> Outcome<Option<K>> {
    match answer {
        Ok(object) => Ok(Some(object)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) if is_conflict(&error) => Err(again()),
        Err(source) => {
            let error = anyhow::Error::new(source);
            let text = format!("failed to change the power state of member {member}");
            Err(PassError::Failed(error.context(text)))
        }
    }
}
