//! Volumes of `examples/volumes.yaml`, as kubelet prepares and updates them.
//!
//! Invariant: the pod is the example, unchanged.
//! Failure: the file that differs; pods, events and logs follow.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Cluster, eventually};

const READY: Duration = Duration::from_secs(300);
/// kubelet looks at ConfigMaps about once a minute.
const UPDATED: Duration = Duration::from_secs(240);
const GONE: Duration = Duration::from_secs(180);
const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

pub(super) async fn a_guest_has_the_volumes_of_its_pod_and_sees_their_updates(
    cluster: &Cluster,
) -> Result<()> {
    cluster.apply(&e2e::example("volumes.yaml")?)?;
    cluster.await_ready("pod/volumes", READY)?;
    let run = |line: &str| cluster.kubectl(&["exec", "volumes", "--", "sh", "-c", line]);

    let mounts = run("awk '$3 == \"virtiofs\" {print $2}' /proc/mounts")?;
    let mut mounts: Vec<_> = mounts.lines().map(str::trim).collect();
    mounts.sort_unstable();
    // /var/run is a link in this guest.
    let token = TOKEN.trim_start_matches("/var");
    let expected = ["/etc/demo", "/etc/demo-secret", token, "/var/lib/demo"];
    ensure!(mounts == expected, "{mounts:?}");
    ensure!(run("cat /etc/demo/greeting")?.trim() == "hello");
    ensure!(run("cat /etc/demo-secret/password")?.trim() == "change-me");
    let token = run(&format!("cat {TOKEN}/token"))?;
    ensure!(token.split('.').count() == 3, "no token");
    ensure!(run(&format!("cat {TOKEN}/namespace"))?.trim() == "default");
    run("echo kept >/var/lib/demo/file")?;
    ensure!(run("cat /var/lib/demo/file")?.trim() == "kept");
    ensure!(run("cat /sys/block/vdb/size")?.trim() == "32768");
    let refused = run("touch /etc/demo/x 2>&1 || true")?;
    ensure!(refused.contains("Read-only"), "{refused}");

    let patch = r#"{"data": {"greeting": "changed"}}"#;
    cluster.kubectl(&["patch", "configmap", "volumes", "-p", patch])?;
    eventually(UPDATED, "the update of the ConfigMap", || async {
        let found = run("cat /etc/demo/greeting")?;
        ensure!(found.trim() == "changed", "{found}");
        Ok(())
    })
    .await?;
    let pod = cluster.get_json(&["pod", "volumes"])?;
    let uid = pod["metadata"]["uid"].as_str().context("no UID")?;
    let volume = format!("host/kubelet/pods/{uid}/volumes/kubernetes.io~empty-dir/data");
    let file = cluster.stack().dir().join(volume).join("file");
    let kept = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    ensure!(kept == "kept\n", "{kept}");
    ensure!(fs::metadata(&file)?.uid() == 2000, "another owner");
    cluster.delete("pod/volumes", GONE)?;
    cluster.delete("configmap/volumes", GONE)?;
    cluster.delete("secret/volumes", GONE)
}
