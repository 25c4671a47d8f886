//! The configuration files of a node's programs.
//!
//! Invariant: times are short, so that tests need not wait; everything else is as on a real node.
//! Failure: a file that cannot be written is named.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{
    CLUSTER_SUBNET, Guests, Node, PROCESSES, RUNTIME, containerd_socket, kubeconfig, pki,
    proxy_socket,
};
use crate::pod_images;
use crate::stack::layout::STATUS_SOCKET;
use crate::stack::program::CNI_BIN_DIR;
use crate::stack::{Layout, config};

/// How kubelets and runtimes write cgroups.
pub(crate) const CGROUP_DRIVER: &str = "cgroupfs";
/// The name server of pods; no server answers there unless a test starts one.
const CLUSTER_DNS: &str = "10.96.0.10";
/// Where a deployed daemon listens.
const DEPLOYED_SOCKET: &str = "/run/vmlet/vmlet.sock";
/// Where `deploy/agent` expects the status of the proxy.
const DEPLOYED_STATUS: &str = "/run/vmlet/proxy/status.sock";
/// There when the kernel shows bridged packets to its packet filter.
const BRIDGE_FILTER: &str = "/proc/sys/net/bridge/bridge-nf-call-iptables";

/// Writes all of them.
pub(super) fn write_all(layout: &Layout, node: &Node) -> Result<()> {
    let text =
        |value: &Value| -> Result<String> { Ok(serde_json::to_string_pretty(value)? + "\n") };
    write(layout, "containerd.toml", &containerd(layout))?;
    write(layout, "criproxy.toml", &criproxy(layout, node))?;
    write(layout, "kubelet.json", &text(&kubelet(layout, node))?)?;
    write(layout, "kube-proxy.json", &text(&kube_proxy(node))?)?;
    // No cluster DNS: what pods get unless they say otherwise.
    write(
        layout,
        "resolv.conf",
        "nameserver 10.96.0.10\nsearch cluster.local\n",
    )
}

/// The audit policy of the API server: what it writes into `audit.log`.
pub(super) fn audit_policy(layout: &Layout) -> PathBuf {
    layout.path("audit.json")
}

/// Who wrote what, so that tests can count.
pub(super) fn write_audit_policy(layout: &Layout) -> Result<()> {
    let writes = ["create", "update", "patch", "delete", "deletecollection"];
    let policy = json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [{ "level": "Metadata", "verbs": writes }, { "level": "None" }],
    });
    let path = audit_policy(layout);
    fs::write(&path, policy.to_string()).with_context(|| format!("write {}", path.display()))
}

fn write(layout: &Layout, name: &str, text: &str) -> Result<()> {
    let path = layout.path(name);
    fs::write(&path, text).with_context(|| format!("write {}", path.display()))
}

fn quoted(path: &Path) -> String {
    config::toml_string(&path.to_string_lossy())
}

/// `restrict_oom_score_adj`: containers may keep the score that their starter has, which works
/// without CAP_SYS_RESOURCE too.
fn containerd(layout: &Layout) -> String {
    format!(
        "version = 3\nroot = \"/var/lib/containerd\"\nstate = \"/run/containerd\"\n\n\
         [grpc]\naddress = \"/run/containerd/containerd.sock\"\n\n\
         [plugins.'io.containerd.internal.v1.opt']\npath = \"/var/lib/containerd/opt\"\n\n\
         [plugins.'io.containerd.cri.v1.images'.pinned_images]\nsandbox = \"{pause}\"\n\n\
         [plugins.'io.containerd.cri.v1.runtime']\nrestrict_oom_score_adj = true\n\n\
         [plugins.'io.containerd.cri.v1.runtime'.cni]\nbin_dirs = [\"{CNI_BIN_DIR}\"]\n\
         conf_dir = {conf}\n\n\
         [plugins.'io.containerd.cri.v1.runtime'.containerd]\ndefault_runtime_name = \"runc\"\n\n\
         [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\n\
         runtime_type = \"io.containerd.runc.v2\"\n",
        pause = pod_images::PAUSE,
        conf = quoted(&layout.path("cni/conf")),
    )
}

fn criproxy(layout: &Layout, node: &Node) -> String {
    let (vmlet, status) = match node.guests {
        Guests::Vmlet | Guests::Runtimes => (layout.cri_socket(), layout.path(STATUS_SOCKET)),
        Guests::Deployed | Guests::NoNode => (DEPLOYED_SOCKET.into(), DEPLOYED_STATUS.into()),
    };
    format!(
        "listen = {listen}\nstatus_listen = {status}\nstate_dir = {state}\n\n\
         [primary]\nname = \"containerd\"\nsocket = {containerd}\n\n\
         [[secondary]]\nname = \"{RUNTIME}\"\nsocket = {vmlet}\nhandlers = [\"{RUNTIME}\", \"{PROCESSES}\"]\n\
         target_runtimes = [\"{RUNTIME}\", \"virtlet.cloud\"]\n\
         image_prefixes = [\"vmlet.dev/\", \"virtlet.cloud/\"]\nid_suffix = \"766d6c74\"\n\n\
         [metrics]\nlisten = \"127.0.0.1:9621\"\n\n\
         [log]\nlevel = \"info\"\nformat = \"text\"\n",
        listen = quoted(&proxy_socket(layout)),
        status = quoted(&status),
        state = quoted(&layout.path("criproxy")),
        containerd = quoted(&containerd_socket(layout)),
        vmlet = quoted(&vmlet),
    )
}

fn kubelet(layout: &Layout, node: &Node) -> Value {
    let certificate = |kind: &str| node.pki(&format!("{}.{kind}", pki::kubelet(node.number)));
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": { "enabled": false },
            "webhook": { "enabled": true },
            "x509": { "clientCAFile": node.pki("ca.crt") },
        },
        "authorization": { "mode": "Webhook" },
        "tlsCertFile": certificate("crt"),
        "tlsPrivateKeyFile": certificate("key"),
        "containerRuntimeEndpoint": format!("unix://{}", proxy_socket(layout).display()),
        "cgroupDriver": CGROUP_DRIVER,
        "cgroupRoot": format!("/{}", layout.netns_name()),
        "failCgroupV1": false,
        "failSwapOn": false,
        "makeIPTablesUtilChains": false,
        "clusterDNS": [CLUSTER_DNS],
        "clusterDomain": "cluster.local",
        "resolvConf": layout.path("resolv.conf"),
        "staticPodPath": layout.path("manifests"),
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        "evictionHard": {
            "memory.available": "100Mi",
            // kubelet knows no threshold by that: one percent of a large disk is more than any test needs.
            "nodefs.available": "0%",
            "imagefs.available": "0%",
        },
        "imageGCHighThresholdPercent": 100,
        "imageMinimumGCAge": "1s",
        // A container that ends again and again starts after 10 s, 20 s, 20 s…, and not after up to
        // five minutes.
        "crashLoopBackOff": { "maxContainerRestartPeriod": "20s" },
        "serializeImagePulls": false,
        // A guest prints a line every second, and tests count boots in what `kubectl logs` shows:
        // the last file.
        "containerLogMaxSize": "1Mi",
        "containerLogMaxFiles": 3,
        "containerLogMonitorInterval": "3s",
        "fileCheckFrequency": "1s",
        "nodeStatusUpdateFrequency": "1s",
        "nodeStatusReportFrequency": "10s",
        "syncFrequency": "5s",
        "volumeStatsAggPeriod": "5s",
    })
}

fn kube_proxy(node: &Node) -> Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": { "kubeconfig": kubeconfig::path(node, "kube-proxy") },
        "clusterCIDR": CLUSTER_SUBNET,
        "hostnameOverride": node.name(),
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "conntrack": { "maxPerCore": 0, "min": 0 },
        // Answers between two pods of one bridge return the same way only if the filter sees
        // them.
        "nftables": { "masqueradeAll": !Path::new(BRIDGE_FILTER).exists() },
    })
}
