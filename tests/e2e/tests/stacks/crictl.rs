//! The life cycle of a VM pod through the real crictl.
//!
//! Invariant: every step is the command that an operator types.
//! Failure: the test shows both streams of the command that failed.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Stack, cases, eventually, scaled};
use serde_json::{Value, json};

const BOOT: Duration = Duration::from_secs(180);

#[tokio::test]
#[ignore = "needs root"]
async fn crictl_drives_pods_by_names_and_ids() -> Result<()> {
    let stack = Stack::up()?;
    cases!(
        &stack,
        [
            crictl_runs_a_pod_from_creation_to_removal,
            full_ids_work_everywhere_and_a_restart_boots_the_same_disk
        ]
    );
    stack.down()
}

async fn crictl_runs_a_pod_from_creation_to_removal(stack: &Stack) -> Result<()> {
    stack.cri().await?.await_ready().await?;
    ensure!(stack.crictl(&["version"])?.contains("RuntimeName:  vmlet"));
    let info: Value = serde_json::from_str(&stack.crictl(&["info"])?)?;
    ensure!(
        info["status"]["conditions"]
            .as_array()
            .context("conditions")?
            .len()
            >= 2
    );

    let image = stack.image()?.to_owned();
    ensure!(stack.crictl(&["pull", &image])?.contains("sha256:"));
    let images = stack.crictl(&["images"])?;
    ensure!(images.contains("vmlet.dev/hello"), "{images}");

    let (pod_file, container_file) = manifests(stack, &image, pod())?;
    let pod = stack.crictl(&["runp", &pod_file])?;
    let container = stack.crictl(&["create", &pod, &container_file, &pod_file])?;
    // From here on by what crictl prints in its tables.
    let pod13 = &pod[..13];
    let container13 = &container[..13];
    stack.crictl(&["start", container13])?;
    let listed = stack.crictl(&["ps"])?;
    ensure!(
        listed.contains(container13) && listed.contains("Running"),
        "{listed}"
    );
    let info = stack.crictl(&["info"])?;
    ensure!(info.contains("tcg"), "the probe chose: {info}");

    let status: Value = serde_json::from_str(&stack.crictl(&["inspect", container13])?)?;
    ensure!(status["status"]["state"] == "CONTAINER_RUNNING", "{status}");
    ensure!(status["info"]["vm"]["memoryMiB"] == 128, "{status}");
    let sandbox: Value = serde_json::from_str(&stack.crictl(&["inspectp", pod13])?)?;
    let ip = sandbox["status"]["network"]["ip"]
        .as_str()
        .context("pod ip")?
        .to_owned();

    follow_until(stack, container13, "VMLET-GUEST-READY")?;
    ensure!(
        stack
            .fetch(&format!("http://{ip}/"), BOOT)
            .await?
            .contains("crictl-pod")
    );
    ensure!(
        stack
            .fetch("http://127.0.0.1:18080/", BOOT)
            .await?
            .contains("crictl-pod")
    );

    stack.crictl(&["stop", "-t", "90", container13])?;
    let status: Value = serde_json::from_str(&stack.crictl(&["inspect", &container])?)?;
    ensure!(status["status"]["exitCode"] == 0, "{status}");
    ensure!(status["status"]["reason"] == "Completed", "{status}");
    stack.crictl(&["rm", container13])?;
    stack.crictl(&["stopp", pod13])?;
    stack.crictl(&["rmp", pod13])?;
    stack.crictl(&["rmi", &image])?;
    ensure!(!stack.crictl(&["images"])?.contains("vmlet.dev/hello"));
    ensure!(stack.crictl(&["ps", "-a", "-q"])?.is_empty());
    ensure!(stack.crictl(&["pods", "-q"])?.is_empty());
    stack.await_clean().await
}

async fn full_ids_work_everywhere_and_a_restart_boots_the_same_disk(stack: &Stack) -> Result<()> {
    stack.cri().await?.await_ready().await?;
    let image = stack.image()?.to_owned();
    stack.crictl(&["pull", &image])?;
    let (pod_file, container_file) = manifests(stack, &image, pod())?;
    let pod = stack.crictl(&["runp", &pod_file])?;
    let first = stack.crictl(&["create", &pod, &container_file, &pod_file])?;
    let second = stack.crictl(&["create", &pod, &container_file, &pod_file]);
    ensure!(
        second.is_err_and(|e| e.to_string().contains("already")),
        "a second live container"
    );
    stack.crictl(&["start", &first])?;
    follow_until(stack, &first, "VMLET-BOOTS 1")?;
    follow_until(stack, &first, "VMLET-GUEST-READY")?;
    stack.crictl(&["stop", "-t", "90", &first])?;

    let again = stack.crictl(&["create", &pod, &container_file, &pod_file])?;
    ensure!(again != first);
    stack.crictl(&["start", &again])?;
    eventually(BOOT, "the second boot of the same disk", || async {
        let log = stack.crictl(&["logs", &again])?;
        ensure!(log.contains("VMLET-BOOTS 2"), "{log}");
        Ok(())
    })
    .await?;
    stack.crictl(&["rmp", "-f", &pod])?;
    stack.crictl(&["rmi", &image])?;
    stack.await_clean().await
}

/// Runs `crictl logs -f` until a line has `text`.
fn follow_until(stack: &Stack, container: &str, text: &str) -> Result<()> {
    let mut child = stack
        .command("timeout")
        .args([
            &scaled(BOOT)?.as_secs().to_string(),
            "crictl",
            "logs",
            "-f",
            container,
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let output = child.stdout.take().context("stdout")?;
    let mut seen = Vec::new();
    let mut found = false;
    for line in BufReader::new(output).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        found = line.contains(text);
        seen.push(line);
        if found {
            break;
        }
    }
    child.kill()?;
    child.wait()?;
    ensure!(
        found,
        "{text:?} is not among {} lines: {seen:?}",
        seen.len()
    );
    Ok(())
}

/// Files for crictl: a pod, and a container of it with the guest.
pub(super) fn manifests(stack: &Stack, image: &str, mut pod: Value) -> Result<(String, String)> {
    let name = pod["metadata"]["name"]
        .as_str()
        .context("no name")?
        .to_owned();
    let logs = stack.dir().join("logs").join(&name);
    std::fs::create_dir_all(&logs)?;
    pod["log_directory"] = json!(logs);
    let container = json!({
        "metadata": {"name": "vm", "attempt": 0},
        "image": {"image": image},
        "log_path": "vm.log",
        "linux": {"resources": {"memory_limit_in_bytes": 128 << 20}},
    });
    let write = |kind: &str, value: &Value| -> Result<String> {
        let file = stack.dir().join(format!("{name}-{kind}.json"));
        std::fs::write(&file, value.to_string())?;
        Ok(file.display().to_string())
    };
    Ok((write("pod", &pod)?, write("container", &container)?))
}

fn pod() -> Value {
    json!({
        "metadata": {"name": "crictl-pod", "namespace": "default", "uid": "u1", "attempt": 0},
        "hostname": "crictl-pod",
        "port_mappings": [{"protocol": 0, "container_port": 80, "host_port": 18080}],
        "linux": {},
    })
}
