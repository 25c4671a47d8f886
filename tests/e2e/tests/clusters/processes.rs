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

pub(super) async fn kubectl_sees_the_containers_of_one_machine(cluster: &Cluster) -> Result<()> {
    cluster.apply(&e2e::example("processes.yaml")?)?;
    cluster.await_ready("pod/processes", READY)?;
    let logs = cluster.kubectl(&["logs", "processes", "-c", "web"])?;
    ensure!(logs == "web of processes", "{logs:?}");
    let exec = [
        "exec",
        "processes",
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
    cluster.await_condition("pod/processes", &format!("{restarts}=1"), READY)?;
    let terminated = cluster.kubectl(&[
        "get",
        "pod",
        "processes",
        "-o",
        "jsonpath={.status.containerStatuses[?(@.name==\"worker\")].lastState.terminated.exitCode}",
    ])?;
    ensure!(terminated == "5", "{terminated}");
    let previous = cluster.kubectl(&["logs", "processes", "-c", "worker", "--previous"])?;
    ensure!(previous.contains("failed"), "{previous:?}");

    let message = "jsonpath={.status.containerStatuses[?(@.name==\"worker\")]\
                   .lastState.terminated.message}";
    let message = cluster.kubectl(&["get", "pod", "processes", "-o", message])?;
    ensure!(message == "no work", "{message:?}");
    volumes_are_those_of_kubelet(cluster).await?;

    // A restart of the node's programs ends nothing.
    let before = container_ids(cluster)?;
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
    let after = container_ids(cluster)?;
    ensure!(before[0] == after[0], "{before:?} became {after:?}");
    cluster.delete("pod/processes", GONE)
}

/// The token, the names of the node, a volume of both containers, a ConfigMap with its update.
async fn volumes_are_those_of_kubelet(cluster: &Cluster) -> Result<()> {
    let shell = |container: &str, script: &str| {
        cluster.kubectl(&[
            "exec",
            "processes",
            "-c",
            container,
            "--",
            "sh",
            "-c",
            script,
        ])
    };
    let token = "cut -c1-2 /var/run/secrets/kubernetes.io/serviceaccount/token";
    ensure!(shell("web", token)? == "ey", "the token");
    ensure!(
        shell("web", "grep -c processes /etc/hosts")? == "1",
        "names of the node"
    );
    let prepared = shell("web", "cat /work/prepared")?;
    ensure!(prepared == "ready", "of the init container: {prepared:?}");
    shell("web", "echo of web >/work/shared")?;
    let seen = shell("worker", "cat /work/shared; stat -c %u /work/shared")?;
    ensure!(seen == "of web\n1000", "{seen}");
    ensure!(shell("web", "cat /conf/greeting")? == "first");
    ensure!(shell("web", "echo x >/conf/new || echo refused")? == "refused");
    cluster.apply(&config_map("second"))?;
    eventually(READY, "the update of the ConfigMap", || async {
        let seen = shell("web", "cat /conf/greeting")?;
        ensure!(seen == "second", "{seen}");
        Ok(())
    })
    .await
}

fn config_map(greeting: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "processes" },
        "data": { "greeting": greeting },
    })
}

/// The ids of the containers `web` and `worker`.
fn container_ids(cluster: &Cluster) -> Result<Vec<String>> {
    let path = "jsonpath={.status.containerStatuses[*].containerID}";
    let ids = cluster.kubectl(&["get", "pod", "processes", "-o", path])?;
    Ok(ids.split_whitespace().map(str::to_owned).collect())
}
