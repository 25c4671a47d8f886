//! The responses of the real API server to machines.
//!
//! Invariant: each forbidden object or edit is refused with the sentence of its rule, and its
//! allowed neighbour is not.
//! Failure: a table of all cases that had another result.

use anyhow::{Context, Error};
use e2e::{Case, Control, Effect, cases, judge};
use serde_json::{Value, json};

use crate::{clones, data_volumes, disk_quota, docs, edits, floods, kinds, requests, spellings};

pub(super) const VM: &str = "VirtualMachine";

/// A machine that is on, with more fields.
pub(super) fn on(more: Value) -> Value {
    with(
        json!({ "imageName": "debian", "powerState": "PoweredOn" }),
        more,
    )
}

/// The same, off.
pub(super) fn off(more: Value) -> Value {
    with(
        json!({ "imageName": "debian", "powerState": "PoweredOff" }),
        more,
    )
}

pub(super) fn with(mut spec: Value, more: Value) -> Value {
    if let Some(spec) = spec.as_object_mut()
        && let Value::Object(more) = more
    {
        spec.extend(more);
    }
    spec
}

fn create(spec: Value) -> Case {
    Case::create(VM, spec)
}

pub(super) fn edit(before: Value, change: Value) -> Case {
    Case::edit(VM, before, change)
}

pub(super) fn claim(name: &str, root: bool) -> Value {
    json!({ "name": name, "persistentVolumeClaim": { "claimName": name, "root": root } })
}

pub(super) fn mounted(path: &str, root: bool) -> Value {
    let claim = json!({ "claimName": "a", "root": root, "mountPath": path });
    json!({ "name": "a", "persistentVolumeClaim": claim })
}

#[tokio::test]
#[ignore = "needs root"]
async fn every_kind_is_judged_by_its_rules() -> anyhow::Result<()> {
    let control = Control::up().await?;
    cases!(
        &control,
        [
            the_api_server_takes_every_kind_and_fills_in_defaults,
            a_machine_that_contradicts_itself_is_refused,
            words_that_mean_nothing_are_refused,
            edits::what_a_machine_was_made_of_does_not_change,
            edits::power_machine_type_and_snapshots_change_only_in_allowed_steps,
            a_template_cannot_speak_for_the_controller,
            kinds::every_other_kind_is_judged_by_its_rules,
            kinds::the_source_of_an_image_is_immutable_once_a_disk_was_made_from_it,
            docs::every_example_of_the_documentation_can_be_applied,
            spellings::a_request_replaces_the_desired_state_in_every_spelling,
            clones::the_controller_reads_a_secret_by_name_and_lists_none,
            floods::probes_succeed_while_a_pod_floods_the_controller,
            disk_quota::a_quota_counts_the_root_disks_of_machines,
            data_volumes::cdi_that_is_installed_later_serves_machines_that_wait_for_it,
            requests::what_the_controller_writes_is_taken,
        ]
    );
    control.down()
}

async fn the_api_server_takes_every_kind_and_fills_in_defaults(
    control: &Control,
) -> anyhow::Result<()> {
    let objects = control.objects("default")?;
    let arguments = ["api-resources", "--api-group=vmlet.dev", "-o", "name"];
    let kinds = control.cluster().kubectl(&arguments)?;
    assert_eq!(
        kinds.lines().count(),
        crds::schema::definitions().len(),
        "{kinds}"
    );

    let machine =
        json!({ "metadata": { "name": "a" }, "spec": on(json!({ "className": "small" })) });
    let made = objects
        .create(VM, &machine, Effect::Real)
        .await?
        .map_err(Error::msg)?;
    for (field, value) in [
        ("powerOffMode", json!("TrySoft")),
        ("suspendMode", json!("TrySoft")),
        ("restartMode", json!("TrySoft")),
        ("powerOffTimeout", json!("5m")),
        ("promoteDisksMode", json!("Online")),
        ("paused", json!(false)),
    ] {
        assert_eq!(made["spec"][field], value, "{field}");
    }
    let status = json!({ "status": {
        "powerState": "PoweredOn", "printableStatus": "Running", "network": { "primaryIP4": "10.0.0.5" },
        "conditions": [{
            "type": "Ready", "status": "True", "reason": "PodReady", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }],
    }});
    objects
        .patch(VM, "a/status", &status, Effect::Real)
        .await?
        .map_err(Error::msg)?;
    let columns = control.cluster().kubectl(&["get", "vm"])?;
    let mut lines = columns
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    assert_eq!(
        lines.next().context("no heading")?,
        [
            "NAME",
            "POWER-STATE",
            "CLASS",
            "IMAGE",
            "PRIMARY-IP4",
            "STATUS",
            "READY",
            "AGE"
        ]
    );
    let row = lines.next().context("no row")?;
    assert_eq!(
        row[..7],
        [
            "a",
            "PoweredOn",
            "small",
            "debian",
            "10.0.0.5",
            "Running",
            "True"
        ]
    );
    assert!(
        control
            .cluster()
            .kubectl(&["get", "vmlet-all"])?
            .contains("virtualmachine")
    );
    Ok(())
}

async fn a_machine_that_contradicts_itself_is_refused(control: &Control) -> anyhow::Result<()> {
    let one_power_field = "set exactly one of powerState, runStrategy and running";
    let volumes = |list: &[Value]| on(json!({ "volumes": list }));
    let snapshot = json!({ "snapshot": { "name": "a" } });
    let machine = json!({ "virtualMachine": { "name": "a" } });
    let cases = [
        create(on(json!({}))),
        create(json!({ "imageName": "debian", "runStrategy": "Always" })),
        create(json!({ "imageName": "debian", "running": false })),
        create(json!({ "imageName": "debian" })).refused(one_power_field),
        create(on(json!({ "running": true }))).refused(one_power_field),
        create(on(json!({ "runStrategy": "Once" }))).refused(one_power_field),
        edit(on(json!({})), json!({ "powerState": null })).refused(one_power_field),
        edit(on(json!({})), json!({ "powerState": "" })).refused("Unsupported value"),
        edit(
            on(json!({})),
            json!({ "powerState": null, "runStrategy": "Manual" }),
        ),
        create(on(json!({ "powerState": "Suspended" }))).refused("cannot be created Suspended"),
        create(on(json!({ "runStrategy": "Sometimes" }))).refused("Unsupported value"),
        create(on(
            json!({ "image": { "kind": "VirtualMachineImage", "name": "debian" } }),
        ))
        .refused("set image or imageName, not both"),
        create(json!({ "running": true }))
            .refused("set image or imageName, a source, or a volume with root: true"),
        create(json!({ "running": true, "volumes": [claim("root", false)] }))
            .refused("set image or imageName, a source, or a volume with root: true"),
        create(json!({ "running": true, "volumes": [claim("root", true)] })),
        create(json!({ "running": true, "source": snapshot })),
        create(json!({ "running": true, "source": machine, "bootDiskCapacity": "10Gi" })),
        create(json!({ "running": true, "source": { "backup": { "name": "a" } } })),
        create(json!({ "running": true, "source": with(
            snapshot.clone(), json!({ "backup": { "name": "a" } }),
        ) }))
        .refused("exactly one of source.snapshot"),
        create(json!({ "running": true, "source": {} })).refused("exactly one of source.snapshot"),
        create(json!({ "running": true, "source": with(snapshot.clone(), machine.clone()) }))
            .refused("exactly one of source.snapshot"),
        create(json!({ "running": true, "source": { "snapshot": { "name": "No name" } } }))
            .refused("should match"),
        create(on(json!({ "source": snapshot }))).refused("set source, or image or imageName"),
        create(json!({ "running": true, "source": snapshot, "storageClass": "fast" }))
            .refused("source excludes storageClass"),
        create(json!({ "running": true, "source": machine, "volumes": [claim("root", true)] }))
            .refused("source excludes storageClass"),
        create(json!({ "running": true, "source": machine, "volumes": [claim("data", false)] })),
        edit(
            json!({ "running": true, "source": snapshot }),
            json!({ "source": { "snapshot": { "name": "b" } } }),
        )
        .refused("source is immutable"),
        edit(
            json!({ "running": true, "source": snapshot }),
            json!({ "source": null, "imageName": "debian" }),
        )
        .refused("source is immutable"),
        edit(
            on(json!({})),
            json!({ "imageName": null, "source": machine }),
        )
        .refused("source is immutable"),
        create(json!({ "running": true, "image": { "kind": "Pod", "name": "debian" } }))
            .refused("Unsupported value"),
        create(on(
            json!({ "className": "small", "hardware": { "cpus": 1, "memory": "1Gi" } }),
        ))
        .refused("set className or hardware, not both"),
        create(on(json!({ "hardware": { "cpus": 0, "memory": "1Gi" } })))
            .refused("greater than or equal to 1"),
        create(on(json!({ "hardware": { "cpus": 513, "memory": "1Gi" } })))
            .refused("less than or equal to 512"),
        create(on(json!({ "hardware": { "cpus": 2, "memory": "1Gi" } }))),
        create(on(json!({ "hardware": { "cpus": 2, "memory": "1500k" } })))
            .refused("whole number of MiB"),
        create(on(json!({ "hardware": { "cpus": 2, "memory": "much" } })))
            .refused("whole number of MiB"),
        create(on(json!({ "hardware": { "cpus": 2, "memory": "-1Gi" } })))
            .refused("must be from 32Mi to 16Ti"),
        create(on(json!({ "hardware": { "cpus": 2, "memory": "31Mi" } })))
            .refused("must be from 32Mi to 16Ti"),
        create(on(json!({ "hardware": { "cpus": 2, "memory": "16Ti" } }))),
        create(on(json!({ "currentSnapshotName": "s" })))
            .refused("currentSnapshotName cannot be set when a machine is created"),
        create(on(json!({ "affinity": {} }))),
        create(on(json!({
            "nodeSelector": { "disk": "fast" },
            "tolerations": [{ "key": "gpu", "operator": "Exists" }],
            "topologySpreadConstraints": [{
                "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": { "matchLabels": { "app": "a" } },
            }],
            "priorityClassName": "high",
            "schedulerName": "other",
        }))),
        create(on(json!({ "priorityClassName": "High" }))).refused("should match"),
        create(on(json!({ "nextRestartTime": "2026-01-01T00:00:00Z" })))
            .refused("nextRestartTime cannot be set when a machine is created"),
        create(volumes(&[claim("a", true), claim("b", true)]))
            .refused("at most one volume may have root: true"),
        create(volumes(&[claim("a", true), claim("b", false)])),
        create(volumes(&[claim("a", false), claim("a", false)])).refused("Duplicate value"),
        create(volumes(&[json!({ "name": "a" })])).refused("a volume needs persistentVolumeClaim"),
        create(volumes(&[mounted("/srv/a", false)])),
        create(volumes(&[mounted("/srv/a", true)])).refused("a root disk has no mountPath"),
        create(volumes(&[mounted("srv", false)])).refused("mountPath"),
        create(on(
            json!({ "dataVolumeTemplates": [{ "name": "d", "spec": {} }] }),
        ))
        .refused("must be the claim of one of volumes"),
        create(on(
            json!({ "dataVolumeTemplates": [{ "name": "d", "spec": { "x": 1 } }], "volumes": [claim("d", false)] }),
        )),
        create(on(json!({ "readinessProbe": {} }))).refused("a probe has exactly one of"),
        create(on(
            json!({ "readinessProbe": { "tcpSocket": { "port": 1 }, "guestHeartbeat": {} } }),
        ))
        .refused("a probe has exactly one of"),
        create(on(json!({ "readinessProbe": { "guestInfo": [] } })))
            .refused("a probe has exactly one of"),
        create(on(
            json!({ "readinessProbe": { "tcpSocket": { "port": 80 } } }),
        )),
        create(on(
            json!({ "readinessProbe": { "tcpSocket": { "port": 80, "host": "10.0.0.5" } } }),
        )),
        create(on(
            json!({ "readinessProbe": { "tcpSocket": { "port": 80, "host": "fd00::5" } } }),
        )),
        create(on(
            json!({ "readinessProbe": { "tcpSocket": { "port": 80, "host": "localhost" } } }),
        ))
        .refused("names are not resolved"),
        create(on(
            json!({ "readinessProbe": { "tcpSocket": { "port": 0 } } }),
        ))
        .refused("greater than or equal to 1"),
        create(on(
            json!({ "readinessProbe": { "tcpSocket": { "port": 65536 } } }),
        ))
        .refused("less than or equal to 65535"),
        create(on(
            json!({ "readinessProbe": { "guestHeartbeat": { "thresholdStatus": "red" } } }),
        ))
        .refused("Unsupported value"),
        create(on(json!({ "surprise": 1 }))).refused("unknown field"),
    ];
    judge(&control.objects("default")?, &cases).await?;
    let long = json!({ "metadata": { "name": "a".repeat(64) }, "spec": on(json!({})) });
    let answer = control
        .objects("default")?
        .create(VM, &long, Effect::DryRun)
        .await?;
    let reported = answer.err().unwrap_or_default();
    assert!(
        reported.contains("name of a machine has at most 63 characters")
            && reported.contains("metadata: "),
        "{reported}"
    );
    Ok(())
}

async fn words_that_mean_nothing_are_refused(control: &Control) -> anyhow::Result<()> {
    let matches = "should match";
    let net = |interface: Value| on(json!({ "network": { "interfaces": [interface] } }));
    let uuid = "3f2504e0-4f89-41d3-9a0c-0305e82c3301";
    let cases = [
        create(on(json!({ "biosUUID": uuid, "instanceUUID": uuid }))),
        create(on(json!({ "biosUUID": "x" }))).refused(matches),
        create(on(json!({ "firmware": "UEFI" }))),
        create(on(json!({ "firmware": "uefi" }))).refused("Unsupported value"),
        create(on(json!({ "instanceUUID": uuid.to_uppercase() }))).refused(matches),
        create(net(
            json!({ "name": "eth0", "macAddr": "52:54:00:00:00:01" }),
        )),
        create(net(
            json!({ "name": "eth0", "macAddr": "53:54:00:00:00:01" }),
        ))
        .refused("must be the MAC address of one station"),
        create(net(
            json!({ "name": "eth0", "macAddr": "52-54-00-00-00-01" }),
        ))
        .refused("must be the MAC address of one station"),
        create(net(
            json!({ "name": "eth0", "macAddr": "00:00:00:00:00:00" }),
        ))
        .refused("not all zeros"),
        create(net(
            json!({ "name": "eth0", "addresses": ["10.0.0.5/24", "fd00::5/64"] }),
        )),
        create(net(json!({ "name": "eth0", "addresses": ["10.0.0.5"] })))
            .refused("addresses have a prefix length"),
        create(net(
            json!({ "name": "eth0", "addresses": ["10.0.0.5/24", "10.0.0.5/24"] }),
        ))
        .refused("Duplicate value"),
        create(net(json!({ "name": "eth0", "networkRef": "ns/net" }))),
        create(net(json!({ "name": "eth0", "networkRef": "../net" }))).refused(matches),
        create(on(
            json!({ "network": { "interfaces": [{ "name": "a" }, { "name": "a" }] } }),
        ))
        .refused("Duplicate value"),
        create(on(
            json!({ "network": { "disabled": true, "interfaces": [{ "name": "a" }] } }),
        ))
        .refused("a disabled network has no interfaces"),
        create(on(json!({ "network": { "hostName": "a.b" } }))).refused(matches),
        create(on(json!({ "powerOffTimeout": "1h30m" }))),
        create(on(json!({ "powerOffTimeout": "soon" }))).refused(matches),
        create(on(json!({ "powerOffTimeout": "168h" }))),
        create(on(json!({ "powerOffTimeout": "168h1s" }))).refused("must be at most 168h"),
        create(on(json!({ "powerOffTimeout": "99999h9999999m" }))).refused("must be at most 168h"),
        // More than CEL's durations hold.
        create(on(json!({ "powerOffTimeout": "999999999h" }))).refused(matches),
        create(on(json!({ "minMachineType": "pc-q35-7.2" }))),
        create(on(json!({ "minMachineType": "q35" }))).refused(matches),
        create(on(json!({ "bootDiskCapacity": "10Gi" }))),
        create(on(json!({ "bootDiskCapacity": "64Ti" }))),
        create(on(json!({ "bootDiskCapacity": "1500Ki" }))).refused("whole number of MiB"),
        create(on(json!({ "bootDiskCapacity": "0" }))).refused("must be from 1Mi to 64Ti"),
        create(on(json!({ "bootDiskCapacity": "512Ti" }))).refused("must be from 1Mi to 64Ti"),
        create(on(json!({ "bootDiskCapacity": 2_814_749_767_106_560_i64 })))
            .refused("must be from 1Mi to 64Ti"),
        create(on(json!({ "imageName": "Debian_12" }))).refused(matches),
        create(on(
            json!({ "bootstrap": { "cloudInit": { "instanceID": "a b" } } }),
        ))
        .refused(matches),
        create(on(
            json!({ "bootstrap": { "cloudInit": { "userData": { "name": "s", "key": "../k" } } } }),
        ))
        .refused(matches),
        create(on(json!({ "bootstrap": { "cloudInit": {
            "userData": { "name": "s" }, "inlineUserData": "#!/bin/sh",
        } } })))
        .refused("set userData or inlineUserData, not both"),
        create(on(json!({ "bootstrap": { "cloudInit": {
            "networkData": { "name": "s" }, "inlineNetworkData": "version: 2",
        } } })))
        .refused("set networkData or inlineNetworkData, not both"),
        create(on(json!({ "bootstrap": {
            "cloudInit": {}, "sysprep": { "secretName": "s" },
        } })))
        .refused("set cloudInit or sysprep, not both"),
        create(on(
            json!({ "bootstrap": { "cloudInit": { "inlineUserData": "hostname: a" } } }),
        ))
        .refused("the first line must be #cloud-config"),
        create(on(
            json!({ "bootstrap": { "cloudInit": { "inlineUserData": "#".repeat(16385) } } }),
        ))
        .refused("16384"),
        create(on(
            json!({ "bootstrap": { "cloudInit": { "sshKeys": ["k", "k"] } } }),
        ))
        .refused("Duplicate value"),
        create(on(
            json!({ "bootstrap": { "cloudInit": { "sshKeys": ["not a key"] } } }),
        ))
        .refused("must be public keys as in authorized_keys"),
        create(on(json!({ "bootstrap": { "cloudInit": { "sshKeys": [
            "ssh-ed25519 AAAA a", "ecdsa-sha2-nistp256 AAAA", "sk-ssh-ed25519@openssh.com AAAA",
        ] } } }))),
    ];
    judge(&control.objects("default")?, &cases).await
}

async fn a_template_cannot_speak_for_the_controller(control: &Control) -> anyhow::Result<()> {
    let key =
        |part: &str, key: &str| on(json!({ "template": { "metadata": { part: { key: "x" } } } }));
    let not_ours = "the template may not set this key";
    let cases = [
        create(key("annotations", "vmlet.dev/cloud-init-user-data")),
        create(key("annotations", "example.com/protected")),
        create(key("annotations", "vmlet.dev/vm-disk")).refused(not_ours),
        create(key("annotations", "vmlet.dev/restore")).refused(not_ours),
        create(key("annotations", "vmlet.dev.protected/allow-spoofing")).refused(not_ours),
        create(key("labels", "vmlet.dev/vm-uid")).refused(not_ours),
        create(key("labels", "vmlet.dev/role")).refused(not_ours),
        create(key("labels", "app")),
    ];
    judge(&control.objects("default")?, &cases).await
}
