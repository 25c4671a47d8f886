//! What the administrator of a namespace may not do with our objects, although he may write all of
//! them.
//!
//! Invariant: the policies of `deploy/admission` are in force, also while an object is being
//! deleted.
//! Failure: the first thing that was allowed, or refused for another reason.

use std::time::Duration;

use anyhow::{Error, ensure};
use e2e::{Answer, Control, Effect, Objects, Who, cases, eventually};
use serde_json::{Value, json};

use crate::{backups, clones, hostile, manifests};

const VM: &str = "VirtualMachine";
const PRIORITY: &str = "vmlet.dev.protected/reconcile-priority";
const FOREVER: &str = "example.com/forever";

/// The administrator of a namespace, and the controller.
struct Parties {
    tenant: Objects,
    controller: Objects,
}

impl Parties {
    /// In a new namespace.
    async fn in_namespace(control: &Control, namespace: &str) -> anyhow::Result<Self> {
        control.namespace(namespace).await?;
        let tenant = Who::user("tenant");
        let controller = Who::service_account("vmlet-system", "vmlet-controller");
        for who in [&tenant, &controller] {
            control.grant(who).await?;
        }
        Ok(Self {
            tenant: control.objects_as(&tenant, namespace)?,
            controller: control.objects_as(&controller, namespace)?,
        })
    }

    /// A machine of the tenant's, with metadata that the controller gave it.
    async fn machine(&self, name: &str, metadata: Value) -> anyhow::Result<()> {
        let made = self.tenant.create(VM, &vm(name), Effect::Real).await?;
        made.map_err(Error::msg)?;
        let patch = json!({ "metadata": metadata });
        let patched = self
            .controller
            .patch(VM, name, &patch, Effect::Real)
            .await?;
        patched.map_err(Error::msg)?;
        Ok(())
    }
}

fn vm(name: &str) -> Value {
    json!({ "metadata": { "name": name }, "spec": { "imageName": "debian", "running": true } })
}

fn annotation(key: &str, value: impl Into<Value>) -> Value {
    json!({ "metadata": { "annotations": { key: value.into() } } })
}

fn label(key: &str, value: impl Into<Value>) -> Value {
    json!({ "metadata": { "labels": { key: value.into() } } })
}

#[track_caller]
pub(super) fn denied(answer: Answer, words: &str) {
    let reported = answer.map_or_else(|reported| reported, |object| format!("allowed: {object}"));
    assert!(reported.contains("ValidatingAdmissionPolicy"), "{reported}");
    assert!(reported.contains(words), "{reported}");
}

#[tokio::test]
#[ignore = "needs root"]
async fn users_cannot_change_protected_fields_and_objects() -> anyhow::Result<()> {
    let control = Control::up().await?;
    cases!(
        &control,
        [
            protected_annotations_are_for_privileged_users,
            a_role_of_a_namespace_reaches_nothing_beyond_it,
            everybody_else_who_is_privileged_is,
            checks_pauses_priorities_and_finalizers_are_guarded,
            only_the_controller_speaks_for_the_controller,
            clones::clones_across_namespaces_need_the_authors_right,
            clones::a_data_volume_is_adopted_only_for_those_who_may_delete_it,
            clones::a_clone_needs_the_authors_right_to_its_source,
            backups::a_backup_in_a_claim_needs_the_right_to_read_the_disk,
            hostile::whatever_is_taken_can_be_read_and_no_rule_gives_up,
            hostile::the_largest_machine_is_within_the_budget_of_the_rules,
            hostile::metadata_that_cannot_be_read_is_refused,
            manifests::records_are_written_by_the_controller_and_deleted_by_anyone,
            // Last: it starts the controller-manager.
            the_policies_are_well_typed,
        ]
    );
    control.down()
}

/// Vectors A1 a to e of protected annotations.
async fn protected_annotations_are_for_privileged_users(control: &Control) -> anyhow::Result<()> {
    let parties = Parties::in_namespace(control, "annotations").await?;
    let Parties { tenant, controller } = &parties;
    let words = "a domain that ends in .protected";
    let try_ = |name: &'static str, patch: Value| async move {
        tenant.patch(VM, name, &patch, Effect::DryRun).await
    };

    // a: a user sets, at creation and later.
    let mut born = vm("born");
    born["metadata"]["annotations"] = json!({ PRIORITY: "100" });
    denied(tenant.create(VM, &born, Effect::DryRun).await?, words);
    parties.machine("a", json!({})).await?;
    denied(try_("a", annotation(PRIORITY, "100")).await?, words);

    // c: a service account of ours sets.
    let set = annotation(PRIORITY, "100");
    controller
        .patch(VM, "a", &set, Effect::Real)
        .await?
        .map_err(Error::msg)?;

    // b: a user removes, or changes.
    denied(try_("a", annotation(PRIORITY, Value::Null)).await?, words);
    denied(try_("a", annotation(PRIORITY, "101")).await?, words);
    denied(
        try_("a", json!({ "metadata": { "annotations": null } })).await?,
        words,
    );
    // What is there does not keep him from anything else.
    try_("a", annotation("example.com/mine", "x"))
        .await?
        .map_err(Error::msg)?;
    try_("a", json!({ "spec": { "running": false } }))
        .await?
        .map_err(Error::msg)?;

    // e: presence counts, an empty value too.
    let skip = "vmlet.dev.protected/skip-delete-platform-resource";
    denied(try_("a", annotation(skip, "")).await?, words);
    controller
        .patch(VM, "a", &annotation(skip, ""), Effect::Real)
        .await?
        .map_err(Error::msg)?;
    denied(try_("a", annotation(skip, Value::Null)).await?, words);

    // d: while it is being deleted.
    let metadata = json!({ "finalizers": [FOREVER], "annotations": { PRIORITY: "1" } });
    parties.machine("d", metadata).await?;
    tenant.delete(VM, "d").await?.map_err(Error::msg)?;
    let gone = tenant.get(VM, "d").await?.map_err(Error::msg)?;
    assert!(gone["metadata"]["deletionTimestamp"].is_string(), "{gone}");
    denied(try_("d", annotation(PRIORITY, "2")).await?, words);
    denied(try_("d", annotation(PRIORITY, Value::Null)).await?, words);
    denied(try_("d", annotation(skip, "")).await?, words);
    let set = annotation(PRIORITY, "2");
    controller
        .patch(VM, "d", &set, Effect::DryRun)
        .await?
        .map_err(Error::msg)?;

    // The domain's form.
    for (key, protected) in [
        ("vmlet.dev.protected/anything", true),
        ("example.com.protected/x", true),
        ("a.protected", true),
        ("protected.example.com/x", false),
        ("x.protected.against/y", false),
        ("example.com/protected", false),
        ("example.comprotected/x", false),
    ] {
        let answer = try_("a", annotation(key, "x")).await?;
        assert_eq!(answer.is_err(), protected, "{key}: {answer:?}");
        let answer = try_("a", label(key, "x")).await?;
        assert_eq!(answer.is_err(), protected, "label {key}: {answer:?}");
    }
    Ok(())
}

async fn the_policies_are_well_typed(control: &Control) -> anyhow::Result<()> {
    // It is the one who checks types.
    control.start_controller_manager()?;
    let list = eventually(Duration::from_secs(180), "type checks", || async {
        let list = control
            .cluster()
            .get_json(&["validatingadmissionpolicies"])?;
        let items = list["items"].as_array().cloned().unwrap_or_default();
        let seen = |policy: &Value| {
            policy["status"]["observedGeneration"] == policy["metadata"]["generation"]
        };
        ensure!(items.len() == 8 && items.iter().all(seen), "{list}");
        Ok(items)
    })
    .await?;
    for policy in list {
        let warnings = &policy["status"]["typeChecking"]["expressionWarnings"];
        assert!(warnings.is_null(), "{policy}");
    }
    Ok(())
}

async fn a_role_of_a_namespace_reaches_nothing_beyond_it(control: &Control) -> anyhow::Result<()> {
    control.namespace("own").await?;
    let tenant = Who::user("tenant-of-one");
    control.grant_in(&tenant, "own").await?;
    let own = control.objects_as(&tenant, "own")?;
    own.create(VM, &vm("m"), Effect::DryRun)
        .await?
        .map_err(Error::msg)?;
    let elsewhere = control.objects_as(&tenant, "default")?;
    let answer = elsewhere.create(VM, &vm("m"), Effect::DryRun).await?;
    assert!(answer.is_err_and(|reported| reported.contains("is forbidden")));
    let image = json!({ "source": { "oci": { "reference": "a" } } });
    for (kind, spec) in [
        ("ClusterVirtualMachineImage", image),
        ("ImageMapping", json!({})),
        ("NodeConfig", json!({})),
        ("Vmlet", json!({})),
    ] {
        let object = json!({ "metadata": { "name": "a" }, "spec": spec });
        let answer = own.create(kind, &object, Effect::DryRun).await?;
        assert!(
            answer.is_err_and(|reported| reported.contains("cannot create resource")),
            "{kind}"
        );
        let objects = control.objects("own")?;
        objects
            .create(kind, &object, Effect::DryRun)
            .await?
            .map_err(Error::msg)?;
    }
    Ok(())
}

async fn everybody_else_who_is_privileged_is(control: &Control) -> anyhow::Result<()> {
    let masters = Who::user("anybody").in_group("system:masters");
    for (who, privileged) in [
        (
            Who::service_account("vmlet-system", "vmlet-controller"),
            true,
        ),
        (Who::service_account("vmlet-system", "vmlet-agent"), true),
        (Who::service_account("vmlet-system", "default"), false),
        (Who::service_account("default", "vmlet-controller"), false),
        (Who::user("kubernetes-admin"), true),
        (Who::user("kubernetes-admin2"), false),
        (masters, true),
        (Who::user("anybody").in_group("system:masters2"), false),
    ] {
        control.grant(&who).await?;
        let mut machine = vm("a");
        machine["metadata"]["annotations"] = json!({ PRIORITY: "-1000" });
        let objects = control.objects_as(&who, "default")?;
        let answer = objects.create(VM, &machine, Effect::DryRun).await?;
        assert_eq!(answer.is_ok(), privileged, "{who:?}: {answer:?}");
    }
    // By a right, whatever its name and namespace.
    for who in [
        Who::user("operator"),
        Who::service_account("vms", "vmlet-controller"),
    ] {
        control.grant(&who).await?;
        control.privilege(&who).await?;
        let mut machine = vm("a");
        machine["metadata"]["annotations"] = json!({ PRIORITY: "-1000" });
        let objects = control.objects_as(&who, "default")?;
        eventually(Duration::from_secs(30), "the right", || async {
            let answer = objects.create(VM, &machine, Effect::DryRun).await?;
            answer.map(|_| ()).map_err(Error::msg)
        })
        .await?;
    }
    Ok(())
}

async fn checks_pauses_priorities_and_finalizers_are_guarded(
    control: &Control,
) -> anyhow::Result<()> {
    let parties = Parties::in_namespace(control, "checks").await?;
    let Parties { tenant, controller } = &parties;
    let on_check = "poweron.check.vmlet.dev/backup";
    let off_check = "delete.check.vmlet.dev/backup";
    let ours = "vmlet.dev/virtualmachine";
    let metadata = json!({
        "annotations": { off_check: "" }, "labels": { "vmlet.dev/paused": "admin" },
        "finalizers": [ours, FOREVER],
    });
    parties.machine("m", metadata).await?;
    let try_ = |patch: Value| async move { tenant.patch(VM, "m", &patch, Effect::DryRun).await };

    let number = "a number from -1000 to 1000";
    for (value, taken) in [
        ("1000", true),
        ("-1000", true),
        ("+42", true),
        ("007", true),
        ("0001000", true),
        ("abc", true),
        ("", true),
        ("1001", false),
        ("-1001", false),
        ("9999999999999999999999", false),
        ("2147483648", false),
    ] {
        let patch = annotation(PRIORITY, value);
        let answer = controller.patch(VM, "m", &patch, Effect::DryRun).await?;
        assert_eq!(answer.is_ok(), taken, "{value}: {answer:?}");
        if !taken {
            denied(answer, number);
        }
    }

    let mut born = vm("born");
    born["metadata"]["annotations"] = json!({ on_check: "" });
    tenant
        .create(VM, &born, Effect::Real)
        .await?
        .map_err(Error::msg)?;
    let without = annotation(on_check, Value::Null);
    denied(
        tenant.patch(VM, "born", &without, Effect::DryRun).await?,
        "checks of power-on",
    );
    controller
        .patch(VM, "born", &without, Effect::DryRun)
        .await?
        .map_err(Error::msg)?;
    denied(try_(annotation(on_check, "")).await?, "checks of power-on");

    denied(
        try_(annotation(off_check, Value::Null)).await?,
        "checks of deletion",
    );
    born["metadata"] = json!({ "name": "born2", "annotations": { off_check: "" } });
    denied(
        tenant.create(VM, &born, Effect::DryRun).await?,
        "checks of deletion",
    );

    denied(
        try_(label("vmicache.vmlet.dev/name", "c")).await?,
        "the label vmicache.vmlet.dev/name",
    );
    denied(
        try_(label("vmlet.dev/paused", "devops")).await?,
        "the label vmlet.dev/paused",
    );
    denied(
        try_(label("vmlet.dev/paused", Value::Null)).await?,
        "the label vmlet.dev/paused",
    );
    try_(annotation("vmlet.dev/paused", ""))
        .await?
        .map_err(Error::msg)?;

    let only = |finalizers: &[&str]| json!({ "metadata": { "finalizers": finalizers } });
    denied(try_(only(&[FOREVER])).await?, "finalizers of vmlet.dev");
    try_(only(&[ours])).await?.map_err(Error::msg)?;
    controller
        .patch(VM, "m", &only(&[]), Effect::DryRun)
        .await?
        .map_err(Error::msg)?;
    tenant.delete(VM, "m").await?.map_err(Error::msg)?;
    denied(try_(only(&[])).await?, "finalizers of vmlet.dev");

    // The end of a machine's pod waits for the record of its state.
    let pod = json!({ "metadata": { "name": "held", "finalizers": [ours, FOREVER] }, "spec": {
        "containers": [{ "name": "vm", "image": "vmlet.dev/debian" }],
    } });
    let created = controller.create("Pod", &pod, Effect::Real);
    created.await?.map_err(Error::msg)?;
    let rest = only(&[FOREVER]);
    let removed = tenant.patch("Pod", "held", &rest, Effect::DryRun);
    denied(removed.await?, "finalizers of vmlet.dev");
    let removed = controller.patch("Pod", "held", &rest, Effect::DryRun);
    removed.await?.map_err(Error::msg)?;
    Ok(())
}

/// Sets, changes and removes both UUIDs of a machine of which nothing is made yet.
async fn identities_are_edited_by_privileged_users_only(
    parties: &Parties,
    uuid: &str,
) -> anyhow::Result<()> {
    let Parties { tenant, controller } = parties;
    for field in ["instanceUUID", "biosUUID"] {
        for value in [json!(uuid), json!(uuid.replace('3', "4")), Value::Null] {
            let patch = json!({ "spec": { field: value } });
            denied(
                tenant.patch(VM, "m", &patch, Effect::DryRun).await?,
                "for privileged users",
            );
            controller
                .patch(VM, "m", &patch, Effect::Real)
                .await?
                .map_err(Error::msg)?;
            // What has a UUID can be edited otherwise.
            let patch = json!({ "spec": { "powerOffTimeout": "1m" } });
            tenant
                .patch(VM, "m", &patch, Effect::DryRun)
                .await?
                .map_err(Error::msg)?;
        }
    }
    Ok(())
}

async fn only_the_controller_speaks_for_the_controller(control: &Control) -> anyhow::Result<()> {
    let parties = Parties::in_namespace(control, "identities").await?;
    let Parties { tenant, controller } = &parties;
    let uuid = "3f2504e0-4f89-41d3-9a0c-0305e82c3301";

    // Identities that another machine may have.
    for field in ["instanceUUID", "biosUUID"] {
        let mut machine = vm("twin");
        machine["spec"][field] = json!(uuid);
        denied(
            tenant.create(VM, &machine, Effect::DryRun).await?,
            "for privileged users",
        );
        controller
            .create(VM, &machine, Effect::DryRun)
            .await?
            .map_err(Error::msg)?;
    }

    parties.machine("m", json!({})).await?;
    identities_are_edited_by_privileged_users_only(&parties, uuid).await?;

    // A status that sends the controller to another node's or machine's disk.
    for lie in [
        json!({ "nodeName": "node2" }),
        json!({ "instanceUUID": uuid }),
        json!({ "powerState": "PoweredOff" }),
        json!({ "conditions": [{ "type": "VirtualMachineCreated", "status": "True", "reason": "True", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z" }] }),
    ] {
        let patch = json!({ "status": lie });
        let answer = tenant.patch(VM, "m/status", &patch, Effect::DryRun).await?;
        denied(answer, "only stateChangeRequests");
        controller
            .patch(VM, "m/status", &patch, Effect::Real)
            .await?
            .map_err(Error::msg)?;
    }
    let wipe = json!({ "status": null });
    denied(
        tenant.patch(VM, "m/status", &wipe, Effect::DryRun).await?,
        "only stateChangeRequests",
    );
    let spec = json!({ "status": { "stateChangeRequests": [{ "action": "Start" }], "startFailure": null } });
    tenant
        .patch(VM, "m/status", &spec, Effect::DryRun)
        .await?
        .map_err(Error::msg)?;

    // Tasks command nodes: this one would remove a disk by its UID, whosever it is.
    let task = json!({ "metadata": { "name": "t" }, "spec": {
        "nodeName": "node1", "vmName": "m", "vmUID": uuid, "kind": "DeleteDisk",
    } });
    let kind = "VirtualMachineTask";
    denied(
        tenant.create(kind, &task, Effect::DryRun).await?,
        "written by the controller",
    );
    controller
        .create(kind, &task, Effect::Real)
        .await?
        .map_err(Error::msg)?;
    let done = json!({ "status": { "state": "Success" } });
    denied(
        tenant
            .patch(kind, "t/status", &done, Effect::DryRun)
            .await?,
        "written by the controller",
    );
    let cancel = json!({ "spec": { "cancel": true } });
    denied(
        tenant.patch(kind, "t", &cancel, Effect::DryRun).await?,
        "written by the controller",
    );
    the_garbage_collector_writes_owners_of_a_task_only(control, kind).await?;

    // Pods that would boot from the disk of another user's machine, or take its identity.
    let pod = |part: &str, key: &str, value: &str| {
        json!({ "metadata": { "name": "p", part: { key: value } }, "spec": {
            "containers": [{ "name": "vm", "image": "vmlet.dev/debian" }],
        } })
    };
    for (part, key) in [
        ("annotations", "vmlet.dev/vm-disk"),
        ("annotations", "vmlet.dev/restore"),
        ("annotations", "vmlet.dev/instance-uuid"),
        ("annotations", "vmlet.dev/bios-uuid"),
        ("annotations", "vmlet.dev/system-uuid"),
        ("annotations", "VirtletSystemUUID"),
        ("annotations", "vmlet.dev/guest-facts"),
        ("annotations", "vmlet.dev/vm-revision"),
        ("annotations", "vmlet.dev/devices"),
        ("labels", "vmlet.dev/vm-uid"),
        ("labels", "vmlet.dev/role"),
    ] {
        let pod = pod(part, key, uuid);
        denied(
            tenant.create("Pod", &pod, Effect::DryRun).await?,
            "are for the controller",
        );
        controller
            .create("Pod", &pod, Effect::DryRun)
            .await?
            .map_err(Error::msg)?;
    }
    let spoof = pod("annotations", "vmlet.dev.protected/allow-spoofing", "true");
    denied(
        tenant.create("Pod", &spoof, Effect::DryRun).await?,
        "a domain that ends in .protected",
    );
    let plain = pod("annotations", "vmlet.dev/vcpus", "2");
    tenant
        .create("Pod", &plain, Effect::Real)
        .await?
        .map_err(Error::msg)?;

    // The same by the ways around: a pod's status and its binding carry metadata into the pod.
    let disk = annotation("vmlet.dev/vm-disk", uuid);
    let spoof = annotation("vmlet.dev.protected/allow-spoofing", "true");
    let binding = |metadata: &Value| {
        let mut binding = json!({ "target": { "kind": "Node", "name": "node1" } });
        binding["metadata"] = metadata["metadata"].clone();
        binding["metadata"]["name"] = json!("p");
        binding
    };
    for (metadata, words) in [
        (&disk, "are for the controller"),
        (&spoof, "a domain that ends in .protected"),
    ] {
        let status = tenant.patch("Pod", "p/status", metadata, Effect::DryRun);
        denied(status.await?, words);
        let bound = binding(metadata);
        denied(
            tenant.create("Binding", &bound, Effect::DryRun).await?,
            words,
        );
        denied(tenant.bind("p", &bound, Effect::DryRun).await?, words);
    }
    let harmless = annotation("example.com/mine", "x");
    tenant
        .patch("Pod", "p/status", &harmless, Effect::DryRun)
        .await?
        .map_err(Error::msg)?;
    let bound = binding(&harmless);
    tenant
        .bind("p", &bound, Effect::DryRun)
        .await?
        .map_err(Error::msg)?;
    Ok(())
}

/// Else `kubectl delete --cascade=orphan` of a machine with tasks never ends.
async fn the_garbage_collector_writes_owners_of_a_task_only(
    control: &Control,
    kind: &str,
) -> anyhow::Result<()> {
    for who in [
        Who::service_account("kube-system", "generic-garbage-collector"),
        Who::user("system:kube-controller-manager"),
    ] {
        control.grant(&who).await?;
        let collector = control.objects_as(&who, "identities")?;
        let try_ = |patch: Value| {
            let collector = collector.clone();
            async move { collector.patch(kind, "t", &patch, Effect::DryRun).await }
        };
        let owner = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "name": "a",
            "uid": "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1a",
        });
        for allowed in [
            json!({ "metadata": { "ownerReferences": [owner] } }),
            json!({ "metadata": { "ownerReferences": null } }),
        ] {
            try_(allowed).await?.map_err(Error::msg)?;
        }
        for refused in [
            json!({ "spec": { "cancel": true } }),
            label("example.com/mine", "x"),
            annotation("example.com/mine", "x"),
            json!({ "metadata": { "finalizers": [FOREVER] } }),
        ] {
            denied(try_(refused).await?, "written by the controller");
        }
        let done = json!({ "status": { "state": "Success" } });
        let status = collector.patch(kind, "t/status", &done, Effect::DryRun);
        denied(status.await?, "written by the controller");
    }
    Ok(())
}
