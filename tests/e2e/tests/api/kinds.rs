//! What the real API server makes of classes, images, caches, groups, snapshots, tasks and
//! settings.
//!
//! Invariant: each forbidden object or edit is refused with the sentence of its rule, and its
//! allowed neighbour is not.
//! Failure: a table of all cases that had another result.

mod backups;
mod replica_sets;

use anyhow::{Error, ensure};
use e2e::{Case, Control, Effect, judge};
use serde_json::{Value, json};

/// A class of four processors and 4 GiB with these requests and limits.
fn class(requests: &Value, limits: &Value) -> Case {
    Case::create(
        "VirtualMachineClass",
        json!({
            "hardware": { "cpus": 4, "memory": "4Gi" },
            "policies": { "resources": { "requests": requests, "limits": limits } },
        }),
    )
}

fn classes() -> Vec<Case> {
    let kind = "VirtualMachineClass";
    let hardware = |cpus: i64, memory: &str| {
        Case::create(
            kind,
            json!({ "hardware": { "cpus": cpus, "memory": memory } }),
        )
    };
    vec![
        hardware(1, "128Mi"),
        hardware(0, "128Mi").refused("greater than or equal to 1"),
        hardware(513, "128Mi").refused("less than or equal to 512"),
        hardware(1, "100").refused("must be from 32Mi to 16Ti"),
        hardware(1, "1Mi").refused("must be from 32Mi to 16Ti"),
        hardware(1, "100000k").refused("whole number of MiB"),
        class(
            &json!({ "cpu": "500m" }),
            &json!({ "cpu": 4, "memory": "4Gi" }),
        ),
        class(&json!({ "cpu": "0" }), &json!({})).refused("greater than 0"),
        class(&json!({ "cpu": "5" }), &json!({ "cpu": "4" }))
            .refused("requests.cpu must not be above"),
        class(&json!({ "memory": "5Gi" }), &json!({ "memory": "4Gi" }))
            .refused("requests.memory must not be above"),
        class(&json!({}), &json!({ "memory": "4095Mi" }))
            .refused("must hold the guest's hardware.memory"),
        Case::create(
            kind,
            json!({ "hardware": { "cpus": 1, "memory": "1Gi" }, "cpuModel": "<x/>" }),
        )
        .refused("should match"),
        Case::create(
            kind,
            json!({ "hardware": { "cpus": 1, "memory": "1Gi" }, "machineType": "pc-i440fx-7.2" }),
        )
        .refused("should match"),
    ]
}

fn images() -> Vec<Case> {
    let own = "VirtualMachineImage";
    let all = "ClusterVirtualMachineImage";
    let http = |url: &str| json!({ "source": { "http": { "url": url } } });
    let good = "https://images.example/debian.qcow2";
    let digest = |digest: &str| json!({ "source": { "http": { "url": good, "digest": digest } } });
    let claim = json!({ "source": { "pvc": { "name": "disk" } } });
    let one = "set exactly one of http, oci and pvc";
    let oci = |oci: Value| json!({ "source": { "oci": oci } });
    let secured =
        |url: &str| json!({ "source": { "http": { "url": url, "tlsSecret": "images-tls" } } });
    let public = "prePull needs a source that nodes pull without credentials";
    let tagged =
        "update needs source.oci with a tag, without digest and pullSecret, or source.http";
    let listed = "update needs checksumURL with source.http";
    let sums = "https://images.example/SHA256SUMS";
    let of_file = |update: Value| {
        let update = with(json!({ "checksumURL": sums }), update);
        with(http(good), json!({ "update": update }))
    };
    let followed = |update: Value| {
        with(
            oci(json!({ "reference": "a:1" })),
            json!({ "update": update }),
        )
    };
    let mut cases = vec![
        Case::create(own, claim.clone()),
        Case::create(own, with(claim.clone(), json!({ "prePull": {} }))).refused(public),
        Case::create(all, claim).refused("a claim belongs to one namespace"),
        Case::create(own, secured(good)),
        Case::create(own, secured("http://h/a")).refused("needs a URL with the scheme https"),
        Case::create(all, secured(good)).refused("a Secret belongs to one namespace"),
        Case::create(
            own,
            with(secured(good), json!({ "update": { "checksumURL": sums } })),
        ),
        Case::create(
            own,
            with(
                secured(good),
                json!({ "update": { "checksumURL": "http://images.example/SHA256SUMS" } }),
            ),
        )
        .refused("tlsSecret needs a checksumURL with the scheme https"),
    ];
    for kind in [own, all] {
        cases.extend([
            Case::create(kind, http(good)),
            Case::create(kind, http("http://10.0.0.1:8080/x?y=z")),
            Case::create(kind, http("file:///etc/shadow")).refused("must be a URL such as"),
            Case::create(kind, http("https://user:secret@host/x")).refused("must be a URL such as"),
            Case::create(kind, http("https://host/a b")).refused("must be a URL such as"),
            Case::create(kind, digest(&format!("sha256:{}", "0".repeat(64)))),
            Case::create(kind, digest("sha256:0")).refused("should match"),
            Case::create(kind, json!({ "source": {} })).refused(one),
            Case::create(kind, json!({ "source": { "http": { "url": good }, "oci": { "reference": "a" } } })).refused(one),
            Case::create(kind, json!({ "source": { "oci": { "reference": "registry.example:5000/a/b:c@sha256:0" } } })),
            Case::create(kind, json!({ "source": { "oci": { "reference": "-x" } } })).refused("should match"),
            Case::create(kind, with(http(good), json!({ "ipAssurance": "Maybe" }))).refused("Unsupported value"),
            Case::edit(kind, http(good), http("https://images.example/other.qcow2")),
            Case::edit(kind, http(good), json!({ "ipAssurance": "PodIP" })),
            Case::create(kind, with(http(good), json!({ "prePull": {} }))),
            Case::create(kind, with(http(good), json!({ "prePull": { "nodeSelector": { "pool": "db" } } }))),
            Case::create(kind, with(oci(json!({ "reference": "a" })), json!({ "prePull": {} }))),
            Case::create(kind, with(oci(json!({ "reference": "a", "pullSecret": "s" })), json!({ "prePull": {} }))).refused(public),
            Case::edit(kind, with(http(good), json!({ "prePull": {} })), json!({ "prePull": null })),
            Case::create(kind, followed(json!({}))),
            Case::create(kind, followed(json!({ "schedule": "30 2 * * MON-FRI", "retain": 0, "checkRequest": "now" }))),
            Case::create(kind, followed(json!({ "schedule": "@daily", "digest": format!("sha256:{}", "0".repeat(64)) }))),
            Case::create(kind, followed(json!({ "schedule": "30 2 * *" }))).refused("should match"),
            Case::create(kind, followed(json!({ "schedule": "0 30 2 * * *" }))).refused("should match"),
            Case::create(kind, followed(json!({ "schedule": "CRON_TZ=UTC 0 2 * * *" }))).refused("should match"),
            Case::create(kind, followed(json!({ "digest": "stable" }))).refused("should match"),
            Case::create(kind, followed(json!({ "retain": 17 }))).refused("should be less than or equal to 16"),
            Case::create(kind, followed(json!({ "checkRequest": "" }))).refused("should be at least 1 chars long"),
            Case::edit(kind, oci(json!({ "reference": "a" })), json!({ "update": { "schedule": "@daily" } })),
            Case::edit(kind, followed(json!({})), json!({ "update": null })),
            Case::edit(kind, followed(json!({})), oci(json!({ "pullSecret": "s" }))).refused(tagged),
            Case::create(kind, with(http(good), json!({ "update": {} }))).refused(listed),
            Case::create(kind, followed(json!({ "checksumURL": sums }))).refused(listed),
            Case::create(kind, followed(json!({ "digest": format!("sha512:{}", "0".repeat(128)) })))
                .refused("a digest of an image in a registry begins with sha256:"),
            Case::create(kind, of_file(json!({}))),
            Case::create(kind, of_file(json!({ "digest": format!("sha512:{}", "0".repeat(128)) }))),
            Case::create(kind, of_file(json!({ "digest": format!("sha512:{}", "0".repeat(64)) }))).refused("should match"),
            Case::create(kind, of_file(json!({ "checksumURL": "file:///etc/shadow" }))).refused("must be a URL such as"),
            Case::create(kind, of_file(json!({ "checksumURL": "https://user:secret@host/x" }))).refused("must be a URL such as"),
            Case::create(kind, with(digest(&format!("sha256:{}", "0".repeat(64))), json!({ "update": { "checksumURL": sums } }))).refused(tagged),
            Case::edit(kind, http(good), json!({ "update": { "checksumURL": sums } })),
            Case::edit(kind, of_file(json!({})), json!({ "update": { "checksumURL": "https://other.example/SHA512SUMS" } })),
            Case::edit(kind, of_file(json!({})), json!({ "update": null })),
            Case::edit(kind, of_file(json!({})), json!({ "update": { "checksumURL": null } })).refused(listed),
            Case::create(kind, with(oci(json!({ "reference": "a@sha256:0" })), json!({ "update": {} }))).refused(tagged),
            Case::edit(kind, with(http(good), json!({ "prePull": {} })), json!({ "prePull": { "nodeSelector": { "pool": "db" } } })),
            Case::edit(kind, with(oci(json!({ "reference": "a" })), json!({ "prePull": {} })), oci(json!({ "pullSecret": "s" }))).refused(public),
        ]);
    }
    cases
}

fn caches() -> Vec<Case> {
    let kind = "VirtualMachineImageCache";
    let spec = |locations: Value| json!({ "providerID": "a", "providerVersion": "sha256:0", "locations": locations });
    let image =
        |name: &str| json!({ "kind": "ClusterVirtualMachineImage", "name": name, "uid": "u" });
    let with = |image: Value| json!({ "image": image, "providerID": "a", "providerVersion": "" });
    let at =
        |node: &str, format: &str| json!({ "node": node, "store": "default", "format": format });
    vec![
        Case::create(
            kind,
            spec(json!([at("n", "raw"), at("n", "qcow2"), at("m", "raw")])),
        ),
        Case::create(kind, spec(json!([at("n", "raw"), at("n", "raw")])))
            .refused("Duplicate value"),
        Case::create(kind, spec(json!([at("n", "vmdk")]))).refused("Unsupported value"),
        Case::edit(kind, spec(json!([])), json!({ "providerID": "b" }))
            .refused("providerID is immutable"),
        Case::edit(kind, with(image("a")), json!({ "image": { "name": "b" } }))
            .refused("image is immutable"),
        Case::create(
            kind,
            with(json!({ "kind": "Pod", "name": "a", "uid": "u" })),
        )
        .refused("Unsupported value"),
        Case::edit(
            kind,
            spec(json!([])),
            json!({ "providerVersion": "sha256:1" }),
        ),
    ]
}

fn groups() -> Vec<Case> {
    let kind = "VirtualMachineGroup";
    let tier =
        |members: Value| json!({ "bootOrder": [{ "members": members, "powerOnDelay": "30s" }] });
    let sync = |time: &str| json!({ "nextForcePowerStateSyncTime": time });
    let itself = "a group cannot be a member of itself";
    let ready = |tier: Value| json!({ "bootOrder": [{}, tier] });
    let placed = |placement: Value| json!({ "placement": [placement] });
    let mut within = placed(json!({ "topologyKey": "zone", "policy": "Spread" }));
    within["groupName"] = json!("above");
    vec![
        Case::create(
            kind,
            tier(json!([{ "name": "a" }, { "kind": "VirtualMachineGroup", "name": "a" }])),
        ),
        Case::create(kind, tier(json!([{ "name": "a" }, { "name": "a" }])))
            .refused("Duplicate value"),
        Case::create(kind, tier(json!([{ "kind": "Pod", "name": "a" }])))
            .refused("Unsupported value"),
        Case::create(kind, json!({ "bootOrder": [{ "powerOnDelay": "later" }] }))
            .refused("should match"),
        // The first two are named as the case is: by its number in the table.
        Case::create(kind, json!({ "groupName": "case-4" })).refused(itself),
        Case::create(
            kind,
            tier(json!([{ "kind": "VirtualMachineGroup", "name": "case-5" }])),
        )
        .refused(itself),
        Case::create(kind, tier(json!([{ "name": "case-6" }]))),
        Case::edit(
            kind,
            sync("2026-01-01T10:00:00Z"),
            sync("2026-01-01T10:00:01Z"),
        ),
        Case::edit(
            kind,
            sync("2026-01-01T10:00:00Z"),
            sync("2026-01-01T09:00:00Z"),
        )
        .refused("must be later than it was"),
        Case::create(kind, sync("now")).refused("should match"),
        Case::create(kind, json!({ "bootOrder": [{ "powerOffDelay": "169h" }] }))
            .refused("must be at most 168h"),
        Case::create(
            kind,
            ready(json!({ "waitForReady": true, "readyTimeout": "5m" })),
        ),
        Case::create(kind, ready(json!({ "readyTimeout": "5m" })))
            .refused("readyTimeout needs waitForReady"),
        Case::create(
            kind,
            ready(json!({ "waitForReady": true, "powerOnDelay": "1s" })),
        )
        .refused("set powerOnDelay or waitForReady, not both"),
        Case::create(
            kind,
            placed(json!({ "topologyKey": "zone", "policy": "Apart" })),
        ),
        Case::create(
            kind,
            placed(json!({ "topologyKey": "not a key", "policy": "Apart" })),
        )
        .refused("should match"),
        Case::create(kind, within).refused("the placement of the outermost group"),
        Case::edit(
            kind,
            json!({ "powerState": "PoweredOn" }),
            json!({ "powerState": null }),
        ),
    ]
}

fn snapshots_and_tasks() -> Vec<Case> {
    let snapshot = "VirtualMachineSnapshot";
    let task = "VirtualMachineTask";
    let quiesce = |timeout: &str| json!({ "vmName": "a", "quiesce": { "timeout": timeout } });
    let taken = quiesce("1m");
    let work = json!({ "nodeName": "n", "vmName": "a", "vmUID": "u", "kind": "Save" });
    let probe = |port: u16| json!({ "port": port, "periodSeconds": 10, "timeoutSeconds": 1 });
    let mut cases = vec![
        Case::create(snapshot, taken.clone()),
        Case::create(snapshot, json!({})).refused("Required value"),
        Case::create(snapshot, quiesce("10m")),
        Case::create(snapshot, quiesce("10m1s")).refused("must be at most 10m"),
        Case::edit(snapshot, taken.clone(), json!({ "vmName": "b" }))
            .refused("vmName is immutable"),
        Case::edit(snapshot, taken.clone(), json!({ "memory": true }))
            .refused("memory is immutable"),
        Case::edit(snapshot, taken.clone(), json!({ "quiesce": null }))
            .refused("quiesce is immutable"),
        Case::edit(
            snapshot,
            taken,
            json!({ "description": "before the upgrade" }),
        ),
        Case::create(task, work.clone()),
        Case::create(task, with(work.clone(), json!({ "kind": "Format" })))
            .refused("Unsupported value"),
        Case::create(task, with(work.clone(), json!({ "vmUID": "../x" }))).refused("should match"),
        Case::create(task, with(work.clone(), json!({ "sizeBytes": -1 })))
            .refused("greater than or equal to 0"),
        Case::create(task, with(work.clone(), json!({ "kind": "PullImage" }))),
        Case::create(
            task,
            with(
                work.clone(),
                json!({ "kind": "SetProbe", "probe": probe(22) }),
            ),
        ),
        Case::create(task, with(work.clone(), json!({ "probe": probe(0) })))
            .refused("greater than or equal to 1"),
        Case::edit(task, work.clone(), json!({ "cancel": true })),
        Case::edit(
            task,
            with(work.clone(), json!({ "cancel": true })),
            json!({ "cancel": false }),
        )
        .refused("stays cancelled"),
    ];
    for (words, value) in [
        ("nodeName is immutable", json!("m")),
        ("vmName is immutable", json!("b")),
        ("vmNamespace is immutable", json!("n")),
        ("vmUID is immutable", json!("v")),
        ("kind is immutable", json!("Reset")),
        ("image is immutable", json!("x")),
        ("imageURL is immutable", json!("https://images.example/x")),
        ("imageTLSSecret is immutable", json!("certificates")),
        (
            "imageChecksumURL is immutable",
            json!("https://images.example/SHA256SUMS"),
        ),
        ("sizeBytes is immutable", json!(1)),
        ("linked is immutable", json!(true)),
        ("online is immutable", json!(true)),
        ("timeoutSeconds is immutable", json!(1)),
        ("discard is immutable", json!(true)),
        ("instanceUID is immutable", json!("p")),
        ("probe is immutable", probe(22)),
        ("snapshot is immutable", json!({ "uid": "s" })),
    ] {
        let (field, _) = words.split_once(' ').unwrap_or_default();
        let edit = Case::edit(task, work.clone(), json!({ field: value }));
        cases.push(edit.refused(words));
    }
    cases.extend(snapshots_of_tasks(task, &work));
    cases
}

fn snapshots_of_tasks(task: &'static str, work: &Value) -> [Case; 3] {
    let about = |snapshot: Value| {
        let snapshot = json!({ "kind": "Snapshot", "snapshot": snapshot });
        Case::create(task, with(work.clone(), snapshot))
    };
    [
        about(json!({ "uid": "s", "quiesceSeconds": 600 })),
        about(json!({ "uid": "s", "quiesceSeconds": 601 })).refused("less than or equal to 600"),
        about(json!({})).refused("Required value"),
    ]
}

fn settings() -> Vec<Case> {
    let mapping = "ImageMapping";
    let node = "NodeConfig";
    let vmlet = "Vmlet";
    let rule = |rule: Value| Case::create(mapping, json!({ "translations": [rule] }));
    let one = "set exactly one of name and regexp";
    let set = |config: Value| Case::create(node, json!({ "config": config }));
    let by_label = |label: &str| {
        let config = json!({ "accelerator": "tcg" });
        Case::create(
            node,
            json!({ "nodeSelector": { label: "x" }, "config": config }),
        )
    };
    vec![
        rule(json!({ "name": "debian", "url": "https://host/d.qcow2" })),
        rule(
            json!({ "regexp": "^debian/(.*)$", "url": "https://host/$1.qcow2", "transport": "slow" }),
        ),
        rule(json!({ "url": "https://host/d.qcow2" })).refused(one),
        rule(json!({ "name": "a", "regexp": "a", "url": "https://host/d.qcow2" })).refused(one),
        rule(json!({ "name": "a" })).refused("Required value"),
        Case::create(
            mapping,
            json!({ "transports": { "slow": { "timeoutSeconds": 60, "tls": { "insecure": true } } } }),
        ),
        Case::create(
            mapping,
            json!({ "transports": { "slow": { "timeoutSeconds": -1 } } }),
        )
        .refused("greater than or equal to 0"),
        Case::create(
            mapping,
            json!({ "transports": { "slow": { "proxy": "https://user:pw@host" } } }),
        )
        .refused("should match"),
        set(
            json!({ "accelerator": "tcg", "logLevel": "debug", "defaultVcpus": 2, "defaultMemory": "2Gi", "maxDownload": "10Gi" }),
        ),
        set(json!({ "accelerator": "xen" })).refused("Unsupported value"),
        set(json!({ "cpuModel": "Haswell" })).refused("Unsupported value"),
        by_label("node.vmlet.dev/accelerator").refused("which follow it"),
        by_label("cpu-model.node.vmlet.dev/EPYC").refused("which follow it"),
        by_label("node.vmlet.dev/cgroup-version"),
        set(json!({ "defaultVcpus": 0 })).refused("greater than or equal to 1"),
        set(json!({ "maxDownload": "-1" })).refused("greater than 0"),
        set(json!({ "surprise": 1 })).refused("unknown field"),
        Case::create(vmlet, json!({})),
        Case::create(
            vmlet,
            json!({ "strict": true, "components": [{ "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "CDI", "name": "cdi" }] }),
        ),
        Case::create(
            vmlet,
            json!({ "components": [{ "apiVersion": "", "kind": "CDI", "name": "cdi" }] }),
        )
        .refused("at least 1"),
    ]
}

fn with(mut spec: Value, more: Value) -> Value {
    if let Some(spec) = spec.as_object_mut()
        && let Value::Object(more) = more
    {
        spec.extend(more);
    }
    spec
}

/// A case of the test in `rules.rs`.
pub(super) async fn the_source_of_an_image_is_immutable_once_a_disk_was_made_from_it(
    control: &Control,
) -> anyhow::Result<()> {
    let objects = control.objects("default")?;
    let source = |url: &str| json!({ "source": { "http": { "url": url } } });
    let first = "https://h.example/A?b=c";
    let second = "https://h.example/D";
    for kind in ["VirtualMachineImage", "ClusterVirtualMachineImage"] {
        let image = json!({ "metadata": { "name": "used" }, "spec": source(first) });
        objects
            .create(kind, &image, Effect::Real)
            .await?
            .map_err(Error::msg)?;
        let status = json!({ "status": { "nodeCount": 1 } });
        let used = json!({ "status": { "usedSince": "2026-01-01T00:00:00Z" } });
        let edit = json!({ "spec": source(second) });
        let back = json!({ "spec": source(first) });
        for (name, change) in [
            ("used/status", &status),
            ("used", &edit),
            ("used", &back),
            ("used/status", &used),
        ] {
            let done = objects.patch(kind, name, change, Effect::Real).await?;
            done.map_err(Error::msg)?;
        }
        let refused = objects.patch(kind, "used", &edit, Effect::Real).await?;
        let words = "source is immutable since a disk was made from this image";
        ensure!(
            refused.as_ref().is_err_and(|e| e.contains(words)),
            "{kind}: {refused:?}"
        );
        // Nor may who writes the status make it mutable again.
        let since = |time: Value| json!({ "status": { "usedSince": time } });
        for time in [json!(null), json!("2027-01-01T00:00:00Z")] {
            let change = since(time);
            let refused = objects
                .patch(kind, "used/status", &change, Effect::Real)
                .await?;
            let words = "status.usedSince is immutable once it is set";
            ensure!(
                refused.as_ref().is_err_and(|e| e.contains(words)),
                "{kind}: {refused:?}"
            );
        }
        let again = since(json!("2026-01-01T00:00:00Z"));
        let done = objects
            .patch(kind, "used/status", &again, Effect::Real)
            .await?;
        done.map_err(Error::msg)?;
        let other = json!({ "spec": { "ipAssurance": "PodIP" } });
        let done = objects.patch(kind, "used", &other, Effect::Real).await?;
        done.map_err(Error::msg)?;
    }
    Ok(())
}

/// A case of the test in `rules.rs`.
pub(super) async fn every_other_kind_is_judged_by_its_rules(
    control: &Control,
) -> anyhow::Result<()> {
    let objects = control.objects("default")?;
    for cases in [
        classes(),
        images(),
        caches(),
        groups(),
        replica_sets::replica_sets(),
        snapshots_and_tasks(),
        backups::backups(),
        settings(),
    ] {
        judge(&objects, &cases).await?;
    }
    Ok(())
}
