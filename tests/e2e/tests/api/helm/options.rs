//! Values of the chart: what each changes, and what is refused in words.
//!
//! Invariant: no cluster is needed.
//! Failure: names the value.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::objects::{find, named, pod, settings};
use super::render::EVERYTHING;
use super::{refusal, template};

/// What the chart prints with some values.
fn with(values: &str) -> Result<Vec<Value>> {
    template("vmlet-system", &["--set", values])
}

fn at<'a>(object: &'a Value, pointer: &str) -> Result<&'a Value> {
    let found = object.pointer(pointer);
    found.with_context(|| format!("no {pointer} in {object:#}"))
}

const NODE: &str = "DaemonSet vmlet-node";
const AGENT: &str = "DaemonSet vmlet-agent";
const CONTROLLER: &str = "Deployment vmlet-controller";
const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// A value, an object, a place in it and what is there. POD is a workload's pod.
const PLACES: &str = r#"
image.registry=r:5000/a,image.tag=v1,image.digest=DIGEST | DaemonSet vmlet-node | POD/containers/0/image | "r:5000/a/vmlet-node:v1@DIGEST"
image.digest=DIGEST | DaemonSet vmlet-agent | POD/containers/0/image | "localhost/vmlet-agent:0.1.0"
image.registry=r,image.tag=v1,image.digest=DIGEST,image.agent.digest=DIGEST | DaemonSet vmlet-agent | POD/containers/0/image | "r/vmlet-agent:v1@DIGEST"
image.registry=r,image.repository=team/x,image.tag=v1 | Deployment vmlet-controller | POD/containers/0/image | "r/team/vmlet-controller:v1"
image.registry=r,image.repository=a/b/x | DaemonSet vmlet-agent | POD/containers/0/image | "r/a/b/vmlet-agent:0.1.0"
image.repository=team/x,image.agent.repository=y | DaemonSet vmlet-agent | POD/containers/0/image | "localhost/y:0.1.0"
image.registry= | Deployment vmlet-controller | POD/containers/0/image | "vmlet-controller:0.1.0"
image.controller.repository=x,image.controller.digest=DIGEST | Deployment vmlet-controller | POD/containers/0/image | "localhost/x@DIGEST"
image.agent=null | DaemonSet vmlet-agent | POD/containers/0/image | "localhost/vmlet-agent:0.1.0"
image.pullPolicy=Never | DaemonSet vmlet-node | POD/initContainers/0/imagePullPolicy | "Never"
imagePullSecrets={a,b} | ServiceAccount vmlet-agent | /imagePullSecrets | [{"name":"a"},{"name":"b"}]
nodeSelector.pool=vm | DaemonSet vmlet-node | POD/nodeSelector/pool | "vm"
nodeSelector.pool=vm | DaemonSet vmlet-agent | POD/nodeSelector/vmlet.dev~1node | "true"
nodeSelector.pool=vm | RuntimeClass vmlet | /scheduling/nodeSelector/pool | "vm"
tolerations[0].key=vm | DaemonSet vmlet-agent | POD/tolerations | [{"key":"vm"}]
runtimeClass.tolerations[0].key=vm | RuntimeClass vmlet-process | /scheduling/tolerations | [{"key":"vm"}]
runtimeClass.accelerator=tcg | RuntimeClass vmlet | /overhead/podFixed | {"cpu":"100m","memory":"352Mi"}
runtimeClass.overhead.cpu=1 | RuntimeClass vmlet | /overhead/podFixed/cpu | "1"
controller.replicas=3 | Deployment vmlet-controller | /spec/replicas | 3
controller.resources.limits.memory=2Gi | Deployment vmlet-controller | POD/containers/0/resources | {"limits":{"memory":"2Gi"}}
controller.nodeSelector.a=b | Deployment vmlet-controller | POD/nodeSelector/a | "b"
controller.tolerations[0].operator=Exists | Deployment vmlet-controller | POD/tolerations | [{"operator":"Exists"}]
agent.resources.limits.memory=2Gi | DaemonSet vmlet-agent | POD/containers/0/resources | {"limits":{"memory":"2Gi"}}
agent.maxUnavailable=2 | DaemonSet vmlet-agent | /spec/updateStrategy/rollingUpdate/maxUnavailable | 2
node.maxUnavailable=20% | DaemonSet vmlet-node | /spec/updateStrategy/rollingUpdate/maxUnavailable | "20%"
node.resources.prepare-node.limits.cpu=2 | DaemonSet vmlet-node | POD/initContainers/0/resources | {"limits":{"cpu":2}}
node.resources.libvirt.limits.cpu=2 | DaemonSet vmlet-node | POD/containers/0/resources | {"limits":{"cpu":2}}
node.resources.tapmanager.limits.cpu=2 | DaemonSet vmlet-node | POD/containers/1/resources | {"limits":{"cpu":2}}
node.resources.daemon.limits.cpu=2 | DaemonSet vmlet-node | POD/containers/2/resources | {"limits":{"cpu":2}}
monitoring.namespaces={a,b} | NetworkPolicy vmlet-agent | /spec/ingress/0/from/1/namespaceSelector/matchLabels/kubernetes.io~1metadata.name | "b"
monitoring.podMonitors=true,monitoring.labels.release=x | PodMonitor vmlet-agents | /metadata/labels/release | "x"
monitoring.rules=true,monitoring.labels.release=x | PrometheusRule vmlet | /metadata/labels/release | "x"
monitoring.rules=true | PrometheusRule vmlet | /spec/groups/0/rules/0/alert | "VmletLibvirtUnreachable"
monitoring.nodeMetrics.enabled=true,monitoring.nodeMetrics.image.registry=r | DaemonSet vmlet-metrics | POD/containers/0/image | "r/brancz/kube-rbac-proxy:v0.18.1"
uninstall.keepDisks=true | Job vmlet-uninstall-check | POD/containers/0/command/3 | "--keep-disks"
test.image=r/i | Pod vmlet-test | /spec/containers/0/command/4 | "--image=r/i"
"#;

#[test]
#[ignore = "needs root"]
fn each_value_is_in_its_place() -> Result<()> {
    for row in PLACES.trim().lines() {
        let row = row
            .replace("DIGEST", DIGEST)
            .replace("POD", "/spec/template/spec");
        let fields: Vec<_> = row.split(" | ").collect();
        let [values, kind_name, place, wanted] = fields[..] else {
            anyhow::bail!("{row}");
        };
        let objects = with(values)?;
        let found = at(find(&objects, kind_name)?, place).context(row.clone())?;
        let wanted: Value = serde_json::from_str(wanted)?;
        ensure!(*found == wanted, "{row}: {found}");
    }
    let unmonitored = template("vmlet-system", &["--set-json", "monitoring.namespaces=[]"])?;
    let ingress = at(
        find(&unmonitored, "NetworkPolicy vmlet-agent")?,
        "/spec/ingress",
    )?;
    ensure!(*ingress == json!([]), "{ingress}");
    Ok(())
}

#[test]
#[ignore = "needs root"]
fn an_object_exists_when_its_value_says_so() -> Result<()> {
    let usual = with("platform=kubeadm")?;
    let all = with(EVERYTHING)?;
    for name in [
        "ClusterRole vmlet-agent-sources",
        "ClusterRoleBinding vmlet-metrics-reader",
        "ClusterRoleBinding vmlet-privileged",
        "DaemonSet vmlet-metrics",
        "PodDisruptionBudget vmlet-controller",
        "PodMonitor vmlet-nodes",
        "PrometheusRule vmlet",
    ] {
        ensure!(find(&usual, name).is_err(), "{name} in any case");
        find(&all, name)?;
    }
    for (values, name) in [
        ("networkPolicies.enabled=false", "NetworkPolicy vmlet-agent"),
        (
            "clusterImages.readableByAll=false",
            "ClusterRoleBinding vmlet-cluster-images",
        ),
        ("uninstall.check=false", "Job vmlet-uninstall-check"),
        ("monitoring.podMonitors=true", "PodMonitor vmlet-nodes"),
    ] {
        ensure!(find(&with(values)?, name).is_err(), "{values}: {name}");
    }
    let subjects = at(
        find(&all, "ClusterRoleBinding vmlet-privileged")?,
        "/subjects",
    )?;
    let group = "rbac.authorization.k8s.io";
    let wanted = json!([
        { "apiGroup": group, "kind": "User", "name": "dora" },
        { "apiGroup": group, "kind": "Group", "name": "admins" },
        { "kind": "ServiceAccount", "name": "velero", "namespace": "velero" },
    ]);
    ensure!(*subjects == wanted, "{subjects}");
    for account in [
        "vmlet-controller",
        "vmlet-metrics",
        "vmlet-test",
        "vmlet-uninstall-check",
    ] {
        let account = find(&all, &format!("ServiceAccount {account}"))?;
        ensure!(
            account["imagePullSecrets"][0]["name"] == "registry",
            "{account}"
        );
    }
    Ok(())
}

#[test]
#[ignore = "needs root"]
fn settings_are_laid_over_those_of_the_manifests_and_change_the_name() -> Result<()> {
    let usual = with("platform=kubeadm")?;
    let toml = "[vm]\naccelerator = \"kvm\"\ndefault_vcpus = 2\n\n[log]\nlevel = \"debug\"\n\n\
                [[images.translations]]\nname = \"a\"\nurl = \"http://b/c\"\n";
    let folder = std::env::temp_dir().join(format!("vmlet-helm-{}.toml", std::process::id()));
    std::fs::write(&folder, toml)?;
    let file = format!("node.settings={}", folder.display());
    let controller = "controller.settings=[runner]\nworkers = 3";
    let words = ["--set-file", &file, "--set", controller];
    let changed = template("vmlet-system", &words);
    std::fs::remove_file(&folder)?;
    let changed = changed?;
    let text = |data: &Value, name: &str| data[name].as_str().unwrap_or_default().to_owned();
    let daemon = text(settings(&changed, NODE)?, "vmlet.toml");
    for words in [
        "format = \"json\"",
        "level = \"debug\"",
        "accelerator = \"kvm\"",
        "default_vcpus = 2\n",
        "host_root = \"/host\"",
        "[[images.translations]]",
        "listen = \"127.0.0.1:9640\"",
    ] {
        ensure!(daemon.contains(words), "{words} in {daemon}");
    }
    let controller = text(settings(&changed, CONTROLLER)?, "controller.toml");
    ensure!(controller.contains("workers = 3\n"), "{controller}");
    ensure!(
        controller.contains("probe_listen = \"0.0.0.0:9631\""),
        "{controller}"
    );
    for workload in [NODE, CONTROLLER] {
        let name = |objects: &[Value]| -> Result<Value> {
            let volumes = &pod(find(objects, workload)?)["volumes"];
            Ok(named(volumes, "config")?["configMap"]["name"].clone())
        };
        ensure!(
            name(&usual)? != name(&changed)?,
            "{workload} is not rolled out"
        );
    }
    let proxy = "node.proxy.https=http://p:3128,node.proxy.exceptions=10.0.0.0/8";
    let proxied = with(proxy)?;
    let daemon = named(&pod(find(&proxied, NODE)?)["containers"], "daemon")?;
    for (name, value) in [
        ("HTTPS_PROXY", "http://p:3128"),
        ("NO_PROXY", "10.0.0.0/8"),
        ("MALLOC_TRIM_THRESHOLD_", "131072"),
    ] {
        ensure!(named(&daemon["env"], name)?["value"] == value, "{daemon}");
    }
    ensure!(named(&daemon["env"], "HTTP_PROXY").is_err(), "{daemon}");
    let agent = with("agent.env.VMLET_AGENT_LOG_LEVEL=debug")?;
    let agent = named(&pod(find(&agent, AGENT)?)["containers"], "agent")?;
    ensure!(
        named(&agent["env"], "VMLET_AGENT_LOG_LEVEL")?["value"] == "debug",
        "{agent}"
    );
    Ok(())
}

#[test]
#[ignore = "needs root"]
fn what_the_chart_cannot_honour_is_refused_in_words() -> Result<()> {
    for (values, words) in [
        ("imagee.tag=1", "imagee"),
        ("image.tagg=1", "tagg"),
        ("node.resources.qemu.limits.cpu=1", "qemu"),
        ("controller.replicas=0", "replicas"),
        ("controller.replicas=many", "replicas"),
        ("platform=openshift", "platform"),
        ("paths.kubelet=var/lib", "kubelet"),
        ("image.digest=sha256:12", "digest"),
        ("tolerations[0].opertor=Exists", "opertor"),
        ("runtimeClass.accelerator=hvf", "accelerator"),
        ("runtimeClass.overhead.memory=much", "memory"),
        ("agent.env.LOG_LEVEL=debug", "LOG_LEVEL"),
        (
            "agent.env.VMLET_AGENT_NODE=a",
            "the DaemonSet sets VMLET_AGENT_NODE",
        ),
        (
            "agent.env.VMLET_AGENT_HEALTH_LISTEN=[::]:1",
            "the DaemonSet sets VMLET_AGENT_HEALTH_LISTEN",
        ),
        ("privileged.serviceAccounts[0].name=a", "namespace"),
        ("monitoring.namespaces=monitoring", "namespaces"),
        ("image.registry=vmlet.dev", "choose another registry"),
        (
            "image.tag=own,image.controller.digest=DIGEST",
            "image.controller.digest pins an image",
        ),
        (
            "image.tag=own,image.digest=,image.agent.digest=DIGEST",
            "image.agent.digest pins an image",
        ),
        ("node.settings=[log", "node.settings: "),
        (
            "node.settings=state_dir=\"/srv\"",
            "the chart sets state_dir",
        ),
        (
            "controller.settings=[lease]\nidentity=\"a\"",
            "the chart sets lease.identity",
        ),
        (
            "node.tapmanagerSettings=cni_conf_dir=\"/srv\"",
            "the chart sets cni_conf_dir",
        ),
        (
            "monitoring.nodeMetrics.enabled=true,node.settings=[metrics]\nlisten=\"127.0.0.1:1\"",
            "leave metrics.listen as it is",
        ),
    ] {
        let values = values.replace("DIGEST", DIGEST);
        let found = refusal(&["--set", &values])?;
        ensure!(found.contains(words), "{values}: {found}");
    }
    Ok(())
}
