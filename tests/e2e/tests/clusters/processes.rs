//! A pod of several processes in one machine, on a real kubelet.
//!
//! Invariant: plain kubectl sees containers: logs, exec, attach, exit codes, restarts.
//! Failure: the step is named; pods, events and the ends of logs follow.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::{Cluster, eventually};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const READY: Duration = Duration::from_secs(200);
const GONE: Duration = Duration::from_secs(180);
const SOON: Duration = Duration::from_secs(60);

#[tokio::test]
#[ignore = "needs root"]
async fn kubectl_sees_the_containers_of_one_machine() -> Result<()> {
    let cluster = Cluster::up()?;
    cluster.apply(&pod())?;
    cluster.await_ready("pod/parts", READY)?;
    let logs = cluster.kubectl(&["logs", "parts", "-c", "web"])?;
    ensure!(logs == "web of parts", "{logs:?}");
    let exec = [
        "exec",
        "parts",
        "-c",
        "web",
        "--",
        "sh",
        "-c",
        "id -u; echo $PART; exit 0",
    ];
    let seen = cluster.kubectl(&exec)?;
    ensure!(seen == "1000\nweb", "{seen:?}");

    // One container fails and is restarted; the other one goes on in the same machine.
    let restarts = "jsonpath={.status.containerStatuses[?(@.name==\"worker\")].restartCount}";
    cluster.await_condition("pod/parts", &format!("{restarts}=1"), READY)?;
    let terminated = cluster.kubectl(&[
        "get",
        "pod",
        "parts",
        "-o",
        "jsonpath={.status.containerStatuses[?(@.name==\"worker\")].lastState.terminated.exitCode}",
    ])?;
    ensure!(terminated == "5", "{terminated}");
    let previous = cluster.kubectl(&["logs", "parts", "-c", "worker", "--previous"])?;
    ensure!(previous.contains("failed"), "{previous:?}");

    // A restart of the node's programs ends nothing.
    let before = container_ids(&cluster)?;
    let stack = cluster.stack();
    for program in ["vmlet", "vmlet-criproxy"] {
        stack.kill(program, Signal::SIGKILL).await?;
        stack.restart(program)?;
    }
    eventually(SOON, "kubectl exec after the restarts", || async {
        let seen = cluster.kubectl(&exec)?;
        ensure!(seen == "1000\nweb", "{seen:?}");
        Ok(())
    })
    .await?;
    let after = container_ids(&cluster)?;
    ensure!(before[0] == after[0], "{before:?} became {after:?}");
    cluster.delete("pod/parts", GONE)?;
    cluster.await_clean().await?;
    cluster.down()
}

/// The ids of the containers `web` and `worker`.
fn container_ids(cluster: &Cluster) -> Result<Vec<String>> {
    let path = "jsonpath={.status.containerStatuses[*].containerID}";
    let ids = cluster.kubectl(&["get", "pod", "parts", "-o", path])?;
    Ok(ids.split_whitespace().map(str::to_owned).collect())
}

fn pod() -> Value {
    let container = |name: &str, user: u32, script: &str| {
        json!({
            "name": name,
            "image": "vmlet.dev/hello",
            "imagePullPolicy": "IfNotPresent",
            "command": ["sh", "-c", script],
            "env": [{ "name": "PART", "value": name }],
            "securityContext": { "runAsUser": user },
            "resources": { "limits": { "memory": "96Mi" } },
        })
    };
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": "parts" },
        "spec": {
            "runtimeClassName": "vmlet-process",
            "terminationGracePeriodSeconds": 5,
            "containers": [
                container("web", 1000, "echo web of $(hostname); exec sleep 100000"),
                container("worker", 0, "[ -e /tmp/second ] && exec sleep 100000; touch /tmp/second; \
                                     echo failed; exit 5"),
            ],
        },
    })
}
