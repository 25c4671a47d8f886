//! A request changes the desired state of a machine, in whichever field it is spelled.
//!
//! Invariant: no node is needed: the root disk of each machine is a claim, so that the machine
//! exists at once.
//! Failure: the specification as it was last seen, or the end of the controller's log.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use crds::names::PAUSED;
use e2e::{Control, Effect, eventually, machines};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(120);
const KIND: &str = "VirtualMachine";
const ANNOTATION: &str = "vmlet.dev/resume-state";
const OLD_ANNOTATION: &str = "vmlet.dev/resume-wish";
const FIELDS: [&str; 3] = ["powerState", "runStrategy", "running"];

/// Names of machines, and their desired state before they were suspended, which a start brings
/// back.
const MACHINES: [(&str, &str); 6] = [
    ("on", "powerState=PoweredOn"),
    ("always", "runStrategy=Always"),
    ("manual", "runStrategy=Manual"),
    ("rerun", "runStrategy=RerunOnFailure"),
    ("once", "runStrategy=Once"),
    ("runs", "running=true"),
];

pub(super) async fn a_request_replaces_the_desired_state_in_every_spelling(
    control: &Control,
) -> Result<()> {
    let controller = control.controller("controller", &[]).await?;
    let story = story(control).await;
    story.with_context(|| controller.tail())?;
    ensure!(controller.stop().await?.success());
    Ok(())
}

async fn story(control: &Control) -> Result<()> {
    control.namespace("spellings").await?;
    let objects = control.objects("spellings")?;
    let parts = [
        ("VirtualMachineClass", machines::class("tiny", "128Mi")),
        ("VirtualMachineImage", machines::image("vmlet.dev/guest")),
    ];
    for (kind, part) in parts {
        let made = objects.create(kind, &part, Effect::Real).await?;
        made.map_err(|error| anyhow!("{kind}: {error}"))?;
    }
    for (name, first) in MACHINES {
        let mut object = machines::machine(name, &spelled(first)?);
        // The controller leaves it alone until its root disk is a claim.
        object["metadata"]["annotations"] = json!({ PAUSED: "" });
        let made = objects.create(KIND, &object, Effect::Real).await?;
        made.map_err(|error| anyhow!("{name}: {error}"))?;
        // As a suspend by vmletctl leaves it; one machine has the former name of the annotation.
        let annotation = match first {
            "runStrategy=Manual" => OLD_ANNOTATION,
            _ => ANNOTATION,
        };
        let mut spec = none();
        spec["powerState"] = json!("Suspended");
        // A suspended machine may get such a disk; one that has it cannot be suspended.
        let root = json!({ "claimName": name, "root": true });
        let claimed = json!({ "volumes": [{ "name": "root", "persistentVolumeClaim": root }] });
        let remembered = json!({ (annotation): first, PAUSED: null });
        let claimed = json!({ "metadata": { "annotations": remembered }, "spec": claimed });
        for patch in [json!({ "spec": spec }), claimed] {
            let patched = objects.patch(KIND, name, &patch, Effect::Real).await?;
            patched.map_err(|error| anyhow!("{name}: {error}"))?;
        }
        let request = json!({ "status": { "stateChangeRequests": [{ "action": "Start" }] } });
        let place = format!("{name}/status");
        let patched = objects.patch(KIND, &place, &request, Effect::Real).await?;
        patched.map_err(|error| anyhow!("{name}: {error}"))?;
    }
    for (name, first) in MACHINES {
        let wanted = spelled(first)?;
        eventually(SOON, &format!("{name} with {first}"), || async {
            let object = objects.get(KIND, name).await?;
            let object = object.map_err(|error| anyhow!("{error}"))?;
            let mut has = object["spec"].clone();
            if let Some(spec) = has.as_object_mut() {
                spec.retain(|field, _| FIELDS.contains(&field.as_str()));
            }
            ensure!(has == wanted, "{object}");
            for annotation in [ANNOTATION, OLD_ANNOTATION] {
                let value = &object["metadata"]["annotations"][annotation];
                ensure!(value.is_null(), "{object}");
            }
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// All spellings, removed.
fn none() -> Value {
    FIELDS
        .map(|field| (field, Value::Null))
        .into_iter()
        .collect()
}

/// `{"runStrategy": "Manual"}` for `runStrategy=Manual`.
fn spelled(text: &str) -> Result<Value> {
    let (field, value) = text.split_once('=').context("a field and its value")?;
    let value = value
        .parse::<bool>()
        .map_or_else(|_| json!(value), Value::from);
    Ok(json!({ (field): value }))
}
