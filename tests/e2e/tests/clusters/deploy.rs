//! The manifests in `deploy/`, applied to a node that has only containerd, kubelet and the proxy.
//!
//! Invariant: nothing of `deploy/` is changed but the tag and what this node's image server is
//! called; the two node images share no layer, so that the removal of the first one takes all its files
//! away.
//! Failure: pods, events and the ends of logs are shown.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Cluster, Options, eventually, machines, program, ticks, vm_pod, xtask};
use serde_json::{Value, json};

use super::import::a_package_becomes_a_machine;

mod groups;
mod publish;

const READY: Duration = Duration::from_secs(600);
const NAMESPACE: &str = "vmlet-system";
/// Images of Vmlet, as `cargo xtask image` calls them.
const IMAGES: [&str; 3] = ["node", "controller", "agent"];
const PARTS: [&str; 3] = [
    "daemonset/vmlet-node",
    "daemonset/vmlet-agent",
    "deployment/vmlet-controller",
];

#[tokio::test]
#[ignore = "needs root"]
async fn a_deployed_node_runs_a_vm_which_outlives_an_upgrade_and_nothing_stays_after_removal()
-> Result<()> {
    let [first, second] = build_images(&IMAGES, ["deploy-a", "deploy-b"])?;
    for (first, second) in first.iter().zip(&second) {
        ensure!(digest(first)? != digest(second)?, "one image with two tags");
    }
    let built = digest(&first[0])?;
    fs::remove_file(&first[0])?;
    build_images(&IMAGES[..1], ["deploy-a"])?;
    ensure!(
        built == digest(&first[0])?,
        "two builds of one image differ"
    );
    let cluster = Cluster::with(Options {
        no_vmlet: true,
        ..Options::default()
    })?;
    // A machine may have the folder already.
    on_node(&cluster, "mkdir -p /etc/cni/net.d")?;
    let before = state_of_node(&cluster)?;
    connect_to_network(&cluster)?;
    for image in first.iter().chain(&second) {
        import(&cluster, image)?;
    }

    let node = cluster.stack().var("VMLET_CLUSTER_NODE")?;
    cluster.kubectl(&["label", "node", node, "vmlet.dev/node=true"])?;
    deploy(&cluster, "deploy-a")?;
    await_rollout(&cluster)?;
    the_agent_reaches_its_sockets_and_no_other(&cluster).await?;
    cluster.apply(&vm_pod("machine"))?;
    cluster.await_ready("pod/machine", READY)?;
    // When it is ready, it may not have printed the time yet.
    let booted = eventually(READY, "a tick", || async { last_uptime(&cluster) }).await?;

    deploy(&cluster, "deploy-b")?;
    await_rollout(&cluster)?;
    // Nothing of the first image may be needed any more, not even by the machine that it started.
    remove_images(&cluster, "deploy-a")?;
    eventually(READY, "the guest's clock goes on", || async {
        let now = last_uptime(&cluster)?;
        ensure!(now > booted + 5.0, "{booted} s, then {now} s");
        Ok(())
    })
    .await?;
    let pod = cluster.get_json(&["pod", "machine"])?;
    let restarts = &pod["status"]["containerStatuses"][0]["restartCount"];
    ensure!(*restarts == 0, "restarted {restarts} times");
    cluster.await_ready("pod/machine", READY)?;
    let page = format!("http://{}/", cluster.pod_ip("machine")?);
    let page = cluster.stack().fetch(&page, READY).await?;
    ensure!(page.contains("machine"), "{page}");

    machines_on_off_and_suspended(&cluster).await?;
    a_stopped_machine_is_exported(&cluster).await?;
    publish::a_running_machine_is_exported_and_published(&cluster).await?;
    manifests_are_kept_and_read_by_the_pods(&cluster).await?;
    a_machine_starts_from_the_exported_disk(&cluster).await?;
    let exported = cluster.stack().dir().join("first.qcow2");
    a_package_becomes_a_machine(&cluster, &exported).await?;
    groups::a_group_within_a_group_powers_a_machine(&cluster).await?;
    remove_in_order(&cluster).await?;
    undeploy(&cluster)?;
    remove_state(&cluster)?;
    eventually(READY, "a node as it was", || async {
        let after = state_of_node(&cluster)?;
        ensure!(after == before, "it was\n{before}\nand is\n{after}");
        Ok(())
    })
    .await?;
    cluster.down()
}

/// Builds images with each of the tags; returns their archives by tag, that of nodes first.
fn build_images<const TAGS: usize>(
    images: &[&str],
    tags: [&str; TAGS],
) -> Result<[Vec<PathBuf>; TAGS]> {
    // The programs are those that all tests run: building them here would replace them under other
    // tests.
    let mut arguments = [&["image", "--debug", "--no-build"][..], images].concat();
    arguments.extend(tags.iter().flat_map(|tag| ["--tag", *tag]));
    let reported = xtask(&arguments)?;
    let archives = tags.map(|tag| archives(&reported, tag));
    for of_tag in &archives {
        ensure!(of_tag.len() == images.len(), "not all archives: {reported}");
    }
    Ok(archives)
}

/// The archives that a report of `cargo xtask image` has for a tag.
fn archives(reported: &str, tag: &str) -> Vec<PathBuf> {
    let end = format!(":{tag} is ");
    let archives = reported.lines().filter_map(|line| line.split_once(&end));
    archives.map(|(_, file)| PathBuf::from(file)).collect()
}

/// The digest of an archive's manifest.
fn digest(archive: &Path) -> Result<Value> {
    let index = run(Command::new("tar")
        .arg("-xOf")
        .arg(archive)
        .arg("index.json"))?;
    let index: Value = serde_json::from_str(&index)?;
    Ok(index["manifests"][0]["digest"].clone())
}

fn ctr(cluster: &Cluster, arguments: &[&str]) -> Result<String> {
    let endpoint = cluster.stack().var("VMLET_CONTAINERD_ENDPOINT")?;
    let socket = endpoint.trim_start_matches("unix://");
    let mut ctr = cluster.stack().command("ctr");
    run(ctr
        .args(["--address", socket, "--namespace", "k8s.io"])
        .args(arguments))
}

fn import(cluster: &Cluster, archive: &Path) -> Result<()> {
    let archive = archive.to_str().context("a path in UTF-8")?;
    ctr(cluster, &["images", "import", "--local", archive]).map(drop)
}

fn remove_images(cluster: &Cluster, tag: &str) -> Result<()> {
    for image in IMAGES {
        let name = format!("localhost/vmlet-{image}:{tag}");
        ctr(cluster, &["images", "rm", "--sync", &name])?;
    }
    Ok(())
}

/// Gives VM pods the network of the node's other pods, in the place where network plugins are
/// looked for, with a share of its addresses.
fn connect_to_network(cluster: &Cluster) -> Result<()> {
    let file = cluster.stack().dir().join("cni/conf/10-vmlet.conflist");
    let mut network: Value = serde_json::from_str(&fs::read_to_string(file)?)?;
    let ipam = &mut network["plugins"][0]["ipam"];
    let range = &mut ipam["ranges"][0][0];
    let subnet = range["subnet"].as_str().context("the subnet")?;
    let start = subnet.replace(".0/24", ".200");
    range["rangeStart"] = start.into();
    ipam["dataDir"] = "/var/lib/cni/machines".into();
    on_node(
        cluster,
        &format!("echo '{network}' >/etc/cni/net.d/10-machines.conflist"),
    )
    .map(drop)
}

/// Applies `deploy/` with this tag, as an operator's overlay does.
fn deploy(cluster: &Cluster, tag: &str) -> Result<()> {
    let overlay = cluster.stack().dir().join("overlay");
    fs::create_dir_all(&overlay)?;
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../deploy")
        .canonicalize()?;
    // A base may lie anywhere, but is named relative to the overlay.
    let up = "../".repeat(overlay.components().count() - 1);
    let base = format!("{up}{}", deploy.strip_prefix("/")?.display());
    let images =
        IMAGES.map(|image| format!("  - {{name: localhost/vmlet-{image}, newTag: {tag}}}\n"));
    let images = images.concat();
    fs::write(
        overlay.join("kustomization.yaml"),
        format!(
            "resources: [\"{base}\"]\n\
             namespace: {NAMESPACE}\n\
             configMapGenerator:\n  - {{name: vmlet-node, behavior: merge, files: [vmlet.toml]}}\n\
             images:\n{images}"
        ),
    )?;
    let settings = fs::read_to_string(deploy.join("node/vmlet.toml"))?;
    let url = cluster.stack().var("VMLET_TEST_IMAGE_URL")?;
    // The images stay, however full the disk of the computer is.
    let own = "[images]\nhigh_water_percent = 0\nallowed_addresses = [\"127.0.0.1/32\"]\nconvert = [\"vmdk\"]\n";
    let translation =
        format!("\n[[images.translations]]\nname = \"vmlet.dev/hello\"\nurl = \"{url}\"\n");
    let (others, usual) = settings
        .split_once("[images]\n")
        .context("deploy/node/vmlet.toml has settings of images")?;
    let settings = format!("{others}{own}{usual}{translation}");
    fs::write(overlay.join("vmlet.toml"), settings)?;
    let overlay = overlay.to_str().context("a path in UTF-8")?;
    cluster.kubectl(&["apply", "--kustomize", overlay])?;
    Ok(())
}

fn await_rollout(cluster: &Cluster) -> Result<()> {
    let within = format!("--timeout={}s", READY.as_secs());
    for part in PARTS {
        cluster
            .kubectl(&["-n", NAMESPACE, "rollout", "status", &within, part])
            .map(drop)
            .with_context(|| {
                cluster
                    .kubectl(&["-n", NAMESPACE, "describe", "pods"])
                    .unwrap_or_default()
            })?;
    }
    Ok(())
}

/// What the pod of the agent has of the node: two sockets, no privilege, no other file. Nor is there another program.
async fn the_agent_reaches_its_sockets_and_no_other(cluster: &Cluster) -> Result<()> {
    let cgroup = cluster.stack().var("VMLET_NETNS")?;
    let found = on_node(
        cluster,
        &format!(
            "for pid in $(pgrep -x vmlet-agent); do \
                 grep -q '/{cgroup}/kubepods' /proc/$pid/cgroup || continue; \
                 find /proc/$pid/root/run/vmlet ! -type d -printf '%P\\n' | sort; \
                 find /proc/$pid/root/ -xdev -type f -perm /111 -printf '%P\\n' | sort; \
                 grep -E '^(Uid|CapEff|CapBnd|NoNewPrivs):' /proc/$pid/status; \
             done"
        ),
    )?;
    let found: Vec<_> = found.split_whitespace().collect();
    let uid = "1899999999";
    let none = "0000000000000000";
    let expected = [
        &["node/node.sock", "proxy/status.sock"][..],
        &["usr/lib64/ld-linux-x86-64.so.2", "usr/sbin/vmlet-agent"],
        &["Uid:", uid, uid, uid, uid],
        &["CapEff:", none, "CapBnd:", none, "NoNewPrivs:", "1"],
    ]
    .concat();
    ensure!(found == expected, "{found:?}");
    eventually(READY, "facts by both sockets", || async {
        let node = cluster.stack().var("VMLET_CLUSTER_NODE")?;
        let lease = cluster.get_json(&["lease", "-n", NAMESPACE, &format!("vmlet-node-{node}")])?;
        let facts = &lease["metadata"]["annotations"]["vmlet.dev/node-facts"];
        let facts: Value = serde_json::from_str(facts.as_str().context("no facts")?)?;
        let is_reachable = |what: &str| facts[what]["reachable"] == true;
        ensure!(is_reachable("daemon") && is_reachable("proxy"), "{facts}");
        ensure!(facts["proxy"]["runtimeReady"] == true, "{facts}");
        Ok(())
    })
    .await
}

/// Each has a disk on the node; only the first has a pod.
async fn machines_on_off_and_suspended(cluster: &Cluster) -> Result<()> {
    let reference = "vmlet.dev/hello:latest";
    cluster.apply(&machines::class("tiny", "128Mi"))?;
    cluster.apply(&machines::image(reference))?;
    for name in ["on", "off", "suspended"] {
        cluster.apply(&machines::machine(
            name,
            &json!({ "powerState": "PoweredOn" }),
        ))?;
    }
    for (name, state, word) in [
        ("on", "PoweredOn", "Running"),
        ("off", "PoweredOff", "Stopped"),
        ("suspended", "Suspended", "Suspended"),
    ] {
        cluster.await_word(name, "Running", READY).await?;
        // Its disk has counted this boot, before the disk is exported or a snapshot is made of it.
        cluster.await_boots(name, &[1], READY).await?;
        cluster.patch_vm(name, &json!({ "powerState": state }))?;
        cluster.await_word(name, word, READY).await?;
    }
    Ok(())
}

/// By the agent's pod, with a client that is killed in the middle.
async fn a_stopped_machine_is_exported(cluster: &Cluster) -> Result<()> {
    let export = |name: &str, file: &Path| {
        let mut command = cluster.stack().command("vmletctl");
        command.args(["export", name, "-o"]).arg(file);
        command
    };
    let dir = cluster.stack().dir();
    let first = dir.join("first.qcow2");
    let second = dir.join("second.qcow2");
    for (name, words) in [("on", "vmletctl stop on"), ("suspended", "is suspended")] {
        let refused = program::output(&mut export(name, &first))?;
        let text = String::from_utf8_lossy(&refused.stderr);
        ensure!(
            !refused.status.success() && text.contains(words),
            "{refused:?}"
        );
    }
    let mut killed = export("off", &first).stderr(Stdio::null()).spawn()?;
    let part = dir.join("first.qcow2.part");
    let begun = eventually(READY, "the first bytes", || async {
        ensure!(fs::metadata(&part).map_or(first.exists(), |is| is.len() > 0));
        Ok(())
    })
    .await;
    killed.kill()?;
    killed.wait()?;
    begun?;
    if !first.exists() {
        run(&mut export("off", &first))?;
    }
    run(&mut export("off", &second))?;
    run(Command::new("cmp").args([&first, &second]))?;
    run(Command::new("qemu-img")
        .args(["check", "-f", "qcow2"])
        .arg(&first))?;
    let exists = program::output(&mut export("off", &first))?;
    let text = String::from_utf8_lossy(&exists.stderr);
    ensure!(
        !exists.status.success() && text.contains("--force"),
        "{exists:?}"
    );
    let piped = program::output(&mut export("off", Path::new("-")))?;
    ensure!(
        piped.status.success() && piped.stdout == fs::read(&first)?,
        "another disk"
    );
    eventually(READY, "the removal of the node's copies", || async {
        let left = on_node(cluster, "find /var/lib/vmlet/exports -type f")?;
        ensure!(left.is_empty(), "{left}");
        Ok(())
    })
    .await
}

/// By the agent's pod, and read by that of the node: the cluster knows the machine of each disk.
async fn manifests_are_kept_and_read_by_the_pods(cluster: &Cluster) -> Result<()> {
    eventually(READY, "a manifest beside each disk", || async {
        let found = on_node(cluster, "find /var/lib/vmlet/disks -name manifest")?;
        ensure!(found.lines().count() == 3, "{found}");
        Ok(())
    })
    .await?;
    let node = cluster.stack().var("VMLET_CLUSTER_NODE")?;
    let mut recover = cluster.stack().command("vmletctl");
    recover.args(["recover", "--node", node, "on", "off"]);
    let listed = program::output(&mut recover)?;
    let text = String::from_utf8_lossy(&listed.stdout);
    let known = text.matches("has its disk").count();
    ensure!(listed.status.success() && known == 2, "{listed:?}");
    Ok(())
}

/// Uploaded to the node as an image, with a client that is killed in the middle.
async fn a_machine_starts_from_the_exported_disk(cluster: &Cluster) -> Result<()> {
    let node = cluster.stack().var("VMLET_CLUSTER_NODE")?;
    let file = cluster.stack().dir().join("first.qcow2");
    let upload_to = |nodes: &[&str], file: &Path| {
        let mut command = cluster.stack().command("vmletctl");
        command.args(["image", "upload", "--name", "exported"]);
        command.args(nodes).arg(file);
        command
    };
    let upload = |file: &Path| upload_to(&["--node", node], file);
    let text = cluster.stack().dir().join("no-disk");
    fs::write(&text, "#!/bin/sh\n".repeat(100))?;
    let refused = program::output(&mut upload(&text))?;
    ensure!(!refused.status.success(), "{refused:?}");
    let mut killed = upload(&file).stdout(Stdio::null()).spawn()?;
    let begun = eventually(READY, "the first bytes", || async {
        let find = "find /var/lib/vmlet/images/partial -name 'upload-*.part' -size +0";
        let is_begun = !on_node(cluster, find)?.is_empty();
        let is_complete = cluster.get_json(&["vmimage", "exported"]).is_ok();
        ensure!(is_begun || is_complete, "nothing was received");
        Ok(())
    })
    .await;
    killed.kill()?;
    killed.wait()?;
    begun?;
    run(&mut upload(&file))?;
    // It has the image.
    let again = program::output(&mut upload_to(&["--all-nodes"], &file))?;
    let text = String::from_utf8_lossy(&again.stdout);
    let is_there = text.contains(&format!("exported uploaded to node {node}"));
    ensure!(again.status.success() && is_there, "{again:?}");
    cluster.apply(&machines::machine(
        "copy",
        &json!({ "imageName": "exported", "powerState": "PoweredOn" }),
    ))?;
    cluster.await_word("copy", "Running", READY).await?;
    cluster.await_boots("copy", &[2], READY).await?;
    cluster.delete("vm/copy", READY)?;
    cluster.delete("vmimage/exported", READY)
}

/// The steps of `docs/operations.md` before the manifests are deleted.
async fn remove_in_order(cluster: &Cluster) -> Result<()> {
    let refused = cluster.kubectl(&["delete", "crd", "virtualmachines.vmlet.dev"]);
    let words = format!("{refused:?}");
    ensure!(words.contains("run vmletctl uninstall"), "{words}");
    let node = cluster.stack().var("VMLET_CLUSTER_NODE")?;
    let kept = cluster.get_json(&["node", node])?;
    let kept = &kept["metadata"]["annotations"];
    ensure!(
        kept["cluster-autoscaler.kubernetes.io/scale-down-disabled"] == "true",
        "{kept}"
    );
    let uninstall = |arguments: &[&str]| {
        let mut command = cluster.stack().command("vmletctl");
        program::output(command.arg("uninstall").args(arguments))
    };
    let left = uninstall(&["--check"])?;
    let text = String::from_utf8_lossy(&left.stdout);
    ensure!(
        left.status.code() == Some(1) && text.contains("virtual machines: 3"),
        "{left:?}"
    );
    ensure!(text.contains("default/machine"), "{text}");

    let within = format!("--timeout={}s", READY.as_secs());
    cluster.kubectl(&["delete", "vm", "--all", &within])?;
    cluster.delete("pod/machine", READY)?;
    eventually(READY, "nothing is left", || async {
        let left = uninstall(&["--check"])?;
        ensure!(left.status.success(), "{left:?}");
        Ok(())
    })
    .await?;
    let kept = cluster.get_json(&["node", node])?;
    let kept = &kept["metadata"]["annotations"];
    ensure!(
        kept["cluster-autoscaler.kubernetes.io/scale-down-disabled"].is_null(),
        "{kept}"
    );
    let allowed = uninstall(&[])?;
    ensure!(allowed.status.success(), "{allowed:?}");
    Ok(())
}

fn undeploy(cluster: &Cluster) -> Result<()> {
    let overlay = cluster.stack().dir().join("overlay");
    let overlay = overlay.to_str().context("a path in UTF-8")?;
    cluster
        .kubectl(&["delete", "--kustomize", overlay, "--wait"])
        .map(drop)
}

/// The steps of `docs/operations.md` that remove Vmlet from a node. The state directory itself is a
/// mount here; the rest undoes [`connect_to_network`].
fn remove_state(cluster: &Cluster) -> Result<()> {
    on_node(
        cluster,
        "find /run/vmlet -mindepth 1 -maxdepth 1 -not -name proxy -exec rm -r {} +; \
         find /var/lib/vmlet -mindepth 1 -delete; \
         rmdir --ignore-fail-on-non-empty --parents /opt/cni/bin; \
         rm -r /etc/cni/net.d/10-machines.conflist /var/lib/cni/machines",
    )
    .map(drop)
}

/// What Vmlet could have left: files, namespaces, packet filters, processes in pods. What is there
/// of pods and programs. containerd keeps the folder of its plugins' results once any ordinary pod
/// had a network; what is in it counts.
fn state_of_node(cluster: &Cluster) -> Result<String> {
    let cgroup = cluster.stack().var("VMLET_NETNS")?;
    on_node(
        cluster,
        &format!(
            "find /run /etc/cni /opt/cni /var/lib/vmlet /var/lib/cni /var/log/pods 2>/dev/null \
             | grep -Ev '^(/run/containerd|/var/lib/cni/results$)' | sort; \
             grep -c nsfs /proc/self/mountinfo; \
             nft list tables | grep -Ev 'kube-proxy|nat' | sort; \
             find /sys/fs/cgroup/*/{cgroup}/kubepods -name cgroup.procs -exec cat {{}} +"
        ),
    )
}

/// The seconds that the guest's kernel has run, as its console said last.
fn last_uptime(cluster: &Cluster) -> Result<f64> {
    let log = cluster.kubectl(&["logs", "machine", "--tail=5"])?;
    ticks(&log)
        .last()
        .map(|tick| tick.uptime)
        .with_context(|| format!("no tick in {log}"))
}

/// A shell script in the node's mount and network namespaces.
fn on_node(cluster: &Cluster, script: &str) -> Result<String> {
    let mut shell = cluster.stack().command_inside("sh")?;
    run(shell.args(["-c", script]))
}

fn run(command: &mut Command) -> Result<String> {
    let output = program::output(command)?;
    ensure!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?)
}
