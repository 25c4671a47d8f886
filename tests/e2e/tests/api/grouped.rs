//! `vmletctl group` against the real API server.
//!
//! Invariant: no controller runs, so that everything that changes was changed by the command under test, or
//! by this test in the place of the controller.
//! Failure: the command's own output, or the object.

use std::cell::RefCell;
use std::process::{Child, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Error, Result, ensure};
use e2e::{Control, Effect, Objects, eventually};
use serde_json::{Value, json};

use crate::vmletctl::Ctl;

const SOON: Duration = Duration::from_secs(120);
const VM: &str = "VirtualMachine";
const GROUP: &str = "VirtualMachineGroup";

pub(crate) async fn groups_are_powered_and_get_members(control: &Control, ctl: &Ctl) -> Result<()> {
    let objects = control.objects("default")?;
    for name in ["shop", "other"] {
        let group = json!({ "metadata": { "name": name }, "spec": {} });
        let made = objects.create(GROUP, &group, Effect::Real).await?;
        made.map_err(Error::msg)?;
    }
    for name in ["shop-db", "shop-web"] {
        ctl.ok(&format!(
            "create vm {name} --image debian --memory 64Mi --run-strategy Halted --apply"
        ))?;
    }
    members_are_added(&objects, ctl).await?;
    power_is_requested(&objects, ctl).await?;
    a_watch_ends_with_the_change(&objects, ctl).await?;

    ctl.ok("group remove shop shop-db")?;
    let group = get(&objects, GROUP, "shop").await?;
    let tiers = &group["spec"]["bootOrder"];
    ensure!(tiers[0]["members"].is_null(), "{tiers}");
    let vm = get(&objects, VM, "shop-db").await?;
    ensure!(vm["spec"]["groupName"].is_null(), "{vm}");
    ctl.ok("group remove shop shop-web")?;
    ctl.ok("delete shop-db shop-web --watch")?;
    let none = ctl.refused("group status nothing")?;
    ensure!(none.contains("there is no group nothing"), "{none}");
    Ok(())
}

async fn get(objects: &Objects, kind: &str, name: &str) -> Result<Value> {
    objects.get(kind, name).await?.map_err(Error::msg)
}

async fn members_are_added(objects: &Objects, ctl: &Ctl) -> Result<()> {
    let added = ctl.ok("group add shop shop-db")?;
    let expected = "virtualmachine.vmlet.dev/shop-db added to shop\n";
    ensure!(added == expected, "{added}");
    ctl.ok("group add vmg/shop vm/shop-web --tier 2")?;
    let group = get(objects, GROUP, "shop").await?;
    ctl.ok("group add shop shop-db shop-web")?;
    let again = get(objects, GROUP, "shop").await?;
    ensure!(
        again["metadata"]["generation"] == group["metadata"]["generation"],
        "{again}"
    );
    let tiers = &again["spec"]["bootOrder"];
    ensure!(tiers[0]["members"][0]["name"] == "shop-db", "{tiers}");
    ensure!(tiers[1]["members"][0]["name"] == "shop-web", "{tiers}");
    let vm = get(objects, VM, "shop-web").await?;
    ensure!(vm["spec"]["groupName"] == "shop", "{vm}");
    let taken = ctl.refused("group add other shop-db")?;
    ensure!(taken.contains("member of another group"), "{taken}");
    let missing = ctl.refused("group add shop nothing")?;
    ensure!(
        missing.contains("there is no virtual machine nothing"),
        "{missing}"
    );
    Ok(())
}

async fn power_is_requested(objects: &Objects, ctl: &Ctl) -> Result<()> {
    let dry = ctl.ok("group start shop --dry-run")?;
    ensure!(dry.ends_with("start requested (dry run)\n"), "{dry}");
    let group = get(objects, GROUP, "shop").await?;
    ensure!(group["spec"]["powerState"].is_null(), "{group}");
    let started = ctl.ok("group start shop")?;
    ensure!(started.ends_with("shop start requested\n"), "{started}");
    let same = ctl.ok("group start shop")?;
    ensure!(same.contains("unchanged: --again"), "{same}");
    ctl.ok("group start shop --again")?;
    let first = get(objects, GROUP, "shop").await?;
    let forced = |group: &Value| group["spec"]["nextForcePowerStateSyncTime"].clone();
    ensure!(forced(&first).is_string(), "{first}");
    let listed = ctl.ok("group list")?;
    let row = listed.lines().find(|line| line.contains("shop"));
    let row = row.with_context(|| listed.clone())?;
    ensure!(row.contains("PoweredOn") && row.contains("0/0"), "{listed}");
    let shown = ctl.ok("group status shop")?;
    ensure!(shown.contains("Power:      PoweredOn"), "{shown}");
    Ok(())
}

/// The test writes what the controller would.
async fn a_watch_ends_with_the_change(objects: &Objects, ctl: &Ctl) -> Result<()> {
    let mut command = ctl.command("group stop shop --watch");
    let watch = command.stdout(Stdio::null()).spawn()?;
    let watch = RefCell::new(watch);
    let ended = watched(objects, &watch).await;
    // After a failure it would watch without an end.
    let _ = watch.borrow_mut().kill();
    let ended = ended?;
    ensure!(ended.success(), "{ended}");
    Ok(())
}

async fn watched(objects: &Objects, watch: &RefCell<Child>) -> Result<ExitStatus> {
    let group = eventually(SOON, "the request", || async {
        let group = get(objects, GROUP, "shop").await?;
        ensure!(group["spec"]["powerState"] == "PoweredOff", "{group}");
        Ok(group)
    })
    .await?;
    let time = "2026-01-01T00:00:00Z";
    let met = |kind: &str| json!({ "type": kind, "status": "True", "reason": "True", "message": "", "lastTransitionTime": time });
    let member = |name: &str| {
        json!({ "kind": VM, "name": name, "powerState": "PoweredOff",
            "conditions": [met("GroupLinked"), met("PowerStateSynced")] })
    };
    let mut ready = met("Ready");
    ready["observedGeneration"] = group["metadata"]["generation"].clone();
    let status = json!({ "status": {
        "members": [member("shop-db"), member("shop-web")],
        "conditions": [ready],
        "powerChange": { "powerState": "PoweredOff", "time": time, "startTime": time, "tierTimes": [time, time],
            "forceSyncTime": group["spec"]["nextForcePowerStateSyncTime"] },
    } });
    let written = objects.patch(GROUP, "shop/status", &status, Effect::Real);
    written.await?.map_err(Error::msg)?;
    eventually(SOON, "the end of the watch", || async {
        let ended = watch.borrow_mut().try_wait()?;
        ended.context("it watches")
    })
    .await
}
