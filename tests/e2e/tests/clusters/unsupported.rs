//! What a pod requests and its guest does not get: refused by kubelet's event, or an event of the
//! agent.
//!
//! Invariant: an ordinary VM pod has no such event.
//! Failure: the events that there are.

use anyhow::{Context, Result, ensure};
use e2e::{Cluster, eventually, vm_pod};
use serde_json::{Value, json};

use super::resources::{GONE, READY};

/// Notes of the events of a pod that have this reason.
pub(super) fn notes(cluster: &Cluster, pod: &str, reason: &str) -> Result<Vec<String>> {
    let selector = format!("involvedObject.name={pod},reason={reason}");
    let events = cluster.get_json(&["events", "--field-selector", &selector])?;
    let items = events["items"].as_array().context("items")?;
    let notes = items.iter().filter_map(|event| event["message"].as_str());
    Ok(notes.map(ToOwned::to_owned).collect())
}

pub(super) async fn what_a_guest_does_not_get_is_refused_or_an_event(
    cluster: &Cluster,
) -> Result<()> {
    a_pod_of_the_class_is_one_container(cluster)?;
    let mut lost = vm_pod("lost");
    lost["metadata"]["annotations"] = json!({ "vmlet.dev/shares": "off" });
    lost["spec"]["volumes"] = json!([{ "name": "data", "emptyDir": {} }]);
    lost["spec"]["containers"][0]["volumeMounts"] =
        json!([{ "name": "data", "mountPath": "/data" }]);
    cluster.apply(&lost)?;
    eventually(READY, "the writable mount is refused", || async {
        let reported = notes(cluster, "lost", "Failed")?;
        let words = "the mount /data (volume data, emptyDir) does not reach the guest";
        ensure!(
            reported.iter().any(|note| note.contains(words)),
            "{reported:?}"
        );
        Ok(())
    })
    .await?;
    // kubelet writes the status after the event.
    eventually(READY, "the reason in the status", || async {
        let pod = cluster.get_json(&["pod", "lost"])?;
        let state = &pod["status"]["containerStatuses"][0]["state"];
        let reason = &state["waiting"]["reason"];
        ensure!(reason == "CreateContainerError", "{state}");
        Ok(())
    })
    .await?;

    cluster.kubectl(&["create", "configmap", "conf", "--from-literal=a=b"])?;
    let mut warned = vm_pod("warned");
    warned["metadata"]["annotations"] = json!({
        "vmlet.dev/vcpus-count": "1",
        "vmlet.dev/cloud-init": "off",
        "vmlet.dev/shares": "off",
    });
    warned["spec"]["volumes"] = json!([{ "name": "conf", "configMap": { "name": "conf" } }]);
    let container: &mut Value = &mut warned["spec"]["containers"][0];
    container["volumeMounts"] = json!([{ "name": "conf", "mountPath": "/conf" }]);
    container["env"] = json!([{ "name": "COLOUR", "value": "red" }]);
    container["args"] = json!(["--serve"]);
    cluster.apply(&warned)?;
    cluster.await_ready("pod/warned", READY)?;
    let words = [
        "the mount /conf (volume conf, configMap) does not reach the guest",
        "environment variables do not reach the guest: COLOUR;",
        "command, arguments and working directory are not used",
        "annotation vmlet.dev/vcpus-count is not known; is vmlet.dev/vcpu-count meant?",
    ];
    eventually(READY, "events of what the guest does not get", || async {
        let reported = notes(cluster, "warned", "Unsupported")?;
        ensure!(reported.len() == words.len(), "{reported:?}");
        for words in words {
            ensure!(
                reported.iter().any(|note| note.contains(words)),
                "{words}: {reported:?}"
            );
        }
        Ok(())
    })
    .await?;
    for pod in ["lost", "warned"] {
        cluster.delete(&format!("pod/{pod}"), GONE)?;
    }
    let all = cluster.get_json(&["events", "--field-selector", "reason=Unsupported"])?;
    let others = all["items"].as_array().context("items")?.iter();
    let others: Vec<_> = others
        .filter(|event| event["involvedObject"]["name"] != "warned")
        .collect();
    ensure!(others.is_empty(), "{others:?}");
    Ok(())
}

/// The API server refuses what the runtime cannot distinguish from a machine.
fn a_pod_of_the_class_is_one_container(cluster: &Cluster) -> Result<()> {
    let container = json!({ "name": "other", "image": "vmlet.dev/hello" });
    let mut with_init = vm_pod("with-init");
    with_init["spec"]["initContainers"] = json!([container]);
    let mut with_sidecar = vm_pod("with-sidecar");
    let containers = with_sidecar["spec"]["containers"].as_array_mut();
    containers.context("containers")?.push(container);
    let mut routed = with_init.clone();
    let spec = routed["spec"].as_object_mut().context("spec")?;
    spec.remove("runtimeClassName");
    routed["metadata"]["annotations"] = json!({ "kubernetes.io/target-runtime": "virtlet.cloud" });
    for (pod, words) in [
        (
            &routed,
            "or with kubernetes.io/target-runtime, is one machine",
        ),
        (
            &with_init,
            "has no init containers: prepare the guest by cloud-init",
        ),
        (
            &with_sidecar,
            "has one container: use a pod for each machine",
        ),
    ] {
        let answer = cluster.apply(pod).err().context("the pod is accepted")?;
        ensure!(format!("{answer:#}").contains(words), "{answer:#}");
    }
    let mut processes = with_init;
    processes["spec"]["runtimeClassName"] = json!("vmlet-process");
    let file = cluster.stack().dir().join("processes.json");
    std::fs::write(&file, processes.to_string())?;
    let file = file.to_str().context("a path in UTF-8")?;
    let arguments = ["create", "--dry-run=server", "-f", file];
    cluster.kubectl(&arguments).map(drop)
}
