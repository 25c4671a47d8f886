//! Images of VM pods as kubelet pulls them through the proxy: every policy, every way to fail; and
//! those of machines, which nodes read before, and pull before where that is requested.
//!
//! Invariant: a failure is an event or a status that states what is wrong.
//! Failure: the step is named, with what kubectl describes; pods, events and logs follow.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::machines::{class, condition, machine};
use e2e::{
    Authority, Cluster, Endpoint, Guest, HeldServer, Options, SecureServer, cases, container_pod,
    eventually, program, vm_pod,
};
use serde_json::{Value, json};

use super::{image_caches, mappings, node_configs, registries};

const READY: Duration = Duration::from_secs(300);
const GONE: Duration = Duration::from_secs(180);

/// One after the other, because what is on the node matters to most of them.
#[tokio::test]
#[ignore = "needs root"]
async fn images_of_pods_and_machines_come_from_servers_mappings_and_registries() -> Result<()> {
    let cluster = Cluster::with(Options {
        registries: true,
        ..Options::default()
    })?;
    cases!(
        &cluster,
        [
            a_node_pulls_an_image_before_a_machine_needs_it,
            a_machine_follows_its_image_until_it_has_a_disk,
            no_image_is_left,
            image_caches::a_machine_waits_for_its_image_and_the_next_one_finds_it,
            no_image_is_left,
            image_pulls_follow_the_pull_policy_and_fail_with_clear_errors,
            mappings::a_mapping_gives_names_a_meaning_until_it_is_deleted,
            node_configs::settings_count_for_the_next_pod_of_a_node_with_the_label,
            registries::container_disks_run_with_the_pull_secrets_of_their_pods,
        ]
    );
    cluster.await_clean().await?;
    cluster.down()
}

/// Removes the images, which no machine uses any more.
async fn no_image_is_left(cluster: &Cluster) -> Result<()> {
    eventually(GONE, "a node without an image", || async {
        cluster.stack().crictl(&["rmi", "--all"])?;
        let images = cluster.stack().crictl(&["images", "-q"])?;
        ensure!(images.trim().is_empty(), "{images}");
        Ok(())
    })
    .await
}

pub(super) async fn image_pulls_follow_the_pull_policy_and_fail_with_clear_errors(
    cluster: &Cluster,
) -> Result<()> {
    cluster.apply(&container_pod("box", "exec sleep 100000"))?;
    never(cluster).await.context("Never, before any pull")?;
    by_class_alone(cluster).await.context("IfNotPresent")?;
    always(cluster).await.context("Always")?;
    refused(cluster)
        .await
        .context("images that cannot be had")?;
    in_use(cluster).await.context("an image in use")?;
    slow(cluster).await.context("a long pull")?;
    cluster.delete("pod/box", GONE)
}

/// A typing error in the URL shows on the image and on the machine, before any pod, and can be
/// repaired.
pub(super) async fn a_machine_follows_its_image_until_it_has_a_disk(
    cluster: &Cluster,
) -> Result<()> {
    let served = cluster.stack().var("VMLET_TEST_IMAGE_URL")?;
    let host = served.split('/').nth(2).context("no host in the URL")?;
    cluster.apply(&class("tiny", "128Mi"))?;
    certificates(cluster).await.context("tlsSecret")?;
    cluster.apply(&image(&format!("http://{host}/None.qcow2?key=hush")))?;
    cluster.apply(&machine("vm", &json!({ "powerState": "PoweredOn" })))?;
    let words = "None.qcow2 answered 404";
    await_message(cluster, words).await?;
    cluster
        .await_vm("vm", "the cause on the machine", READY, |vm| {
            let cause = condition(vm, "VirtualMachineImageReady");
            let message = cause["message"].as_str().unwrap_or_default();
            ensure!(
                cause["reason"] == "NotReady" && message.contains(words),
                "{cause}"
            );
            Ok(())
        })
        .await?;

    cluster.apply(&image(&format!("http://{host}/Hello.QCOW2?version=12")))?;
    cluster.await_word("vm", "Running", READY).await?;
    cluster.await_boots("vm", &[1], READY).await?;
    await_image(cluster, |image| {
        let status = &image["status"];
        let ready = condition(image, "Ready");
        ensure!(ready["reason"] == "Available", "{ready}");
        ensure!(
            status["type"] == "qcow2" && status["disks"][0]["limit"].is_string(),
            "{status}"
        );
        ensure!(status["usedSince"].is_string(), "{status}");
        // kubelet writes its list of images with the node's status.
        ensure!(
            status["nodeNames"] == json!(["node1"]) && status["nodeCount"] == 1,
            "{status}"
        );
        let digest = status["providerContentVersion"]
            .as_str()
            .unwrap_or_default();
        ensure!(digest.starts_with("sha256:"), "{status}");
        Ok(())
    })
    .await?;
    let columns = cluster.kubectl(&["get", "vmimage"])?;
    let names: Vec<_> = columns
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    ensure!(
        names == ["NAME", "TYPE", "SIZE", "NODES", "READY", "REASON", "AGE"],
        "{columns}"
    );
    ensure!(
        columns.contains("qcow2") && columns.contains("True"),
        "{columns}"
    );

    let patch = json!({ "spec": { "source": { "http": { "url": served } } } }).to_string();
    let refused = cluster.kubectl(&["patch", "vmimage", "guest", "--type=merge", "-p", &patch]);
    let refused = refused.err().context("the source of a disk was edited")?;
    let refused = format!("{refused:#}");
    ensure!(
        refused.contains("source is immutable since a disk was made"),
        "{refused}"
    );
    // Its next pods need neither the image's object nor its source.
    cluster.kubectl(&["delete", "vmimage", "guest"])?;
    cluster.patch_vm(
        "vm",
        &json!({ "powerState": "PoweredOff", "powerOffMode": "Hard" }),
    )?;
    cluster.await_word("vm", "Stopped", GONE).await?;
    // Nor the image: the disk is complete, and the server may be gone.
    no_image_is_left(cluster).await?;
    cluster.patch_vm("vm", &json!({ "powerState": "PoweredOn" }))?;
    cluster.await_boots("vm", &[2], READY).await?;
    let images = cluster.stack().crictl(&["images", "-q"])?;
    ensure!(images.trim().is_empty(), "it was pulled again: {images}");
    cluster.delete("vm/vm", GONE)
}

/// The node pulls the image before any machine names it; the machine then starts from the file that
/// is there.
pub(super) async fn a_node_pulls_an_image_before_a_machine_needs_it(
    cluster: &Cluster,
) -> Result<()> {
    let served = cluster.stack().var("VMLET_TEST_IMAGE_URL")?;
    let host = served.split('/').nth(2).context("no host in the URL")?;
    cluster.apply(&class("tiny", "128Mi"))?;
    cluster.apply(&image(&format!("http://{host}/None.qcow2?key=hush")))?;
    let failed = pull(cluster, &["--all-nodes"]);
    let failed = format!("{:#}", failed.err().context("a missing file was pulled")?);
    let words = "1 of 1 nodes failed to pull image guest: node node1: ";
    ensure!(
        failed.contains(words) && failed.contains("answered 404") && !failed.contains("hush"),
        "{failed}"
    );
    pull(cluster, &["--stop"])?;
    cluster.apply(&image(&format!("http://{host}/Hello.qcow2?version=1")))?;
    let refused = pull(cluster, &["--nodes", "pool=none"]);
    let refused = format!("{:#}", refused.err().context("no node has the label")?);
    ensure!(refused.contains("no node has the labels"), "{refused}");
    let images = cluster.stack().crictl(&["images", "-q"])?;
    ensure!(images.trim().is_empty(), "it was pulled: {images}");

    cluster.kubectl(&["label", "node", "node1", "pool=early"])?;
    let done = pull(cluster, &["--nodes", "pool=early"])?;
    let title = "virtualmachineimage.vmlet.dev/guest is on 1 node";
    ensure!(done == title, "{done}");
    let images = cluster.stack().crictl(&["images", "-q"])?;
    ensure!(images.lines().count() == 1, "{images}");
    await_image(cluster, |image| {
        let pulls = &image["status"]["prePull"];
        ensure!(
            pulls["ready"] == 1 && pulls["desired"] == 1 && pulls["nodes"] == json!(["node1"]),
            "{pulls}"
        );
        let ready = condition(image, "Ready");
        ensure!(ready["reason"] == "Available", "{ready}");
        Ok(())
    })
    .await?;
    eventually(READY, "the end of the tasks", || async {
        let tasks = cluster.get_json(&["virtualmachinetasks"])?;
        ensure!(tasks["items"] == json!([]), "{tasks}");
        Ok(())
    })
    .await?;
    let listed = vmletctl(cluster, &["image", "list"])?;
    ensure!(
        listed.contains("PRE-PULL") && listed.contains("1/1"),
        "{listed}"
    );

    let downloads = || cluster.stack().log("vmlet").matches("image pulled").count();
    let before = downloads();
    ensure!(before == 1, "{before} downloads");
    cluster.apply(&machine("vm", &json!({ "powerState": "PoweredOn" })))?;
    cluster.await_word("vm", "Running", READY).await?;
    cluster.await_boots("vm", &[1], READY).await?;
    ensure!(downloads() == before, "the machine pulled it again");
    pull(cluster, &["--stop"])?;
    await_image(cluster, |image| {
        let spec = &image["spec"]["prePull"];
        let status = &image["status"]["prePull"];
        ensure!(spec.is_null() && status.is_null(), "{spec} {status}");
        Ok(())
    })
    .await?;
    cluster.delete("vm/vm", GONE)?;
    cluster.kubectl(&["delete", "vmimage", "guest"])?;
    Ok(())
}

/// `vmletctl image pull guest` with these options.
fn pull(cluster: &Cluster, options: &[&str]) -> Result<String> {
    vmletctl(cluster, &[&["image", "pull", "guest"], options].concat())
}

pub(crate) fn vmletctl(cluster: &Cluster, arguments: &[&str]) -> Result<String> {
    let mut command = cluster.stack().command("vmletctl");
    let output = program::output(command.args(arguments))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    let errors = text(&output.stderr);
    ensure!(output.status.success(), "vmletctl {arguments:?}: {errors}");
    Ok(text(&output.stdout))
}

/// The image `guest` at that URL.
fn image(url: &str) -> Value {
    json!({
        "apiVersion": "vmlet.dev/v1alpha1", "kind": "VirtualMachineImage",
        "metadata": { "name": "guest" },
        "spec": { "source": { "http": { "url": url } } },
    })
}

/// The image is not ready, for a reason with these words.
async fn await_message(cluster: &Cluster, words: &str) -> Result<()> {
    await_image(cluster, |image| {
        let ready = condition(image, "Ready");
        let message = ready["message"].as_str().unwrap_or_default();
        ensure!(
            ready["reason"] == "NotReady" && message.contains(words),
            "{ready}"
        );
        ensure!(!message.contains("hush"), "the query is shown: {message}");
        Ok(())
    })
    .await
}

async fn await_image(cluster: &Cluster, check: impl Fn(&Value) -> Result<()>) -> Result<()> {
    eventually(READY, "the image's status", || async {
        check(&cluster.get_json(&["virtualmachineimage", "guest"])?)
    })
    .await
}

/// A raw disk with a boot signature and nothing else.
fn disk(bytes: usize) -> Vec<u8> {
    let mut disk = vec![0; bytes];
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    disk
}

/// Both pods that wait for one download show how far it is.
async fn slow(cluster: &Cluster) -> Result<()> {
    let server = HeldServer::start(cluster.stack(), disk(4 << 20))?;
    let name = format!("{}/slow.img", server.authority());
    let pods = ["slow-1", "slow-2"];
    for name_of_pod in pods {
        cluster.apply(&pod(name_of_pod, &name, "IfNotPresent"))?;
    }
    let words = ": 50 % of 4.0 MiB";
    for pod in pods {
        let reported = cluster.await_event(pod, "Pulling", words, READY);
        reported.await.context(pod)?;
    }
    server.release();
    for pod in pods {
        // Nothing boots from a disk without content.
        cluster.await_event(pod, "Started", "", READY).await?;
        let described = cluster.kubectl(&["describe", "pod", pod])?;
        // A point between this one and the end has an event only if the agent sees it in time.
        let half = described.lines().find(|line| line.contains(words));
        ensure!(half.is_some_and(|line| line.contains(&name)), "{described}");
        ensure!(!described.contains(": 100 % of "), "{described}");
    }
    ensure!(server.requests() == 1, "{} requests", server.requests());
    for pod in pods {
        cluster.delete(&format!("pod/{pod}"), GONE)?;
    }
    Ok(())
}

/// A server of a private authority, which requires a certificate of its clients: both come from a
/// Secret, as it is at the time of each pull.
async fn certificates(cluster: &Cluster) -> Result<()> {
    let authority = Authority::new()?;
    let other = Authority::new()?;
    let server = SecureServer::start(cluster.stack(), &authority, disk(1 << 20))?;
    // Another address, or another Secret, makes the next inspection begin at once.
    let with = |file: &str, secret: &str| {
        let url = format!("https://{}/{file}?key=hush", server.authority());
        let mut image = image(&url);
        image["spec"]["source"]["http"]["tlsSecret"] = json!(secret);
        image
    };
    // The agent of the node lacks the right to read it at first.
    cluster.apply(&with("Secure.qcow2", "unreadable"))?;
    await_message(cluster, "secret unreadable: vmlet-agent may not read it").await?;
    let right = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../deploy/agent/sources.yaml"
    );
    cluster.kubectl(&["apply", "--filename", right])?;
    cluster.apply(&with("Secure.qcow2", "missing"))?;
    await_message(cluster, "secret missing: it does not exist: create it").await?;
    cluster.apply(&other.for_client("images-tls")?)?;
    cluster.apply(&with("Secure.qcow2", "images-tls"))?;
    await_message(cluster, "certificate").await?;
    cluster.apply(&authority.for_client("images-tls")?)?;
    cluster.apply(&with("Rotated.qcow2", "images-tls"))?;
    await_image(cluster, |image| {
        let ready = condition(image, "Ready");
        ensure!(ready["reason"] == "Available", "{ready}");
        Ok(())
    })
    .await?;
    cluster.kubectl(&["delete", "--filename", right])?;
    cluster.kubectl(&["delete", "secret", "images-tls"])?;
    Ok(())
}

async fn never(cluster: &Cluster) -> Result<()> {
    cluster.apply(&pod("never", "vmlet.dev/hello", "Never"))?;
    await_waiting(cluster, "never", "ErrImageNeverPull", "not present").await?;
    cluster.delete("pod/never", GONE)
}

/// Neither annotation nor prefix: only the RuntimeClass says whose image this is.
async fn by_class_alone(cluster: &Cluster) -> Result<()> {
    cluster.apply(&pod("plain", "hello", "IfNotPresent"))?;
    cluster.await_ready("pod/plain", READY)?;
    let images = cluster.stack().crictl(&["images", "-q"])?;
    ensure!(images.lines().count() == 1, "the daemon has {images:?}");
    let others = cluster
        .stack()
        .crictl_at(Endpoint::Containerd, &["images"])?;
    ensure!(!others.contains("hello"), "containerd pulled it:\n{others}");
    cluster.delete("pod/plain", GONE)
}

async fn always(cluster: &Cluster) -> Result<()> {
    for _ in 0..2 {
        cluster.apply(&pod("always", "vmlet.dev/hello", "Always"))?;
        cluster
            .await_event("always", "Pulled", "Successfully pulled image", READY)
            .await?;
        cluster.kubectl(&[
            "delete",
            "pod",
            "always",
            "--grace-period=1",
            "--timeout=180s",
        ])?;
        cluster.kubectl(&[
            "delete",
            "events",
            "--field-selector",
            "involvedObject.name=always",
        ])?;
    }
    Ok(())
}

async fn refused(cluster: &Cluster) -> Result<()> {
    let wrong = format!("vmlet.dev/hello@sha256:{}", "0".repeat(64));
    // Of the stack's image server, which has this one file.
    let served = cluster.stack().var("VMLET_TEST_IMAGE_URL")?;
    let host = served
        .split('/')
        .nth(2)
        .context("no host in the image's URL")?;
    let missing = format!("{host}/none.qcow2");
    for (name, image, words) in [
        // kubelet takes no port behind a routing prefix: the RuntimeClass routes this one.
        ("absent", "127.0.0.1:9/no.qcow2", "127.0.0.1:9"),
        ("missing", missing.as_str(), "404"),
        ("digest", wrong.as_str(), "digest"),
    ] {
        cluster.apply(&pod(name, image, "IfNotPresent"))?;
        cluster
            .await_event(name, "Failed", words, READY)
            .await
            .context(name)?;
        await_waiting(cluster, name, "ImagePullBackOff", words)
            .await
            .context(name)?;
        cluster.delete(&format!("pod/{name}"), GONE)?;
    }
    Ok(())
}

/// kubelet's collector spares what a container names: the name must be one of the listed ones.
async fn in_use(cluster: &Cluster) -> Result<()> {
    cluster.apply(&pod("user", "vmlet.dev/hello", "IfNotPresent"))?;
    cluster.await_ready("pod/user", READY)?;
    cluster.await_ready("pod/box", READY)?;
    let list = |what: &str| -> Result<Value> {
        let text = cluster
            .stack()
            .crictl_at(Endpoint::Proxy, &[what, "-o", "json"])?;
        Ok(serde_json::from_str(&text)?)
    };
    let images = list("images")?;
    let ids: Vec<&str> = images["images"]
        .as_array()
        .context("images")?
        .iter()
        .filter_map(|image| image["id"].as_str())
        .collect();
    let containers = list("ps")?;
    let containers = containers["containers"].as_array().context("containers")?;
    ensure!(containers.len() == 2, "{containers:?}");
    for container in containers {
        let id = container["imageId"].as_str().context("imageId")?;
        ensure!(
            ids.contains(&id),
            "{id} is not among {ids:?}: it would be collected"
        );
    }
    let guest = Guest::in_pod(cluster.stack(), "user")?;
    let own = containers
        .iter()
        .find(|container| container["id"] == guest.container());
    let image = own
        .and_then(|container| container["imageId"].as_str())
        .context("the machine's image")?;
    // Whatever the answer, the machine keeps its disk.
    let _ = cluster.stack().crictl_at(Endpoint::Proxy, &["rmi", image]);
    guest.run(&[
        "sh",
        "-c",
        "echo 3 >/proc/sys/vm/drop_caches; md5sum /boot/vmlinuz",
    ])?;
    cluster.delete("pod/user", GONE)
}

fn pod(name: &str, image: &str, policy: &str) -> Value {
    let mut pod = vm_pod(name);
    pod["spec"]["containers"][0]["image"] = json!(image);
    pod["spec"]["containers"][0]["imagePullPolicy"] = json!(policy);
    pod
}

async fn await_waiting(cluster: &Cluster, pod: &str, reason: &str, words: &str) -> Result<()> {
    eventually(READY, &format!("{reason} of {pod}"), || async {
        let status = cluster.get_json(&["pod", pod])?["status"].take();
        let waiting = &status["containerStatuses"][0]["state"]["waiting"];
        let message = waiting["message"].as_str().unwrap_or_default();
        ensure!(
            waiting["reason"] == reason && message.contains(words),
            "{waiting}"
        );
        Ok(())
    })
    .await
}
