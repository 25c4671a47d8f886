//! The change of a verb, and the JSON patches that make it.
//!
//! Invariant: a patch begins with tests of what it replaces; writing requests also ends the
//! back-off.
//! Failure: the API server refuses a patch whose test fails; nothing of it is done then.

use crds::VirtualMachine;
use crds::names::{RESUME_STATE, RESUME_STATE_OLD, UNPAUSE_REQUEST};
use crds::vm::StateChangeRequest;
use serde_json::{Value, json};

use crate::strategy::DesiredState;

/// What a verb changes. The status is patched first, then the object: a start that waits in the
/// queue must be removed before the desired state is "off".
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Change {
    /// The new desired state; a value in another field replaces the old one.
    pub desired_state: Option<DesiredState>,
    /// The desired state to restore when the machine is resumed.
    pub remember: Option<DesiredState>,
    /// Remove the desired state that was remembered.
    pub forget: bool,
    /// `spec.paused`.
    pub paused: Option<bool>,
    /// UID of the instance whose guest is to be resumed once although its disk failed.
    pub unpause: Option<String>,
    /// The whole queue of requests, in place of the old one.
    pub requests: Option<Vec<StateChangeRequest>>,
}

impl Change {
    pub(super) fn requests(requests: Vec<StateChangeRequest>) -> Self {
        Self {
            requests: Some(requests),
            ..Self::default()
        }
    }

    /// The JSON patch of the object, if there is anything to patch.
    #[must_use]
    pub fn object_patch(&self, vm: &VirtualMachine) -> Option<Value> {
        let mut ops = Vec::new();
        if let Some(desired_state) = self.desired_state {
            ops.extend(replace_desired(vm, desired_state));
        }
        if let Some(paused) = self.paused {
            ops.push(json!({"op": "add", "path": "/spec/paused", "value": paused}));
        }
        ops.extend(self.of_annotation(vm));
        (!ops.is_empty()).then_some(Value::Array(ops))
    }

    fn of_annotation(&self, vm: &VirtualMachine) -> Vec<Value> {
        let path = |name: &str| format!("/metadata/annotations/{}", name.replace('/', "~1"));
        let annotations = vm.metadata.annotations.as_ref();
        let add = |name: &str, value: String| match annotations {
            Some(_) => json!({"op": "add", "path": path(name), "value": value}),
            None => json!({"op": "add", "path": "/metadata/annotations", "value": {name: value}}),
        };
        if let Some(desired_state) = self.remember {
            return vec![add(RESUME_STATE, desired_state.to_string())];
        }
        if let Some(instance) = &self.unpause {
            let version = vm.metadata.resource_version.as_deref().unwrap_or_default();
            return vec![add(UNPAUSE_REQUEST, format!("{instance}/{version}"))];
        }
        if !self.forget {
            return Vec::new();
        }
        [RESUME_STATE, RESUME_STATE_OLD]
            .into_iter()
            .filter(|name| annotations.is_some_and(|a| a.contains_key(*name)))
            .map(|name| json!({"op": "remove", "path": path(name)}))
            .collect()
    }

    /// The JSON patch of the subresource `status`, if there is anything to patch.
    #[must_use]
    pub fn status_patch(&self, vm: &VirtualMachine) -> Option<Value> {
        const QUEUE: &str = "/status/stateChangeRequests";
        const FAILURE: &str = "/status/startFailure";
        let wanted = self.requests.as_ref()?;
        let Some(status) = &vm.status else {
            return Some(json!([
                {"op": "test", "path": "/status", "value": null},
                {"op": "add", "path": "/status", "value": {"stateChangeRequests": wanted}},
            ]));
        };
        let old = Some(&status.state_change_requests).filter(|queue| !queue.is_empty());
        let mut ops = vec![
            json!({"op": "test", "path": QUEUE, "value": old}),
            json!({"op": "add", "path": QUEUE, "value": wanted}),
        ];
        if status.start_failure.is_some() {
            ops.push(json!({"op": "remove", "path": FAILURE}));
        }
        Some(Value::Array(ops))
    }
}

fn replace_desired(vm: &VirtualMachine, desired_state: DesiredState) -> Vec<Value> {
    let path = |desired_state: DesiredState| format!("/spec/{}", desired_state.field());
    let new = json!({"op": "add", "path": path(desired_state), "value": desired_state.value()});
    let Some(old) = DesiredState::from_spec(&vm.spec).ok().flatten() else {
        return vec![new];
    };
    let test = json!({"op": "test", "path": path(old), "value": old.value()});
    if old.field() == desired_state.field() {
        return vec![test, new];
    }
    vec![test, json!({"op": "remove", "path": path(old)}), new]
}
