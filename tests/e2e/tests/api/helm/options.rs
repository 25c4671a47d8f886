//! Values of the chart: what each changes, and what is refused in words.
//!
//! Invariant: no cluster is needed; each value that is not a path is set once here.
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

/// Sets values, and compares what is at a place of an object.
fn compare(values: &str, kind_name: &str, pointer: &str, wanted: &Value) -> Result<()> {
    let objects = with(values)?;
    let found = at(find(&objects, kind_name)?, pointer).context(values.to_owned())?;
    ensure!(found == wanted, "{values}: {found}, not {wanted}");
    Ok(())
}

const NODE: &str = "DaemonSet vmlet-node";
const AGENT: &str = "DaemonSet vmlet-agent";
const CONTROLLER: &str = "Deployment vmlet-controller";
const METRICS: &str = "DaemonSet vmlet-metrics";
const IMAGE: &str = "/spec/template/spec/containers/0/image";
const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

#[test]
#[ignore = "needs root"]
fn each_value_is_in_its_place() -> Result<()> {
    let pinned = format!("image.registry=r.example:5000/a,image.tag=v1,image.digest={DIGEST}");
    let pinned_name = json!(format!("r.example:5000/a/vmlet-node:v1@{DIGEST}"));
    let by_digest = format!("image.digest={DIGEST}");
    let by_digest_name = json!(format!("localhost/vmlet-node@{DIGEST}"));
    let scrape = "monitoring.nodeMetrics.enabled=true,monitoring.nodeMetrics.image.registry=r";
    let spec = "/spec/template/spec";
    let limits = json!({ "limits": { "memory": "2Gi" } });
    let cases = [
        (pinned.as_str(), NODE, IMAGE.to_owned(), pinned_name),
        (&by_digest, AGENT, IMAGE.to_owned(), by_digest_name),
        (
            "image.registry=",
            CONTROLLER,
            IMAGE.to_owned(),
            json!("vmlet-node:0.1.0"),
        ),
        (
            scrape,
            METRICS,
            IMAGE.to_owned(),
            json!("r/brancz/kube-rbac-proxy:v0.18.1"),
        ),
        (
            "image.pullPolicy=Never",
            NODE,
            format!("{spec}/initContainers/0/imagePullPolicy"),
            json!("Never"),
        ),
        (
            "imagePullSecrets={a,b}",
            "ServiceAccount vmlet-agent",
            "/imagePullSecrets".to_owned(),
            json!([{ "name": "a" }, { "name": "b" }]),
        ),
        (
            "nodeSelector.pool=vm",
            NODE,
            format!("{spec}/nodeSelector/pool"),
            json!("vm"),
        ),
        (
            "nodeSelector.pool=vm",
            AGENT,
            format!("{spec}/nodeSelector/vmlet.dev~1node"),
            json!("true"),
        ),
        (
            "nodeSelector.pool=vm",
            "RuntimeClass vmlet",
            "/scheduling/nodeSelector/pool".to_owned(),
            json!("vm"),
        ),
        (
            "tolerations[0].key=vm",
            AGENT,
            format!("{spec}/tolerations"),
            json!([{ "key": "vm" }]),
        ),
        (
            "runtimeClass.tolerations[0].key=vm",
            "RuntimeClass vmlet-process",
            "/scheduling/tolerations".to_owned(),
            json!([{ "key": "vm" }]),
        ),
        (
            "runtimeClass.accelerator=tcg",
            "RuntimeClass vmlet",
            "/overhead/podFixed".to_owned(),
            json!({ "cpu": "100m", "memory": "352Mi" }),
        ),
        (
            "runtimeClass.overhead.cpu=1",
            "RuntimeClass vmlet",
            "/overhead/podFixed/cpu".to_owned(),
            json!("1"),
        ),
        (
            "controller.replicas=3",
            CONTROLLER,
            "/spec/replicas".to_owned(),
            json!(3),
        ),
        (
            "controller.resources.limits.memory=2Gi",
            CONTROLLER,
            format!("{spec}/containers/0/resources"),
            limits.clone(),
        ),
        (
            "agent.resources.limits.memory=2Gi",
            AGENT,
            format!("{spec}/containers/0/resources"),
            limits.clone(),
        ),
        (
            "node.resources.prepare-node.limits.memory=2Gi",
            NODE,
            format!("{spec}/initContainers/0/resources"),
            limits.clone(),
        ),
        (
            "node.resources.daemon.limits.memory=2Gi",
            NODE,
            format!("{spec}/containers/2/resources"),
            limits,
        ),
        (
            "controller.nodeSelector.a=b",
            CONTROLLER,
            format!("{spec}/nodeSelector/a"),
            json!("b"),
        ),
        (
            "controller.tolerations[0].operator=Exists",
            CONTROLLER,
            format!("{spec}/tolerations"),
            json!([{ "operator": "Exists" }]),
        ),
        (
            "node.maxUnavailable=20%",
            NODE,
            "/spec/updateStrategy/rollingUpdate/maxUnavailable".to_owned(),
            json!("20%"),
        ),
        (
            "agent.maxUnavailable=2",
            AGENT,
            "/spec/updateStrategy/rollingUpdate/maxUnavailable".to_owned(),
            json!(2),
        ),
        (
            "monitoring.namespaces={a,b}",
            "NetworkPolicy vmlet-agent",
            "/spec/ingress/0/from/1/namespaceSelector/matchLabels/kubernetes.io~1metadata.name"
                .to_owned(),
            json!("b"),
        ),
        (
            "monitoring.podMonitors=true,monitoring.labels.release=x",
            "PodMonitor vmlet-agents",
            "/metadata/labels/release".to_owned(),
            json!("x"),
        ),
        (
            "monitoring.rules=true,monitoring.labels.release=x",
            "PrometheusRule vmlet",
            "/metadata/labels/release".to_owned(),
            json!("x"),
        ),
        (
            "monitoring.rules=true",
            "PrometheusRule vmlet",
            "/spec/groups/0/rules/0/alert".to_owned(),
            json!("VmletLibvirtUnreachable"),
        ),
        (
            "uninstall.keepDisks=true",
            "Job vmlet-uninstall-check",
            format!("{spec}/containers/0/command/3"),
            json!("--keep-disks"),
        ),
        (
            "test.image=r/i",
            "Pod vmlet-test",
            "/spec/containers/0/command/4".to_owned(),
            json!("--image=r/i"),
        ),
    ];
    for (values, kind_name, pointer, wanted) in &cases {
        compare(values, kind_name, pointer, wanted)?;
    }
    let nobody = template("vmlet-system", &["--set-json", "monitoring.namespaces=[]"])?;
    let ingress = at(find(&nobody, "NetworkPolicy vmlet-agent")?, "/spec/ingress")?;
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
        ("privileged.serviceAccounts[0].name=a", "namespace"),
        ("monitoring.namespaces=monitoring", "namespaces"),
        ("image.registry=vmlet.dev", "choose another registry"),
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
        let found = refusal(&["--set", values])?;
        ensure!(found.contains(words), "{values}: {found}");
    }
    Ok(())
}
