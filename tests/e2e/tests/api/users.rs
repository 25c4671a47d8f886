//! Users who have the roles of Kubernetes in a namespace, and what these let them do with machines.
//!
//! Invariant: the roles are those of `deploy/users.yaml`; Kubernetes itself adds them to its own.
//! Failure: the command's own output.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::{Control, Effect, eventually, program};
use serde_json::json;

use crate::vmletctl::Ctl;

/// Until the controller-manager has added the rules.
const AGGREGATED: Duration = Duration::from_secs(180);
const NAMESPACE: &str = "team";

/// Whether a user may do that in the namespace, by the API server.
fn may(control: &Control, user: &str, words: &[&str]) -> Result<bool> {
    let as_user = format!("--as={user}");
    let who = ["auth", "can-i", "--namespace", NAMESPACE, &as_user];
    let words = [&who[..], words].concat();
    let output = program::output(&mut control.cluster().kubectl_command(&words)?)?;
    Ok(output.status.success())
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_user_with_edit_works_with_machines_and_one_with_view_reads_them() -> Result<()> {
    let control = Control::up().await?;
    control.start_controller_manager()?;
    let roles = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/users.yaml");
    let admin = |words: &[&str]| control.cluster().kubectl(words);
    admin(&["apply", "-f", &roles.to_string_lossy()])?;
    control.namespace(NAMESPACE).await?;
    for role in ["view", "edit", "admin"] {
        let user = format!("--user={role}er");
        let role_flag = format!("--clusterrole={role}");
        let binding = ["create", "rolebinding", role, &role_flag, &user, "-n"];
        admin(&[&binding[..], &[NAMESPACE]].concat())?;
    }
    eventually(AGGREGATED, "the roles of Kubernetes", || async {
        let all = ["deletecollection", "virtualmachines.vmlet.dev"];
        ensure!(may(&control, "adminer", &all)?, "no rights yet");
        ensure!(
            may(&control, "viewer", &["list", "virtualmachines.vmlet.dev"])?,
            "no rights yet"
        );
        Ok(())
    })
    .await?;
    let status = "--subresource=status";
    let source = "--subresource=source";
    for (user, is_allowed, words) in [
        (
            "viewer",
            false,
            &["create", "virtualmachines.vmlet.dev"][..],
        ),
        (
            "viewer",
            false,
            &["patch", "virtualmachines.vmlet.dev", status],
        ),
        ("viewer", true, &["watch", "virtualmachinetasks.vmlet.dev"]),
        (
            "editer",
            true,
            &["patch", "virtualmachines.vmlet.dev", status],
        ),
        (
            "editer",
            true,
            &["create", "virtualmachineclasses.vmlet.dev"],
        ),
        (
            "editer",
            true,
            &["create", "virtualmachineimages.vmlet.dev"],
        ),
        (
            "editer",
            true,
            &[
                "patch",
                "virtualmachinereplicasets.vmlet.dev",
                "--subresource=scale",
            ],
        ),
        (
            "viewer",
            false,
            &[
                "patch",
                "virtualmachinereplicasets.vmlet.dev",
                "--subresource=scale",
            ],
        ),
        (
            "editer",
            false,
            &["patch", "virtualmachineimages.vmlet.dev", status],
        ),
        (
            "editer",
            true,
            &["create", "virtualmachines.vmlet.dev", source],
        ),
        (
            "viewer",
            false,
            &["create", "virtualmachinesnapshots.vmlet.dev", source],
        ),
        (
            "editer",
            true,
            &["create", "virtualmachinebackups.vmlet.dev", source],
        ),
        (
            "editer",
            true,
            &["delete", "virtualmachinebackupschedules.vmlet.dev"],
        ),
        ("viewer", true, &["list", "virtualmachinebackups.vmlet.dev"]),
        (
            "editer",
            false,
            &["patch", "virtualmachinebackups.vmlet.dev", status],
        ),
        (
            "editer",
            false,
            &["create", "virtualmachinetasks.vmlet.dev"],
        ),
        (
            "editer",
            false,
            &["patch", "virtualmachinetasks.vmlet.dev", status],
        ),
        (
            "editer",
            true,
            &["list", "clustervirtualmachineimages.vmlet.dev"],
        ),
        (
            "adminer",
            false,
            &["create", "clustervirtualmachineimages.vmlet.dev"],
        ),
        (
            "adminer",
            false,
            &["create", "virtualmachinetasks.vmlet.dev"],
        ),
        (
            "stranger",
            true,
            &["list", "clustervirtualmachineimages.vmlet.dev"],
        ),
        ("stranger", false, &["list", "virtualmachines.vmlet.dev"]),
    ] {
        let found = may(&control, user, words)?;
        ensure!(found == is_allowed, "{user} {words:?}: {found}");
    }

    let ctl = Ctl::new(&control)?;
    let editor = |line: &str| ctl.ok(&format!("--as editer -n {NAMESPACE} {line}"));
    editor("create vm web --image debian --memory 64Mi --run-strategy Manual --apply")?;
    // A request in the status.
    editor("start web")?;
    let source = json!({ "source": { "http": { "url": "https://h.example/debian.qcow2" } } });
    let image = json!({ "metadata": { "name": "shared" }, "spec": source });
    let made = control.objects("default")?;
    let made = made.create("ClusterVirtualMachineImage", &image, Effect::Real);
    made.await?.map_err(anyhow::Error::msg)?;
    let images = editor("image list")?;
    ensure!(images.contains("shared"), "{images}");

    let viewer = |line: &str| format!("--as viewer -n {NAMESPACE} {line}");
    let list = ctl.ok(&viewer("list"))?;
    ensure!(list.contains("web"), "{list}");
    let status = ctl.ok(&viewer("status web"))?;
    ensure!(status.contains("Requests:   Start"), "{status}");
    for line in ["stop web", "delete web"] {
        let refused = ctl.refused(&viewer(line))?;
        ensure!(refused.contains("not allowed"), "{line}: {refused}");
    }

    // What admission protects stays protected.
    let node = json!({ "status": { "nodeName": "n1" } }).to_string();
    let arguments = ["patch", "vm", "web", "--subresource=status", "--type=merge"];
    let who = ["--as=editer", "-n", NAMESPACE, "-p", &node];
    let refused = admin(&[&arguments[..], &who].concat());
    let words = format!("{refused:?}");
    ensure!(words.contains("only stateChangeRequests"), "{words}");

    // It withdraws the start that waits.
    editor("stop web")?;
    editor("delete web")?;
    control.down()
}
