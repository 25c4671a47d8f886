//! What the administrator of a namespace may not have the controller clone or take over.
//!
//! Invariant: the API server evaluates the rights of the user who writes the machine.
//! Failure: the first machine that was allowed, or refused for another reason.

use std::time::Duration;

use anyhow::Error;
use e2e::{Control, Effect, Who, eventually};
use serde_json::{Value, json};

use crate::protected::denied;

const VM: &str = "VirtualMachine";
const CLONE_FROM: &str = crds::names::CLONE_FROM_NAMESPACES;
const ADOPT: &str = crds::names::ADOPT_DATA_VOLUMES;

fn vm(annotations: &Value, template: &Value) -> Value {
    json!({ "metadata": { "name": "m", "annotations": annotations }, "spec": {
        "imageName": "debian", "running": true,
        "dataVolumeTemplates": [{ "name": "d", "spec": template }],
        "volumes": [{ "name": "d", "persistentVolumeClaim": { "claimName": "d" } }],
    } })
}

fn claim_of(namespace: &str) -> Value {
    json!({ "source": { "pvc": { "namespace": namespace, "name": "a" } } })
}

/// Gives a user a right on a resource of CDI in a namespace.
fn allow(
    control: &Control,
    who: &str,
    namespace: &str,
    resource: &str,
    verbs: &[&str],
) -> anyhow::Result<()> {
    let rule = json!({
        "apiGroups": ["cdi.kubevirt.io"], "resources": [resource], "verbs": verbs,
    });
    let name = resource.replace('/', "-");
    allow_rules(control, who, namespace, &name, &json!([rule]))
}

/// Gives a user rights in a namespace.
pub(super) fn allow_rules(
    control: &Control,
    who: &str,
    namespace: &str,
    name: &str,
    rules: &Value,
) -> anyhow::Result<()> {
    let group = "rbac.authorization.k8s.io";
    let version = format!("{group}/v1");
    for (kind, rest) in [
        ("Role", json!({ "rules": rules })),
        (
            "RoleBinding",
            json!({
                "roleRef": { "apiGroup": group, "kind": "Role", "name": name },
                "subjects": [{ "apiGroup": group, "kind": "User", "name": who }],
            }),
        ),
    ] {
        let mut object = json!({
            "apiVersion": version, "kind": kind,
            "metadata": { "name": name, "namespace": namespace },
        });
        if let Some(object) = object.as_object_mut()
            && let Value::Object(rest) = rest
        {
            object.extend(rest);
        }
        control.cluster().apply(&object)?;
    }
    Ok(())
}

pub(super) async fn clones_across_namespaces_need_the_authors_right(
    control: &Control,
) -> anyhow::Result<()> {
    for namespace in ["clones", "golden", "other"] {
        control.namespace(namespace).await?;
    }
    let author = Who::user("author");
    let tenant = Who::user("tenant");
    for who in [&author, &tenant] {
        control.grant(who).await?;
    }
    let author = control.objects_as(&author, "clones")?;
    let tenant = control.objects_as(&tenant, "clones")?;
    let controller = Who::service_account("vmlet-system", "vmlet-controller");
    control.grant(&controller).await?;
    let controller = control.objects_as(&controller, "clones")?;
    let no_record = "in another namespace needs that namespace in the annotation";
    let no_right = "must have the right to create datavolumes/source in all namespaces";

    // Every way to name a source elsewhere; without a right a record does not help.
    for template in [
        claim_of("golden"),
        json!({ "source": { "snapshot": { "namespace": "golden", "name": "a" } } }),
        json!({ "sourceRef": { "kind": "DataSource", "namespace": "golden", "name": "a" } }),
        json!({ "pvc": { "dataSourceRef": { "kind": "x", "namespace": "golden", "name": "a" } } }),
        json!({ "storage": { "dataSourceRef": { "kind": "x", "namespace": "golden", "name": "a" } } }),
    ] {
        let bare = vm(&json!({}), &template);
        denied(tenant.create(VM, &bare, Effect::DryRun).await?, no_record);
        let recorded = vm(&json!({ CLONE_FROM: "golden" }), &template);
        denied(
            tenant.create(VM, &recorded, Effect::DryRun).await?,
            no_right,
        );
        let made = controller.create(VM, &recorded, Effect::DryRun).await?;
        made.map_err(Error::msg)?;
    }
    for odd in [
        json!({ "source": { "pvc": { "namespace": null, "name": "a" } } }),
        json!({ "sourceRef": { "namespace": ["golden"], "name": "a" } }),
    ] {
        let odd = vm(&json!({}), &odd);
        denied(
            tenant.create(VM, &odd, Effect::DryRun).await?,
            "denied request",
        );
    }
    for template in [claim_of("clones"), json!({ "source": { "blank": {} } })] {
        let own = vm(&json!({}), &template);
        let made = tenant.create(VM, &own, Effect::DryRun).await?;
        made.map_err(Error::msg)?;
    }

    // The right is CDI's own, in the source's namespace.
    let recorded = vm(&json!({ CLONE_FROM: "golden" }), &claim_of("golden"));
    allow(
        control,
        "author",
        "golden",
        "datavolumes/source",
        &["create"],
    )?;
    eventually(Duration::from_secs(60), "the right to clone", || async {
        let made = author.create(VM, &recorded, Effect::DryRun).await?;
        made.map(|_| ()).map_err(Error::msg)
    })
    .await?;
    denied(
        tenant.create(VM, &recorded, Effect::DryRun).await?,
        no_right,
    );
    let both = vm(&json!({ CLONE_FROM: "golden,other" }), &claim_of("other"));
    denied(author.create(VM, &both, Effect::DryRun).await?, no_right);
    let many = ["golden"; 9].join(",");
    let many = vm(&json!({ CLONE_FROM: many }), &claim_of("golden"));
    denied(author.create(VM, &many, Effect::DryRun).await?, "at most 8");

    // What one user may clone, another may not replace by a source of his choice.
    let made = author.create(VM, &recorded, Effect::Real).await?;
    made.map_err(Error::msg)?;
    let other = json!({ "spec": { "dataVolumeTemplates": [{ "name": "d", "spec": {
        "source": { "pvc": { "namespace": "golden", "name": "secret" } },
    } }] } });
    denied(
        tenant.patch(VM, "m", &other, Effect::DryRun).await?,
        no_right,
    );
    let widened = json!({ "metadata": { "annotations": { CLONE_FROM: "golden,other" } } });
    denied(
        tenant.patch(VM, "m", &widened, Effect::DryRun).await?,
        no_right,
    );
    for harmless in [
        json!({ "spec": { "running": false } }),
        json!({ "metadata": { "annotations": { "example.com/mine": "x" } } }),
    ] {
        let patched = tenant.patch(VM, "m", &harmless, Effect::DryRun).await?;
        patched.map_err(Error::msg)?;
    }
    Ok(())
}

pub(super) async fn a_data_volume_is_adopted_only_for_those_who_may_delete_it(
    control: &Control,
) -> anyhow::Result<()> {
    let namespace = "adopts";
    control.namespace(namespace).await?;
    let who = Who::user("tenant");
    control.grant(&who).await?;
    let tenant = control.objects_as(&who, namespace)?;
    let recorded = vm(&json!({ ADOPT: "d" }), &json!({}));
    let words = "needs the right to update and delete DataVolumes";
    denied(tenant.create(VM, &recorded, Effect::DryRun).await?, words);
    allow(control, "tenant", namespace, "datavolumes", &["update"])?;
    denied(tenant.create(VM, &recorded, Effect::DryRun).await?, words);
    allow(
        control,
        "tenant",
        namespace,
        "datavolumes",
        &["update", "delete"],
    )?;
    eventually(Duration::from_secs(60), "the right to adopt", || async {
        let made = tenant.create(VM, &recorded, Effect::DryRun).await?;
        made.map(|_| ()).map_err(Error::msg)
    })
    .await
}

/// The right to create machines is no right to read the disks of all others.
pub(super) async fn a_clone_needs_the_authors_right_to_its_source(
    control: &Control,
) -> anyhow::Result<()> {
    let namespace = "cloners";
    control.namespace(namespace).await?;
    let who = Who::user("cloner");
    let cloner = control.objects_as(&who, namespace)?;
    let rule = |resources: Value, verbs: Value, names: Value| {
        json!({
            "apiGroups": ["vmlet.dev"], "resources": resources, "verbs": verbs,
            "resourceNames": names,
        })
    };
    let machines = rule(
        json!(["virtualmachines"]),
        json!(["create", "get", "patch"]),
        json!([]),
    );
    let of = |source: Value| json!({ "metadata": { "name": "m" }, "spec": { "running": true, "source": source } });
    let of_snapshot = |name: &str| of(json!({ "snapshot": { "name": name } }));
    let of_machine = |name: &str| of(json!({ "virtualMachine": { "name": name } }));
    let words =
        "needs the right to create virtualmachinesnapshots/source or virtualmachines/source";
    allow_rules(control, "cloner", namespace, "cloner", &json!([machines]))?;
    let plain = json!({ "metadata": { "name": "m" }, "spec": {
        "running": true, "imageName": "debian",
    } });
    eventually(Duration::from_secs(60), "the right to create", || async {
        let made = cloner.create(VM, &plain, Effect::DryRun).await?;
        made.map(|_| ()).map_err(Error::msg)
    })
    .await?;
    for source in [of_snapshot("a"), of_machine("a")] {
        denied(cloner.create(VM, &source, Effect::DryRun).await?, words);
    }

    // The right to one source is none to another.
    let snapshot = rule(
        json!(["virtualmachinesnapshots/source"]),
        json!(["create"]),
        json!(["a"]),
    );
    let rules = json!([machines, snapshot]);
    allow_rules(control, "cloner", namespace, "cloner", &rules)?;
    eventually(Duration::from_secs(60), "the right to clone", || async {
        let made = cloner.create(VM, &of_snapshot("a"), Effect::DryRun).await?;
        made.map(|_| ()).map_err(Error::msg)
    })
    .await?;
    for source in [of_snapshot("b"), of_machine("a")] {
        denied(cloner.create(VM, &source, Effect::DryRun).await?, words);
    }
    let machine = rule(
        json!(["virtualmachines/source"]),
        json!(["create"]),
        json!([]),
    );
    let rules = json!([machines, snapshot, machine]);
    allow_rules(control, "cloner", namespace, "cloner", &rules)?;
    eventually(Duration::from_secs(60), "the right to clone", || async {
        let made = cloner
            .create(VM, &of_machine("any"), Effect::DryRun)
            .await?;
        made.map(|_| ()).map_err(Error::msg)
    })
    .await?;
    let of_backup = of(json!({ "backup": { "name": "b" } }));
    denied(
        cloner.create(VM, &of_backup, Effect::DryRun).await?,
        "needs the right to create virtualmachinebackups/source",
    );
    let backup = rule(
        json!(["virtualmachinebackups/source"]),
        json!(["create"]),
        json!(["b"]),
    );
    let rules = json!([machines, snapshot, machine, backup]);
    allow_rules(control, "cloner", namespace, "cloner", &rules)?;
    eventually(Duration::from_secs(60), "the right to restore", || async {
        let made = cloner.create(VM, &of_backup, Effect::DryRun).await?;
        made.map(|_| ()).map_err(Error::msg)
    })
    .await?;
    // A machine does not become a clone, nor one of another source.
    let made = cloner.create(VM, &of_snapshot("a"), Effect::Real).await?;
    made.map_err(Error::msg)?;
    let other = json!({ "spec": { "source": { "snapshot": { "name": "b" } } } });
    let patched = cloner.patch(VM, "m", &other, Effect::DryRun).await?;
    let refused = patched.err().unwrap_or_default();
    anyhow::ensure!(refused.contains("source is immutable"), "{refused}");
    let on = json!({ "spec": { "running": false } });
    let patched = cloner.patch(VM, "m", &on, Effect::DryRun).await?;
    patched.map_err(Error::msg)?;
    Ok(())
}

/// With the rights of `deploy/controller`, as a started controller has them.
pub(super) async fn the_controller_reads_a_secret_by_name_and_lists_none(
    control: &Control,
) -> anyhow::Result<()> {
    control.install_rights()?;
    let can = |verb: &str| {
        let account = "--as=system:serviceaccount:vmlet-system:vmlet-controller";
        let arguments = [
            "auth",
            "can-i",
            verb,
            "secrets",
            "--all-namespaces",
            account,
        ];
        control.cluster().kubectl(&arguments)
    };
    eventually(Duration::from_secs(60), "the right to read", || async {
        can("get")
    })
    .await?;
    for verb in ["list", "watch", "create", "update", "patch", "delete"] {
        assert!(can(verb).is_err(), "{verb}");
    }
    Ok(())
}
