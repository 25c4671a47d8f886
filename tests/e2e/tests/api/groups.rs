//! Groups of machines with the real controller, against a real API server without nodes that do anything.
//!
//! Invariant: delays are an hour, so that what the test sees was decided and not waited for; times are
//! compared with each other in the objects, and with no clock.
//! Failure: the object as it was last seen, or the end of the controller's log.

use std::time::Duration;

use anyhow::{Context, Error, Result, ensure};
use crds::names::{APPLY_POWER_STATE_TIME, GROUP_POWER_STATE};
use e2e::machines::{condition, machine};
use e2e::{Control, Effect, Objects, cases, eventually};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::played::{installed, ready_node};

const SOON: Duration = Duration::from_secs(240);
const VM: &str = "VirtualMachine";
const GROUP: &str = "VirtualMachineGroup";
const NODE: &str = "n1";

#[tokio::test]
#[ignore = "needs root"]
async fn groups_power_their_members_and_leave_them_to_their_owners() -> Result<()> {
    let control = Control::up().await?;
    let cluster = installed(&control).await?;
    ready_node(cluster, NODE)?;
    let controller = control
        .controller("controller", &["--lease-enabled", "false"])
        .await?;
    let objects = control.objects("default")?;
    let story = async {
        cases!(
            &objects,
            [
                tiers_change_one_after_the_other_and_a_direct_change_acts_at_once,
                a_machine_waits_until_its_group_names_it,
                groups_in_a_cycle_change_no_member,
            ]
        );
        anyhow::Ok(())
    };
    story.await.with_context(|| controller.tail())?;
    ensure!(controller.stop().await?.success());
    control.down()
}

async fn create(objects: &Objects, kind: &str, object: &Value) -> Result<()> {
    let made = objects.create(kind, object, Effect::Real).await?;
    made.map(drop).map_err(Error::msg)
}

async fn patch(objects: &Objects, kind: &str, name: &str, change: Value) -> Result<()> {
    let patched = objects.patch(kind, name, &change, Effect::Real).await?;
    patched.map(drop).map_err(Error::msg)
}

async fn group(objects: &Objects, name: &str, spec: Value) -> Result<()> {
    create(
        objects,
        GROUP,
        &json!({ "metadata": { "name": name }, "spec": spec }),
    )
    .await
}

/// A machine that is off and has a disk, in a group.
async fn member(objects: &Objects, name: &str, group: &str) -> Result<()> {
    let spec = json!({ "powerState": "PoweredOff", "groupName": group });
    create(objects, VM, &machine(name, &spec)).await?;
    let created = json!({
        "type": "VirtualMachineCreated", "status": "True", "reason": "Provisioned", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let status = json!({ "powerState": "PoweredOff", "nodeName": NODE, "conditions": [created] });
    patch(
        objects,
        VM,
        &format!("{name}/status"),
        json!({ "status": status }),
    )
    .await
}

/// The object, once it is as awaited.
async fn awaited(
    objects: &Objects,
    kind: &str,
    name: &str,
    is_it: impl Fn(&Value) -> bool,
) -> Result<Value> {
    eventually(SOON, &format!("{kind} {name}"), || async {
        let object = objects.get(kind, name).await?.map_err(Error::msg)?;
        ensure!(is_it(&object), "{object:#}");
        Ok(object)
    })
    .await
}

fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object["metadata"]["annotations"][key].as_str()
}

fn tier(members: &[&str], more: &Value) -> Value {
    let members: Vec<_> = members.iter().map(|name| json!({ "name": name })).collect();
    let mut tier = more.clone();
    tier["members"] = json!(members);
    tier
}

async fn tiers_change_one_after_the_other_and_a_direct_change_acts_at_once(
    objects: &Objects,
) -> Result<()> {
    let hour = json!({ "powerOnDelay": "1h" });
    let order = json!([
        tier(&["first"], &json!({})),
        tier(&["second"], &hour),
        tier(&["third"], &hour)
    ]);
    group(objects, "shop", json!({ "bootOrder": order })).await?;
    for name in ["first", "second", "third"] {
        member(objects, name, "shop").await?;
    }
    let is_ready = |group: &Value| condition(group, "Ready")["status"] == "True";
    awaited(objects, GROUP, "shop", is_ready).await?;
    let untouched = objects.get(VM, "first").await?.map_err(Error::msg)?;
    ensure!(
        annotation(&untouched, GROUP_POWER_STATE).is_none(),
        "{untouched:#}"
    );

    patch(
        objects,
        GROUP,
        "shop",
        json!({ "spec": { "powerState": "PoweredOn" } }),
    )
    .await?;
    let shop = awaited(objects, GROUP, "shop", |group| {
        group["status"]["lastUpdatedPowerStateTime"].is_string()
    })
    .await?;
    let begun: Timestamp = shop["status"]["powerChange"]["startTime"]
        .as_str()
        .context("startTime")?
        .parse()?;
    for (name, hours) in [("second", 1), ("third", 2)] {
        let vm = objects.get(VM, name).await?.map_err(Error::msg)?;
        ensure!(vm["spec"]["powerState"] == "PoweredOn", "{vm:#}");
        let at = annotation(&vm, APPLY_POWER_STATE_TIME).context("no time")?;
        let due = begun.checked_add(SignedDuration::from_hours(hours))?;
        ensure!(
            at.parse::<Timestamp>()? == due,
            "{name}: {at}, begun {begun}"
        );
    }
    // The first one starts, as far as a cluster without kubelet lets it; the others wait.
    awaited(objects, "Pod", "first", |_| true).await?;
    ensure!(objects.get("Pod", "second").await?.is_err());

    let direct = json!({ "spec": { "powerState": null, "running": true } });
    patch(objects, VM, "second", direct).await?;
    awaited(objects, "Pod", "second", |_| true).await?;
    let second = awaited(objects, VM, "second", |vm| {
        annotation(vm, APPLY_POWER_STATE_TIME).is_none()
    })
    .await?;
    ensure!(second["spec"]["running"] == true, "{second:#}");
    ensure!(objects.get("Pod", "third").await?.is_err());
    Ok(())
}

async fn a_machine_waits_until_its_group_names_it(objects: &Objects) -> Result<()> {
    let linked =
        |reason: &'static str| move |vm: &Value| condition(vm, "GroupLinked")["reason"] == reason;
    let spec = json!({ "powerState": "PoweredOff", "groupName": "later" });
    create(objects, VM, &machine("early", &spec)).await?;
    awaited(objects, VM, "early", linked("NotFound")).await?;
    group(
        objects,
        "later",
        json!({ "bootOrder": [tier(&["other"], &json!({}))] }),
    )
    .await?;
    let early = awaited(objects, VM, "early", linked("NotMember")).await?;
    let uid = early["metadata"]["uid"].as_str().context("a UID")?;
    let placeholder = format!("early-placeholder-of-virtual-machine-{uid}");
    ensure!(objects.get("Pod", &placeholder).await?.is_err());
    let order = json!({ "spec": { "bootOrder": [tier(&["early"], &json!({}))] } });
    patch(objects, GROUP, "later", order).await?;
    awaited(objects, VM, "early", linked("Linked")).await?;
    let pod = awaited(objects, "Pod", &placeholder, |_| true).await?;
    let label = &pod["metadata"]["labels"]["vmlet.dev.protected/group"];
    ensure!(label == "later", "{pod:#}");
    Ok(())
}

async fn groups_in_a_cycle_change_no_member(objects: &Objects) -> Result<()> {
    let order = |group: &str| json!([{ "members": [{ "kind": GROUP, "name": group }, { "name": format!("of-{group}") }] }]);
    for (name, above) in [("red", "blue"), ("blue", "red")] {
        let spec = json!({
            "groupName": above, "powerState": "PoweredOn", "bootOrder": order(above),
        });
        group(objects, name, spec).await?;
    }
    member(objects, "of-blue", "red").await?;
    for name in ["red", "blue"] {
        awaited(objects, GROUP, name, |group| {
            let ready = condition(group, "Ready");
            let message = ready["message"].as_str().unwrap_or_default();
            let other = if name == "red" { "blue" } else { "red" };
            let cycle = format!("{name} -> {other} -> {name}");
            ready["reason"] == "Error" && message.contains(&cycle)
        })
        .await?;
    }
    let is_unlinked = |vm: &Value| condition(vm, "GroupLinked")["reason"] == "Error";
    let vm = awaited(objects, VM, "of-blue", is_unlinked).await?;
    ensure!(annotation(&vm, GROUP_POWER_STATE).is_none(), "{vm:#}");
    ensure!(vm["spec"]["powerState"] == "PoweredOff", "{vm:#}");

    patch(
        objects,
        GROUP,
        "blue",
        json!({ "spec": { "groupName": null } }),
    )
    .await?;
    awaited(objects, VM, "of-blue", |vm| {
        vm["spec"]["powerState"] == "PoweredOn"
    })
    .await?;
    Ok(())
}
