//! Kinds that the API server keeps and no controller acts on.
//!
//! Invariant: a warning is all that happens: the object is created.
//! Failure: what kubectl printed.

use anyhow::{Context, Result, ensure};
use e2e::{Control, program};
use serde_json::{Value, json};

/// A case of `protected.rs`.
pub(super) async fn a_kind_without_a_controller_warns_at_creation(control: &Control) -> Result<()> {
    let nodes = json!({ "nodeSelector": {}, "priority": 1 });
    let snapshot = json!({ "vmName": "web" });
    let image = json!({ "source": { "oci": { "reference": "example.com/a:1" } } });
    for (kind, spec, plural) in [
        ("NodeConfig", nodes, Some("nodeconfigs")),
        (
            "VirtualMachineSnapshot",
            snapshot,
            Some("virtualmachinesnapshots"),
        ),
        ("VirtualMachineGroup", json!({}), None),
        ("VirtualMachineImage", image, None),
    ] {
        let printed = created(control, kind, &spec)?;
        let warning = format!("objects of {} have no effect", plural.unwrap_or_default());
        ensure!(
            printed.contains("Warning:") == plural.is_some()
                && (plural.is_none() || printed.contains(&warning)),
            "{kind}: {printed}"
        );
    }
    Ok(())
}

/// What kubectl prints on standard error when the object is created.
fn created(control: &Control, kind: &str, spec: &Value) -> Result<String> {
    let file = control.stack().dir().join(format!("{kind}.json"));
    let object = json!({
        "apiVersion": format!("{}/{}", crds::GROUP, crds::VERSION),
        "kind": kind,
        "metadata": { "name": "not-served" },
        "spec": spec,
    });
    std::fs::write(&file, object.to_string())?;
    let file = file.to_str().context("a path in UTF-8")?;
    let mut create = control.cluster().kubectl_command(&["create", "-f", file])?;
    let output = program::output(&mut create)?;
    ensure!(output.status.success(), "{kind}: {output:?}");
    Ok(String::from_utf8(output.stderr)?)
}
