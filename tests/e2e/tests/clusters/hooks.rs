//! postStart and preStop hooks of VM pods, as kubelet runs them. Part of the test of
//! [`probes`](super::probes).
//!
//! Invariant: what a hook did is read from the guest's disk: lines in the order in which they were
//! written there.
//! Failure: the step is named, with what kubectl describes; pods, events and logs follow.

use std::fs::File;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Cluster, Guest, eventually, program, vm_pod};
use serde_json::{Value, json};

use super::probes::{fall_sick, restarts, startup_probe};

const READY: Duration = Duration::from_secs(300);
const GONE: Duration = Duration::from_secs(180);
/// Longer than hook and guest need on the slowest machine.
const GRACE: u64 = 120;

/// Prints that it runs, prepares a page that records when it is fetched, and makes both requests to
/// the guest to power off leave a record.
const AFTER_START: &str = r#"
echo started >>/boot/order
mkdir /run/www/cgi-bin
cat >/run/www/cgi-bin/bye <<END
#!/bin/sh
echo called >>/boot/order
printf 'Content-Type: text/plain\r\n\r\nbye'
END
chmod +x /run/www/cgi-bin/bye
for f in /sbin/shutdown /etc/acpi/PWRF/00000080; do
    mv $f $f.kept
    printf '#!/bin/sh\necho asked >>/boot/order\nexec %s "$@"\n' $f.kept >$f
    chmod +x $f
done
"#;

/// Takes long enough that a caller that does not wait for it is detected.
const BEFORE_STOP: &str =
    "echo begin >>/boot/order; echo VMLET-PRESTOP >/dev/console; sleep 5; echo end >>/boot/order";

pub(crate) async fn hooks_run_in_the_guest(cluster: &Cluster) -> Result<()> {
    // The guests boot side by side.
    let by_command = json!({ "exec": { "command": ["sh", "-c", BEFORE_STOP] } });
    let by_request = json!({ "httpGet": { "path": "/cgi-bin/bye", "port": 80 } });
    start(cluster, "hooked", &by_command)?;
    start(cluster, "called", &by_request)?;
    // The number of restarts before: a hook that a slow guest did not take in time is one.
    let of_hooked = sicken(cluster, "hooked").await.context("hooked")?;
    let of_called = sicken(cluster, "called").await.context("called")?;
    restarted(cluster, "hooked", of_hooked, &["begin", "end"])
        .await
        .context("hooked")?;
    restarted(cluster, "called", of_called, &["called"])
        .await
        .context("called")?;
    delete(cluster).await.context("deletion")?;
    cluster.delete("pod/called", GONE)?;
    failing(cluster).await.context("a hook that fails")
}

/// A machine that ends when its liveness probe sees a file in the guest.
fn start(cluster: &Cluster, name: &str, before_stop: &Value) -> Result<()> {
    let mut pod = vm_pod(name);
    pod["spec"]["terminationGracePeriodSeconds"] = json!(GRACE);
    let container = &mut pod["spec"]["containers"][0];
    container["lifecycle"] = json!({
        "postStart": { "exec": { "command": ["sh", "-ec", AFTER_START] } },
        "preStop": before_stop,
    });
    container["livenessProbe"] = json!({
        "exec": { "command": ["test", "!", "-e", "/tmp/sick"] },
        "periodSeconds": 2, "timeoutSeconds": 60, "failureThreshold": 2,
    });
    cluster.apply(&pod)
}

/// Returns how often the machine was restarted before.
async fn sicken(cluster: &Cluster, name: &str) -> Result<u64> {
    cluster.await_ready(&format!("pod/{name}"), READY)?;
    let order = order(cluster, name)?;
    ensure!(order == ["started"], "after the start: {order:?}");
    let before = restarts(cluster, name)?;
    fall_sick(cluster, name).await?;
    Ok(before)
}

/// Each start has its hook after it, each stop before the guest is requested to power off.
async fn restarted(cluster: &Cluster, name: &str, before: u64, hook: &[&str]) -> Result<()> {
    await_restart(cluster, name, before).await?;
    cluster.await_ready(&format!("pod/{name}"), READY)?;
    let order = order(cluster, name)?;
    let expected = [&["started"], hook, &["asked", "started"]].concat();
    ensure!(order == expected, "after the restart: {order:?}");
    Ok(())
}

/// A pod that is deleted has its hook, too; its disk is removed with it, its log is read as it
/// grows.
async fn delete(cluster: &Cluster) -> Result<()> {
    let log = cluster.stack().dir().join("hooked.log");
    let mut follow = cluster.kubectl_command(&["logs", "--follow", "hooked"])?;
    let follow = follow
        .stdout(File::create(&log)?)
        .stderr(Stdio::null())
        .spawn()?;
    eventually(READY, "a line of the log that is followed", || async {
        ensure!(log.metadata()?.len() > 0, "it is empty");
        Ok(())
    })
    .await?;
    cluster.delete("pod/hooked", GONE)?;
    program::ended("kubectl logs --follow", follow)?;
    let log = std::fs::read(&log)?;
    let log = String::from_utf8_lossy(&log);
    ensure!(log.contains("VMLET-PRESTOP"), "its log:\n{log}");
    Ok(())
}

/// The first start fails by its hook, the second one succeeds.
async fn failing(cluster: &Cluster) -> Result<()> {
    let mut pod = vm_pod("failing-hook");
    pod["spec"]["containers"][0]["startupProbe"] = startup_probe();
    pod["spec"]["terminationGracePeriodSeconds"] = json!(GRACE);
    let hook = "[ -e /boot/order ] || { echo failed >/boot/order; exit 1; }";
    pod["spec"]["containers"][0]["lifecycle"] = json!({
        "postStart": { "exec": { "command": ["sh", "-c", hook] } },
    });
    cluster.apply(&pod)?;
    let words = "PostStartHook failed";
    cluster
        .await_event("failing-hook", "FailedPostStartHook", words, READY)
        .await?;
    await_restart(cluster, "failing-hook", 0).await?;
    cluster.await_ready("pod/failing-hook", READY)?;
    let status = cluster.get_json(&["pod", "failing-hook"])?["status"].take();
    let restarts = &status["containerStatuses"][0]["restartCount"];
    ensure!(*restarts == 1, "{restarts} restarts");
    cluster.await_boots("failing-hook", &[2], READY).await?;
    cluster.delete("pod/failing-hook", GONE)
}

async fn await_restart(cluster: &Cluster, pod: &str, before: u64) -> Result<()> {
    eventually(READY, &format!("the restart of {pod}"), || async {
        let restarts = restarts(cluster, pod)?;
        ensure!(restarts > before, "{restarts} restarts");
        Ok(())
    })
    .await
}

/// What hooks and orders have written. A guest may be requested to power off more than once.
fn order(cluster: &Cluster, pod: &str) -> Result<Vec<String>> {
    let text = Guest::in_pod(cluster.stack(), pod)?.run(&["cat", "/boot/order"])?;
    let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
    lines.dedup_by(|next, line| next == line && line == "asked");
    Ok(lines)
}
