//! Our types can read every object that the API server accepts, and its rules can judge each
//! object.
//!
//! Invariant: one unreadable object would stop every watch of its kind, for all namespaces.
//! Failure: the object and what happened; the same seed gives the same objects.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crds::schema::definitions;
use e2e::{Answer, Control, Effect, anything, eventually, machines};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(240);
/// Random objects and statuses of each kind.
const ROUNDS: usize = 60;
/// Words of a rule that could not be decided, rather than one that said no.
const TROUBLE: [&str; 7] = [
    "cost",
    "budget",
    "error",
    "no such key",
    "no such overload",
    "internal",
    "timeout",
];

fn read<K: DeserializeOwned>(object: &Value) -> Result<()> {
    serde_json::from_value::<K>(object.clone())
        .map(drop)
        .with_context(|| object.to_string())
}

fn read_as(kind: &str, object: &Value) -> Result<()> {
    match kind {
        "VirtualMachine" => read::<crds::VirtualMachine>(object),
        "VirtualMachineClass" => read::<crds::VirtualMachineClass>(object),
        "VirtualMachineImage" => read::<crds::VirtualMachineImage>(object),
        "ClusterVirtualMachineImage" => read::<crds::ClusterVirtualMachineImage>(object),
        "VirtualMachineImageCache" => read::<crds::VirtualMachineImageCache>(object),
        "VirtualMachineGroup" => read::<crds::VirtualMachineGroup>(object),
        "VirtualMachineReplicaSet" => read::<crds::VirtualMachineReplicaSet>(object),
        "VirtualMachineSnapshot" => read::<crds::VirtualMachineSnapshot>(object),
        "VirtualMachineBackup" => read::<crds::VirtualMachineBackup>(object),
        "VirtualMachineBackupSchedule" => read::<crds::VirtualMachineBackupSchedule>(object),
        "VirtualMachineTask" => read::<crds::VirtualMachineTask>(object),
        "ImageMapping" => read::<crds::ImageMapping>(object),
        "NodeConfig" => read::<crds::NodeConfig>(object),
        "Vmlet" => read::<crds::Vmlet>(object),
        other => anyhow::bail!("{other} is not read here"),
    }
}

/// Random machines seldom have exactly one desired state and one image; their other fields are to
/// be read too.
fn without_contradictions(spec: &mut Value) {
    if let Some(fields) = spec.as_object_mut() {
        for field in [
            "powerState",
            "runStrategy",
            "image",
            "hardware",
            "affinity",
            "currentSnapshotName",
        ] {
            fields.remove(field);
        }
        fields.remove("nextRestartTime");
    }
    spec["running"] = json!(true);
    spec["imageName"] = json!("debian");
}

/// Random sets have no template of what a machine can be made of.
fn with_a_template(spec: &mut Value) {
    let labels = json!({ "app": "any" });
    spec["selector"] = json!({ "matchLabels": labels });
    spec["template"]["metadata"] = json!({ "labels": labels });
    without_contradictions(&mut spec["template"]["spec"]);
    for field in [
        "biosUUID",
        "instanceUUID",
        "dataVolumeTemplates",
        "network",
        "volumes",
    ] {
        if let Some(machine) = spec["template"]["spec"].as_object_mut() {
            machine.remove(field);
        }
    }
    if let Some(spec) = spec.as_object_mut() {
        spec.remove("volumeClaimTemplates");
        spec.remove("updateStrategy");
    }
}

/// True when it was taken.
fn judge(kind: &str, sent: &Value, answer: Answer) -> Result<bool> {
    match answer {
        Ok(object) => read_as(kind, &object).map(|()| true),
        Err(reported) => {
            // What was sent is quoted there, and may say anything.
            let quoted = |word: &str| sent.to_string().contains(word);
            let trouble = TROUBLE
                .iter()
                .find(|word| reported.contains(**word) && !quoted(word));
            ensure!(trouble.is_none(), "{kind} {sent}: {reported}");
            Ok(false)
        }
    }
}

/// A case of the test in `protected.rs`, as the others here.
pub(super) async fn whatever_is_taken_can_be_read_and_no_rule_gives_up(
    control: &Control,
) -> Result<()> {
    let objects = control.objects("default")?;
    let mut runner = TestRunner::deterministic();
    for definition in definitions() {
        let kind = definition.spec.names.kind.clone();
        let definition = serde_json::to_value(&definition)?;
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
        let specs = anything(&schema["spec"])?;
        let statuses = anything(&schema["status"])?;
        let mut taken = Vec::new();
        let mut tries = 0;
        while tries < ROUNDS || (taken.is_empty() && tries < 20 * ROUNDS) {
            tries += 1;
            let spec = specs
                .new_tree(&mut runner)
                .map_err(anyhow::Error::msg)?
                .current();
            let mut object = json!({ "metadata": { "name": "any" }, "spec": spec });
            if kind == "VirtualMachine" && tries % 2 == 0 {
                without_contradictions(&mut object["spec"]);
            }
            if kind == "VirtualMachineReplicaSet" && tries % 2 == 0 {
                with_a_template(&mut object["spec"]);
            }
            let answer = objects.create(&kind, &object, Effect::DryRun).await?;
            if judge(&kind, &object, answer)? {
                taken.push(object);
            }
        }
        eprintln!("{kind}: {} of {tries} random objects taken", taken.len());
        let object = taken
            .pop()
            .with_context(|| format!("no {kind} was ever taken"))?;
        if schema["status"].is_null() {
            continue;
        }
        objects
            .create(&kind, &object, Effect::Real)
            .await?
            .map_err(anyhow::Error::msg)?;
        let mut taken = 0;
        for _ in 0..ROUNDS {
            let status = statuses
                .new_tree(&mut runner)
                .map_err(anyhow::Error::msg)?
                .current();
            let patch = json!({ "status": status });
            let answer = objects
                .patch(&kind, "any/status", &patch, Effect::DryRun)
                .await?;
            taken += usize::from(judge(&kind, &patch, answer)?);
        }
        eprintln!("{kind}: {taken} of {ROUNDS} random statuses taken");
        ensure!(taken > 0, "no status of {kind} was ever taken");
    }
    Ok(())
}

/// As many of everything as the bounds allow, all names as long as they may be.
pub(super) async fn the_largest_machine_is_within_the_budget_of_the_rules(
    control: &Control,
) -> Result<()> {
    let objects = control.objects("default")?;
    let long = |number: usize| format!("{number:02}{}", "a".repeat(251));
    let short = |number: usize| format!("{number:02}{}", "a".repeat(61));
    let volumes: Vec<Value> = (0..32)
        .map(|n| json!({ "name": short(n), "persistentVolumeClaim": { "claimName": long(n) } }))
        .collect();
    let templates: Vec<Value> = (0..32)
        .map(|n| json!({ "name": long(31 - n), "spec": {} }))
        .collect();
    let labels: serde_json::Map<String, Value> = (0..64)
        .map(|n| {
            (
                format!("{}/{}", long(n), "b".repeat(63)),
                json!("c".repeat(63)),
            )
        })
        .collect();
    let interfaces: Vec<Value> = (0..16)
        .map(|n| {
            let addresses: Vec<String> = (0..16)
                .map(|m| format!("2001:db8:{n:x}::{m:x}/64"))
                .collect();
            json!({ "name": short(n), "addresses": addresses })
        })
        .collect();
    let mut machine = json!({ "metadata": { "name": "largest" }, "spec": {
        "imageName": long(0), "runStrategy": "Always", "volumes": volumes, "dataVolumeTemplates": templates,
        "network": { "interfaces": interfaces },
        "template": { "metadata": { "labels": labels, "annotations": labels } },
    } });
    let kind = "VirtualMachine";
    objects
        .create(kind, &machine, Effect::Real)
        .await?
        .map_err(anyhow::Error::msg)?;
    let patch = json!({ "spec": { "className": long(1) } });
    objects
        .patch(kind, "largest", &patch, Effect::DryRun)
        .await?
        .map_err(anyhow::Error::msg)?;

    machine["metadata"]["name"] = json!("larger");
    machine["spec"]["volumes"]
        .as_array_mut()
        .context("volumes")?
        .push(json!({}));
    let answer = objects.create(kind, &machine, Effect::DryRun).await?;
    ensure!(
        answer.is_err_and(|reported| reported.contains("at most 32")),
        "one more was taken"
    );
    Ok(())
}

/// The times of managed fields are what a client says they are, once the object is there.
pub(super) async fn metadata_that_cannot_be_read_is_refused(control: &Control) -> Result<()> {
    let objects = control.objects("default")?;
    let kind = "VirtualMachine";
    let name = "odd";
    let metadata = |time: &str| {
        json!({ "name": name, "managedFields": [{
            "manager": "odd", "operation": "Update", "apiVersion": "vmlet.dev/v1alpha1", "time": time,
            "fieldsType": "FieldsV1", "fieldsV1": { "f:spec": { "f:running": {} } },
        }] })
    };
    let spec = json!({ "imageName": "debian", "running": true });
    let said_times = |object: &Value| -> Vec<Value> {
        let entries = object["metadata"]["managedFields"].as_array();
        let odd = entries
            .into_iter()
            .flatten()
            .filter(|one| one["manager"] == "odd");
        odd.map(|one| one["time"].clone()).collect()
    };
    for time in ["-0001-01-01T00:00:00Z", "99999-01-01T00:00:00Z"] {
        let object = json!({ "metadata": metadata(time), "spec": spec });
        let answer = objects.create(kind, &object, Effect::Real).await?;
        ensure!(
            answer
                .as_ref()
                .is_err_and(|reported| reported.contains("parsing time")),
            "{time}: {answer:?}"
        );
    }
    // The creator of an object owns all its fields, since now.
    for time in [
        "9999-12-31T23:59:59Z",
        "0000-01-01T00:00:00Z",
        "2026-01-01T00:00:00Z",
    ] {
        let object = json!({ "metadata": metadata(time), "spec": spec });
        let made = objects.create(kind, &object, Effect::Real).await?;
        let made = made.map_err(anyhow::Error::msg).context(time)?;
        ensure!(said_times(&made).is_empty(), "{time}: {made}");
        read_as(kind, &made)?;
        objects
            .delete(kind, name)
            .await?
            .map_err(anyhow::Error::msg)?;
    }
    let object = json!({ "metadata": { "name": name }, "spec": spec });
    let made = objects.create(kind, &object, Effect::Real).await?;
    made.map_err(anyhow::Error::msg)?;
    let patch = json!({ "metadata": metadata("9999-12-31T23:59:59Z") });
    let answer = objects.patch(kind, name, &patch, Effect::Real).await?;
    let words = "must be before the year 9999";
    let is_refused = answer
        .as_ref()
        .is_err_and(|reported| reported.contains(words));
    ensure!(is_refused, "{answer:?}");
    objects
        .delete(kind, name)
        .await?
        .map_err(anyhow::Error::msg)?;
    for time in ["0000-01-01T00:00:00Z", "2026-01-01T00:00:00Z"] {
        // A time that is all that changes is passed over.
        let made = objects.create(kind, &object, Effect::Real).await?;
        made.map_err(anyhow::Error::msg)?;
        let patch = json!({ "metadata": metadata(time) });
        let patched = objects.patch(kind, name, &patch, Effect::Real).await?;
        let patched = patched.map_err(anyhow::Error::msg).context(time)?;
        ensure!(said_times(&patched) == [json!(time)], "{time}: {patched}");
        read_as(kind, &patched)?;
        objects
            .delete(kind, name)
            .await?
            .map_err(anyhow::Error::msg)?;
    }
    Ok(())
}

/// No policy of ours reaches claims: a tenant who may write them may give one a time that no client of
/// ours can represent. Every list of claims has it.
#[tokio::test]
#[ignore = "needs root"]
async fn an_object_that_cannot_be_read_stops_no_controller() -> Result<()> {
    let control = Control::up().await?;
    let cluster = control.cluster();
    cluster.apply(&json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "odd" },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": "1Gi" } },
        },
    }))?;
    let fields = json!({ "metadata": { "managedFields": [{
        "manager": "odd", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
        "time": "9999-12-31T23:59:59Z", "fieldsV1": { "f:spec": { "f:accessModes": {} } },
    }] } });
    let patch = fields.to_string();
    cluster.kubectl(&["patch", "pvc", "odd", "--type=merge", "-p", &patch])?;
    let claim = cluster.get_json(&["pvc", "odd", "--show-managed-fields"])?;
    ensure!(claim.to_string().contains("9999-12-31"), "{claim}");
    // Here it is a field of the object itself, which nothing passes over.
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {
            "name": "vmlet-node-odd", "namespace": "vmlet-system",
            "labels": { "vmlet.dev/node-lease": "true" },
        },
        "spec": { "renewTime": "9999-12-31T23:59:59.000000Z" },
    });
    control.install_rights()?;
    cluster.apply(&lease)?;

    let controller = control.controller("controller", &[]).await?;
    let story = async {
        cluster.apply(&machines::class("tiny", "64Mi"))?;
        cluster.apply(&machines::image("example.com/guest"))?;
        cluster.apply(&machines::machine(
            "vm",
            &json!({ "runStrategy": "Halted" }),
        ))?;
        eventually(SOON, "a pass over the machine", || async {
            let vm = cluster.get_json(&["virtualmachine", "vm"])?;
            let seen = vm["status"]["conditions"].is_array();
            ensure!(seen && vm["metadata"]["finalizers"].is_array(), "{vm}");
            Ok(())
        })
        .await?;
        controller.probe("/readyz").await?;
        ensure!(controller.metric("vmlet_stores_filled").await? > 0.5);
        eventually(SOON, "an event about the lease", || async {
            let events = cluster.get_json(&["events", "-n", "vmlet-system"])?;
            let text = events.to_string();
            ensure!(text.contains("Unreadable"), "{text}");
            Ok(())
        })
        .await?;
        let leases = "vmlet_unreadable_objects{kind=\"agents\"}";
        ensure!(controller.metric(leases).await? > 0.5);
        Ok(())
    };
    let story: Result<()> = story.await;
    story.with_context(|| controller.tail())?;
    ensure!(controller.stop().await?.success());
    control.down()
}
