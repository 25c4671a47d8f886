//! Takes an edited class over while the machine runs, by the `resize` subresource of its pod.
//!
//! Invariant: only virtual CPUs and memory change, within the room of the pod; a class counts as
//! taken over when kubelet reports the pod's new limits.
//! Failure: what kubelet refuses is in the answer; the machine takes the class over at its next
//! start.

use std::collections::BTreeMap;
use std::sync::Arc;

use crds::names;
use k8s_openapi::api::core::v1::{Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;
use kube::api::PatchParams;
use serde_json::{Value, json};

use crate::flow::Outcome;
use crate::reconcile::answers::{is_gone, json_patch};
use crate::reconcile::vm::error::Error;
use crate::reconcile::vm::observe::pods;
use crate::reconcile::vm::pass::Pass;
use crate::reconcile::vm::prerequisites::{self, bytes, thousandths};

/// How far a running machine is on its way to its edited class.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// It has no way, or nothing to do.
    None,
    /// kubelet works on it; why that takes time.
    Running(String),
    /// The machine has the size of its class.
    Done,
}

/// What is to become of a pod.
struct Plan {
    pod: Arc<Pod>,
    /// Limits by resource.
    limits: BTreeMap<&'static str, Quantity>,
}

/// Requests the size of the class for the running machine.
pub(super) async fn resize(pass: &mut Pass<'_>) -> Outcome<Progress> {
    let Some(plan) = plan(pass) else {
        return Ok(Progress::None);
    };
    let container = plan
        .pod
        .spec
        .as_ref()
        .and_then(|spec| spec.containers.first());
    let wanted = container.and_then(|container| container.resources.as_ref());
    if wanted.is_some_and(|has| !plan.is_in(has)) {
        let name = plan.pod.name_any();
        let change = json_patch(plan.change(wanted))?;
        let api = pass.api::<Pod>();
        let params = PatchParams::default();
        match api
            .patch_subresource("resize", &name, &params, &change)
            .await
        {
            Ok(_) => pass.count_change(),
            Err(error) if is_gone(&error) => return Ok(Progress::None),
            // What the API server refuses stays refused until the class is edited again.
            Err(kube::Error::Api(refused)) if matches!(refused.code, 403 | 422) => {
                return Ok(Progress::Running(refused.message));
            }
            Err(source) => return Err(Error::ResizePod { name, source }.into()),
        }
        return Ok(Progress::Running(
            "kubelet was requested to resize the pod".to_owned(),
        ));
    }
    Ok(progress(&plan))
}

fn progress(plan: &Plan) -> Progress {
    let status = plan.pod.status.as_ref();
    let containers = status.and_then(|status| status.container_statuses.as_ref());
    let has = containers.and_then(|all| all.first()?.resources.as_ref());
    if has.is_some_and(|has| plan.is_in(has)) {
        return Progress::Done;
    }
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    let resize = conditions.find(|c| c.type_.starts_with("PodResize") && c.status == "True");
    let reason = resize.and_then(|condition| condition.message.clone());
    let reason = reason.filter(|text| !text.is_empty());
    Progress::Running(reason.unwrap_or_else(|| "kubelet resizes the pod".to_owned()))
}

/// The way of a machine to its edited class; `None` when it has no way, or nothing to do.
fn plan(pass: &Pass<'_>) -> Option<Plan> {
    let class = prerequisites::class(pass).ok()??;
    let seen = pass.seen()?;
    let is_edited = seen.class.as_ref() == Some(&class.name_any())
        && seen.class_revision.as_ref()? != &prerequisites::revision(&class);
    let allowed = pass.ctx.config.machines.resize && pass.has(names::SAME_VM_CLASS_RESIZE);
    let pod = pass.view.pod.clone().filter(|pod| !pods::is_over(pod))?;
    let spec = serde_json::to_value(&class.spec).ok()?;
    if !is_edited
        || !allowed
        || without_size(seen.class_spec.clone()?) != without_size(spec.clone())
    {
        return None;
    }
    let had = seen.hardware.as_ref()?;
    let cpus = class.spec.hardware.cpus;
    let memory = &class.spec.hardware.memory;
    let room = |key: &str| pod.annotations().get(key).cloned().map(Quantity);
    // Limits and requests of the class's own are not the guest's size.
    let policies = &spec["policies"]["resources"];
    let is_plain = ["/limits/cpu", "/limits/memory", "/requests/memory"]
        .into_iter()
        .all(|own| policies.pointer(own).is_none_or(Value::is_null));
    let mut limits = BTreeMap::new();
    if cpus != had.cpus {
        let most = thousandths(&room(names::MAX_VCPUS)?)? / 1000;
        (i128::from(cpus) <= most).then_some(())?;
        limits.insert("cpu", Quantity(cpus.to_string()));
    }
    if bytes(memory) != had.memory.as_ref().and_then(bytes) {
        let least = room(names::MEMORY)?;
        let most = room(names::MAX_MEMORY)?;
        let fits = (bytes(&least)?..=bytes(&most)?).contains(&bytes(memory)?);
        fits.then_some(())?;
        limits.insert("memory", memory.clone());
    }
    is_plain.then_some(Plan { pod, limits })
}

/// A class's specification beside virtual CPUs and memory.
fn without_size(mut spec: Value) -> Value {
    if let Some(hardware) = spec["hardware"].as_object_mut() {
        hardware.remove("cpus");
        hardware.remove("memory");
    }
    spec
}

impl Plan {
    /// Whether all limits are these.
    fn is_in(&self, has: &ResourceRequirements) -> bool {
        let limits = has.limits.as_ref();
        self.limits.iter().all(|(name, wanted)| {
            let has = limits.and_then(|all| all.get(*name));
            has.and_then(thousandths) == thousandths(wanted)
        })
    }

    /// The operations that set the limits. A request that was the limit stays so; a pod without a
    /// CPU request gets none by a limit: the API server would make them equal, and with that
    /// another class of service, which it refuses.
    fn change(&self, has: Option<&ResourceRequirements>) -> Value {
        let mut operations = Vec::new();
        let mut set = |kind: &str, name: &str, value: &Quantity| {
            let path = format!("/spec/containers/0/resources/{kind}/{name}");
            operations.push(json!({ "op": "add", "path": path, "value": value }));
        };
        for (name, wanted) in &self.limits {
            let of = |list: Option<&BTreeMap<String, Quantity>>| list?.get(*name).cloned();
            let request = of(has.and_then(|has| has.requests.as_ref()));
            let limit = of(has.and_then(|has| has.limits.as_ref()));
            set("limits", name, wanted);
            match request {
                None if *name == "cpu" => set("requests", name, &Quantity("0".to_owned())),
                Some(request)
                    if limit.is_some_and(|l| thousandths(&l) == thousandths(&request)) =>
                {
                    set("requests", name, wanted);
                }
                _ => {}
            }
        }
        Value::Array(operations)
    }
}
