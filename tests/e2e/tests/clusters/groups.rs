//! A group powers three guests on and off, tier by tier.
//!
//! Invariant: order is read from times in the objects, which the cluster itself wrote; none is compared with
//! the time of the test.
//! Failure: the machine with the wrong time, and the times of the tiers.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::machines::{condition, machine};
use e2e::{Cluster, eventually, program};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

const UP: Duration = Duration::from_secs(300);
const DOWN: Duration = Duration::from_secs(180);
const MEMBERS: [&str; 3] = ["tier-1", "tier-2", "tier-3"];
/// Seconds between two tiers.
const DELAY: i64 = 2;

pub(super) async fn a_group_powers_its_tiers_in_order_and_off_in_reverse(
    cluster: &Cluster,
) -> Result<()> {
    let delay = format!("{DELAY}s");
    let [first, second, third] = MEMBERS;
    cluster.apply(&json!({
        "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineGroup",
        "metadata": { "name": "tiers" },
        "spec": { "bootOrder": [
            { "members": [{ "name": first }], "powerOffDelay": delay },
            { "members": [{ "name": second }], "powerOnDelay": delay, "powerOffDelay": delay },
            { "members": [{ "name": third }], "waitForReady": true },
        ]},
    }))?;
    for name in MEMBERS {
        let spec = json!({ "powerState": "PoweredOff", "groupName": "tiers" });
        cluster.apply(&machine(name, &spec))?;
    }
    for name in MEMBERS {
        cluster.await_word(name, "Stopped", UP).await?;
    }

    let times = power(cluster, "PoweredOn", UP).await?;
    ensure!(
        times[1] == times[0].checked_add(SignedDuration::from_secs(DELAY))?,
        "{times:?}"
    );
    ensure!(created(cluster, second)? >= times[1], "{times:?}");
    // The third waited for the readiness of the second, and its pod came after both.
    let ready = changed(cluster, second, "True")?;
    ensure!(
        ready <= times[2],
        "{second} was ready at {ready}: {times:?}"
    );
    ensure!(created(cluster, third)? >= times[2], "{times:?}");
    for name in MEMBERS {
        cluster.await_boots(name, &[1], UP).await?;
        cluster
            .await_vm(name, "Ready", UP, |vm| {
                ensure!(condition(vm, "Ready")["status"] == "True", "{vm}");
                Ok(())
            })
            .await?;
    }

    let times = power(cluster, "PoweredOff", DOWN).await?;
    let step = SignedDuration::from_secs(DELAY);
    ensure!(times[1] == times[0].checked_add(step)?, "{times:?}");
    ensure!(times[2] == times[1].checked_add(step)?, "{times:?}");
    for (name, at) in [(third, times[0]), (second, times[1]), (first, times[2])] {
        let down = changed(cluster, name, "False")?;
        ensure!(down >= at, "{name} went at {down}: {times:?}");
    }

    // Members stay when their group goes.
    cluster.delete("vmg/tiers", DOWN)?;
    for name in MEMBERS {
        cluster
            .await_vm(name, "no group", DOWN, |vm| {
                let linked = condition(vm, "GroupLinked");
                ensure!(linked["reason"] == "NotFound", "{vm}");
                Ok(())
            })
            .await?;
        cluster.delete(&format!("vm/{name}"), DOWN)?;
    }
    Ok(())
}

/// Powers the group, and waits until every member is so; the times of the tiers in the order in which they
/// changed.
async fn power(cluster: &Cluster, state: &str, within: Duration) -> Result<Vec<Timestamp>> {
    let verb = if state == "PoweredOn" {
        "start"
    } else {
        "stop"
    };
    let mut watch = cluster.stack().command("timeout");
    watch.arg(e2e::scaled(within)?.as_secs().to_string());
    watch.args(["vmletctl", "group", verb, "tiers", "--watch"]);
    let watched = program::output(&mut watch)?;
    ensure!(watched.status.success(), "{watched:?}");
    let group = eventually(within, &format!("the group is {state}"), || async {
        let group = cluster.get_json(&["vmg", "tiers"])?;
        let is_ready = condition(&group, "Ready")["status"] == "True";
        let is_it = group["status"]["powerChange"]["powerState"] == state;
        ensure!(is_ready && is_it, "{group:#}");
        Ok(group)
    })
    .await?;
    let times = group["status"]["powerChange"]["tierTimes"].as_array();
    let times = times.context("no times")?.iter().map(time);
    times.collect()
}

fn time(value: &Value) -> Result<Timestamp> {
    let text = value.as_str().with_context(|| value.to_string())?;
    Ok(text.parse()?)
}

fn created(cluster: &Cluster, pod: &str) -> Result<Timestamp> {
    let pod = cluster.get_json(&["pod", pod])?;
    time(&pod["metadata"]["creationTimestamp"])
}

/// When the machine became ready, or ceased to be.
fn changed(cluster: &Cluster, name: &str, status: &str) -> Result<Timestamp> {
    let ready = condition(&cluster.vm(name)?, "Ready");
    ensure!(ready["status"] == status, "{name}: {ready}");
    time(&ready["lastTransitionTime"])
}
