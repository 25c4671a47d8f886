//! `ImageMapping` objects: the agent brings them to the daemon, and their status says whether it
//! uses them.
//!
//! Invariant: a pod always pulls its image, so that each pull sees the mappings of its time.
//! Failure: the step is named; pods, events and logs follow.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::machines::condition;
use e2e::{Cluster, eventually, vm_pod};
use serde_json::{Value, json};

const READY: Duration = Duration::from_secs(300);
const GONE: Duration = Duration::from_secs(180);

pub(super) async fn a_mapping_gives_names_a_meaning_until_it_is_deleted(
    cluster: &Cluster,
) -> Result<()> {
    let served = cluster.stack().var("VMLET_TEST_IMAGE_URL")?;
    let host = served.split('/').nth(2).context("no host in the URL")?;
    let url = format!("http://{host}/$1.qcow2");
    let rule = |regexp: &str| json!([{ "regexp": regexp, "url": url }]);

    cluster.apply(&mapping(&rule("^(hello)$"), &json!({})))?;
    await_ready(cluster, "True", "").await?;
    run(cluster, "first").await.context("accepted")?;

    // What a node cannot use leaves the previous rules in force.
    cluster.apply(&mapping(&rule("^(hello$"), &json!({})))?;
    await_ready(cluster, "False", "node node1: ").await?;
    run(cluster, "second").await.context("refused")?;
    let secret = json!({ "namespace": "default", "name": "none" });
    let transports = json!({ "default": { "tls": { "secret": secret } } });
    cluster.apply(&mapping(&rule("^(hello)$"), &transports))?;
    await_ready(cluster, "False", "Secret default/none").await?;

    cluster.delete("imagemapping/corp", GONE)?;
    let words = "no translation rule matches it";
    cluster.apply(&pod("third"))?;
    cluster.await_event("third", "Failed", words, READY).await?;
    cluster.delete("pod/third", GONE)
}

/// Runs a pod to its boot, and deletes it.
async fn run(cluster: &Cluster, name: &str) -> Result<()> {
    cluster.apply(&pod(name))?;
    cluster.await_ready(&format!("pod/{name}"), READY)?;
    cluster.delete(&format!("pod/{name}"), GONE)
}

fn pod(name: &str) -> Value {
    let mut pod = vm_pod(name);
    let machine = &mut pod["spec"]["containers"][0];
    machine["image"] = json!("vmlet.dev/corp/hello");
    machine["imagePullPolicy"] = json!("Always");
    pod
}

fn mapping(translations: &Value, transports: &Value) -> Value {
    json!({
        "apiVersion": "vmlet.dev/v1alpha1", "kind": "ImageMapping", "metadata": { "name": "corp" },
        "spec": { "prefix": "corp", "translations": translations, "transports": transports },
    })
}

async fn await_ready(cluster: &Cluster, status: &str, words: &str) -> Result<()> {
    eventually(READY, "the status of the mapping", || async {
        let mapping = cluster.get_json(&["imagemapping", "corp"])?;
        let ready = condition(&mapping, "Ready");
        let message = ready["message"].as_str().unwrap_or_default();
        let is_seen = mapping["status"]["observedGeneration"] == mapping["metadata"]["generation"];
        ensure!(
            is_seen && ready["status"] == status && message.contains(words),
            "{mapping}"
        );
        Ok(())
    })
    .await
}
