//! Edits of machines: what they were made of, and steps that are allowed. Part of the test of
//! [`rules`](super::rules).
//!
//! Invariant: each case is judged by the API server alone.
//! Failure: the case, with the answer.

use anyhow::Error;
use e2e::{Control, Effect, judge};
use serde_json::{Value, json};

use super::rules::{VM, claim, edit, mounted, off, on, with};

pub(super) async fn what_a_machine_was_made_of_does_not_change(
    control: &Control,
) -> anyhow::Result<()> {
    let uuid = "3f2504e0-4f89-41d3-9a0c-0305e82c3301";
    let ci = json!({ "bootstrap": { "cloudInit": { "instanceID": "a" } } });
    let sysprep = json!({ "bootstrap": { "sysprep": { "secretName": "s" } } });
    let created = json!({ "conditions": [{
        "type": "VirtualMachineCreated", "status": "True", "reason": "Provisioned", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }] });
    let fixed = "image and imageName cannot change once the machine has a node or a disk";
    let group = |weight: i64| {
        json!({ "groupName": "g", "affinity": { "nodeAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [
            { "weight": weight, "preference": { "matchExpressions": [{ "key": "a", "operator": "Exists" }] } },
        ] } } })
    };
    let once = "once the machine has a node or a disk";
    let class = "storageClass cannot change once the machine has a node or a disk";
    let grows = "bootDiskCapacity can only grow once the machine has a node or a disk";
    let affinity = "affinity cannot change once the machine has a node or a disk";
    let provider = "the bootstrap provider cannot change once the machine has a node or a disk";
    let bios = "biosUUID cannot change once the machine has a node or a disk";
    let instance = "instanceUUID cannot change once the machine has a node or a disk";
    let large = json!({ "bootDiskCapacity": "10Gi" });
    // Before and after each edit, and what refuses it of a machine that has a node or a disk.
    let edits = [
        (on(json!({})), json!({ "imageName": "other" }), fixed),
        (
            on(json!({})),
            json!({ "imageName": null, "volumes": [claim("r", true)] }),
            fixed,
        ),
        (
            on(json!({})),
            json!({ "imageName": null, "image": { "kind": "VirtualMachineImage", "name": "debian" } }),
            fixed,
        ),
        (on(json!({})), json!({ "biosUUID": uuid }), bios),
        (
            on(json!({ "biosUUID": uuid })),
            json!({ "biosUUID": "7b0e4a7e-2a61-4d0e-8a53-0c7a4d1b2e3f" }),
            bios,
        ),
        (
            on(json!({ "biosUUID": uuid })),
            json!({ "biosUUID": null }),
            bios,
        ),
        (on(json!({})), json!({ "instanceUUID": uuid }), instance),
        (
            on(json!({ "instanceUUID": uuid })),
            json!({ "instanceUUID": null }),
            instance,
        ),
        (
            on(json!({ "biosUUID": uuid, "instanceUUID": uuid })),
            json!({ "className": "other" }),
            "",
        ),
        (on(json!({})), json!({ "storageClass": "fast" }), class),
        (
            on(json!({ "storageClass": "fast" })),
            json!({ "storageClass": null }),
            class,
        ),
        (
            on(json!({ "storageClass": "fast" })),
            json!({ "storageClass": "slow" }),
            class,
        ),
        (on(group(1)), json!({ "affinity": null }), affinity),
        (on(group(1)), group(2), affinity),
        (on(json!({})), group(2), affinity),
        (on(ci.clone()), json!({ "bootstrap": null }), provider),
        (
            on(ci.clone()),
            json!({ "bootstrap": { "cloudInit": null } }),
            provider,
        ),
        (
            on(ci.clone()),
            json!({ "bootstrap": { "cloudInit": null, "sysprep": { "secretName": "s" } } }),
            provider,
        ),
        (
            on(sysprep.clone()),
            json!({ "bootstrap": { "sysprep": null } }),
            provider,
        ),
        (on(sysprep.clone()), json!({ "bootstrap": null }), provider),
        (
            on(large.clone()),
            json!({ "bootDiskCapacity": "9Gi" }),
            grows,
        ),
        (
            on(large.clone()),
            json!({ "bootDiskCapacity": null }),
            grows,
        ),
        (on(json!({})), json!({ "className": "other" }), ""),
        (on(group(1)), json!({ "groupName": "h" }), ""),
        (
            on(group(1)),
            json!({ "nodeSelector": { "disk": "fast" } }),
            "",
        ),
        (
            on(sysprep),
            json!({ "bootstrap": { "sysprep": { "secretName": "t" } } }),
            "",
        ),
        (
            on(ci.clone()),
            json!({ "bootstrap": { "cloudInit": { "instanceID": "b" } } }),
            "",
        ),
        (on(json!({})), ci, ""),
        (on(large.clone()), json!({ "bootDiskCapacity": "11Gi" }), ""),
        (on(json!({})), large, ""),
        (
            on(json!({ "bootDiskCapacity": "1024Mi" })),
            json!({ "bootDiskCapacity": 1_073_741_824 }),
            "",
        ),
    ];
    let states = [created, json!({ "nodeName": "n" })];
    let provisioning = |kind: &str, status: &str| {
        json!({ "printableStatus": "Provisioning", "conditions": [{
            "type": kind, "status": status, "reason": "Error", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }] })
    };
    // The second one has its place on a node, where nothing is made of it yet.
    let not_yet = [
        provisioning("VirtualMachineCreated", "False"),
        provisioning("VirtualMachineConditionPlacementReady", "True"),
    ];
    let mut cases = Vec::new();
    for (before, change, refusal) in edits {
        cases.push(edit(before.clone(), change.clone()));
        for state in &not_yet {
            cases.push(edit(before.clone(), change.clone()).with_status(state.clone()));
        }
        for state in &states {
            let case = edit(before.clone(), change.clone()).with_status(state.clone());
            cases.push(match refusal {
                "" => case,
                refusal => {
                    assert!(refusal.contains(once));
                    case.refused(refusal)
                }
            });
        }
    }
    judge(&control.objects("default")?, &cases).await
}

pub(super) async fn power_machine_type_and_snapshots_change_only_in_allowed_steps(
    control: &Control,
) -> anyhow::Result<()> {
    let suspended = json!({ "powerState": "Suspended" });
    let switch = |from: Value| {
        edit(
            with(json!({ "imageName": "debian" }), from),
            with(
                json!({ "runStrategy": null, "running": null }),
                suspended.clone(),
            ),
        )
    };
    let from_off = "a machine that is off cannot become Suspended";
    let claims = "a machine whose root disk is a claim cannot be suspended";
    let lowered = "minMachineType can neither be lowered nor removed once the machine has it";
    let has = |version: &str| json!({ "machineType": version });
    let while_off = "minMachineType can change only while the machine is off or going off";
    let machine = |version: &str| json!({ "minMachineType": version });
    let restart = |time: &str| json!({ "nextRestartTime": time });
    let restarted = json!({ "lastRestartTime": "2026-01-01T00:00:00Z" });
    let reverting = json!({ "conditions": [{
        "type": "VirtualMachineSnapshotRevertSucceeded", "status": "False", "message": "",
        "reason": "VirtualMachineSnapshotRevertInProgress", "lastTransitionTime": "2026-01-01T00:00:00Z",
    }] });
    let cases = [
        edit(on(json!({})), suspended.clone()),
        edit(off(json!({})), suspended.clone()).refused(from_off),
        edit(on(json!({ "storageClass": "fast" })), suspended.clone()).refused(claims),
        edit(
            on(json!({ "volumes": [claim("a", true)] })),
            suspended.clone(),
        )
        .refused(claims),
        edit(
            on(json!({ "volumes": [claim("a", false)] })),
            suspended.clone(),
        ),
        edit(
            on(json!({ "volumes": [mounted("/srv", false)] })),
            suspended.clone(),
        )
        .refused("a machine that mounts directories of claims (mountPath) cannot be suspended"),
        edit(
            on(json!({
                "volumes": [mounted("/srv", false)],
                "template": { "metadata": { "annotations": { "vmlet.dev/shares": "off" } } },
            })),
            suspended.clone(),
        ),
        switch(json!({ "runStrategy": "Always" })),
        switch(json!({ "runStrategy": "Halted" })).refused(from_off),
        switch(json!({ "running": true })),
        switch(json!({ "running": false })).refused(from_off),
        edit(off(json!({})), machine("pc-q35-7.2")),
        edit(off(machine("pc-q35-7.2")), machine("pc-q35-7.10")),
        edit(off(machine("pc-q35-7.10")), machine("pc-q35-7.2"))
            .with_status(has("pc-q35-7.10"))
            .refused(lowered),
        edit(
            off(machine("pc-q35-7.2")),
            json!({ "minMachineType": null }),
        )
        .with_status(has("pc-q35-8.0"))
        .refused(lowered),
        edit(off(machine("pc-q35-99.0")), machine("pc-q35-7.2")).with_status(has("pc-q35-7.10")),
        edit(off(machine("pc-q35-99.0")), machine("pc-q35-7.2")),
        edit(off(machine("pc-q35-7.2")), machine("pc-i440fx-8.0")).refused("should match"),
        edit(on(json!({})), machine("pc-q35-7.2")).refused(while_off),
        edit(
            on(json!({})),
            with(machine("pc-q35-7.2"), json!({ "powerState": "PoweredOff" })),
        ),
        edit(
            off(json!({})),
            with(machine("pc-q35-7.2"), json!({ "powerState": "PoweredOn" })),
        ),
        edit(
            json!({ "imageName": "debian", "runStrategy": "Manual" }),
            machine("pc-q35-7.2"),
        )
        .refused(while_off),
        edit(
            json!({ "imageName": "debian", "runStrategy": "Manual" }),
            machine("pc-q35-7.2"),
        )
        .with_status(json!({ "powerState": "PoweredOff" })),
        edit(on(json!({})), restart("2026-01-01T00:00:00Z")),
        edit(on(json!({})), restart("now")).refused("should match"),
        // One that has not come is withdrawn, or becomes an earlier one.
        edit(on(json!({})), json!({ "nextRestartTime": null })).with_status(restarted.clone()),
        edit(on(json!({})), restart("2025-12-31T00:00:00Z"))
            .with_status(restarted)
            .refused("nextRestartTime must be later than the last restart"),
        edit(on(json!({})), restart("2026-13-01T00:00:00Z")).refused("date-time"),
        edit(off(json!({})), restart("2026-01-01T00:00:00Z"))
            .refused("only on a machine that is on"),
        edit(on(json!({})), json!({ "currentSnapshotName": "s" })),
        edit(on(json!({})), json!({ "currentSnapshotName": "s" }))
            .with_status(reverting.clone())
            .refused("currentSnapshotName cannot change while the machine goes back"),
        edit(on(json!({})), json!({ "className": "large" })).with_status(reverting),
    ];
    let objects = control.objects("default")?;
    judge(&objects, &cases).await?;

    let made = json!({ "metadata": { "name": "again" }, "spec": on(json!({})) });
    objects
        .create(VM, &made, Effect::Real)
        .await?
        .map_err(Error::msg)?;
    let again = |time: &str| json!({ "spec": restart(time) });
    let first = again("2026-01-01T10:00:00Z");
    objects
        .patch(VM, "again", &first, Effect::Real)
        .await?
        .map_err(Error::msg)?;
    // Restarted once, it can be switched off, and be whatever else it may be.
    for change in [
        again("2026-01-01T10:30:00+01:00"),
        json!({ "spec": { "nextRestartTime": null } }),
        again("2026-01-01T10:00:01Z"),
        again("2026-01-01T12:00:00+02:00"),
        json!({ "spec": { "powerState": "PoweredOff" } }),
        json!({ "spec": { "powerState": "Suspended" } }),
        json!({ "spec": { "className": "large" } }),
    ] {
        let answer = objects.patch(VM, "again", &change, Effect::DryRun).await?;
        answer.map_err(Error::msg)?;
    }
    Ok(())
}
