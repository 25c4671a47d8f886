//! The command lines of a cluster's programs, and how each shows that it works.
//!
//! Invariant: every port is inside the node's network namespace.
//! Failure: a program that does not answer yet is not ready, whatever the reason.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::{
    KUBELET_ROOT, Node, SERVICE_SUBNET, configs, containerd_socket, kubeconfig, node_address, pki,
    proxy_socket,
};
use crate::stack::{Layout, Program, Record, netns};
use crate::{run, workspace};

const ETCD: &str = "http://127.0.0.1:2379";
/// How long a program may take over its own health.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The command line of a program of the cluster.
pub(crate) fn command(layout: &Layout, program: Program) -> Result<Command> {
    let node = node(layout)?;
    let mut command = run::command(workspace::tools_bin().join(program.name()));
    match program {
        Program::Etcd => {
            command.arg("--data-dir").arg(layout.path("etcd"));
            command.args(["--unsafe-no-fsync", "--log-level=warn"]);
            command.args([
                "--listen-client-urls",
                ETCD,
                "--advertise-client-urls",
                ETCD,
            ]);
            command.args(["--listen-peer-urls", "http://127.0.0.1:2380"]);
        }
        Program::KubeApiserver => {
            command.args(apiserver(layout, &node));
        }
        Program::KubeControllerManager => {
            let kubeconfig = kubeconfig::path(&node, program.name());
            command.arg("--kubeconfig").arg(kubeconfig);
            command
                .arg("--service-account-private-key-file")
                .arg(node.pki("service-accounts.key"));
            command.arg("--root-ca-file").arg(node.pki("ca.crt"));
            command.args([
                "--use-service-account-credentials=true",
                "--leader-elect=false",
            ]);
            command.args(["--controllers=*", "--bind-address=127.0.0.1"]);
        }
        Program::KubeScheduler => {
            let kubeconfig = kubeconfig::path(&node, program.name());
            command.arg("--kubeconfig").arg(kubeconfig);
            command.args(["--leader-elect=false", "--bind-address=127.0.0.1"]);
        }
        Program::Containerd => {
            command.arg("--config").arg(layout.path("containerd.toml"));
        }
        Program::VmletCriproxy => {
            command = run::command(layout.path("bin/vmlet-criproxy"));
            command.arg("--config").arg(layout.path("criproxy.toml"));
        }
        Program::VmletController => {
            command = run::command(layout.path("bin/vmlet-controller"));
            let kubeconfig = kubeconfig::path(&node, program.name());
            command.arg("--kubeconfig").arg(kubeconfig);
            // A test that needs other settings than the defaults writes them, and restarts the program.
            let settings = layout.path("controller.toml");
            if settings.exists() {
                command.arg("--config").arg(settings);
            }
        }
        Program::VmletAgent => {
            command = run::command(layout.path("bin/vmlet-agent"));
            command.arg("--config").arg(layout.path("agent.toml"));
        }
        Program::Kubelet => {
            command.arg("--config").arg(layout.path("kubelet.json"));
            command
                .arg("--kubeconfig")
                .arg(kubeconfig::path(&node, &pki::kubelet(node.number)));
            command.args([
                "--root-dir",
                KUBELET_ROOT,
                "--cert-dir",
                "/var/lib/kubelet/pki",
            ]);
            command.args([
                "--hostname-override",
                &node.name(),
                "--node-ip",
                &node.address(),
            ]);
        }
        Program::KubeProxy => {
            command.arg("--config").arg(layout.path("kube-proxy.json"));
        }
        other => bail!("{other} is no program of a cluster"),
    }
    Ok(command)
}

fn apiserver(layout: &Layout, node: &Node) -> Vec<String> {
    let policy = configs::audit_policy(layout);
    let file = |flag: &str, name: &str| format!("--{flag}={}", node.pki(name).display());
    vec![
        format!("--etcd-servers={ETCD}"),
        format!("--service-cluster-ip-range={SERVICE_SUBNET}"),
        "--bind-address=0.0.0.0".to_owned(),
        format!("--secure-port={}", node.api_port),
        format!("--advertise-address={}", node_address(1)),
        file("tls-cert-file", "kube-apiserver.crt"),
        file("tls-private-key-file", "kube-apiserver.key"),
        file("client-ca-file", "ca.crt"),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        file("service-account-key-file", "service-accounts.pub"),
        file("service-account-signing-key-file", "service-accounts.key"),
        "--authorization-mode=Node,RBAC".to_owned(),
        file("kubelet-client-certificate", "kube-apiserver.crt"),
        file("kubelet-client-key", "kube-apiserver.key"),
        file("kubelet-certificate-authority", "ca.crt"),
        "--kubelet-preferred-address-types=InternalIP,Hostname".to_owned(),
        "--allow-privileged=true".to_owned(),
        format!("--audit-policy-file={}", policy.display()),
        format!("--audit-log-path={}", layout.log("audit").display()),
        "--audit-log-maxsize=100".to_owned(),
        "--audit-log-maxbackup=1".to_owned(),
    ]
}

/// Whether a program of the cluster works.
pub(crate) fn answers(layout: &Layout, program: Program) -> bool {
    let healthy = |port: u16, path: &str| healthy(layout, port, path).is_ok();
    match program {
        Program::Etcd => healthy(2379, "/health"),
        Program::KubeApiserver => node(layout).is_ok_and(|node| is_ready(layout, &node).is_ok()),
        // Health is behind TLS there; a listener comes after the first look at the cluster.
        Program::KubeControllerManager => listens(layout, 10257).is_ok(),
        Program::KubeScheduler => listens(layout, 10259).is_ok(),
        Program::Containerd => UnixStream::connect(containerd_socket(layout)).is_ok(),
        Program::VmletCriproxy => UnixStream::connect(proxy_socket(layout)).is_ok(),
        Program::Kubelet => healthy(10248, "/healthz"),
        Program::KubeProxy => healthy(10256, "/healthz"),
        Program::VmletController => healthy(9631, "/readyz"),
        Program::VmletAgent => healthy(super::AGENT_HEALTH_PORT, "/readyz"),
        _ => false,
    }
}

/// kubectl with the administrator's rights, from the host.
pub(super) fn kubectl(node: &Node) -> Command {
    let mut kubectl = run::command(workspace::tools_bin().join("kubectl"));
    // Its cache of the API must not land in the caller's home.
    kubectl
        .arg("--cache-dir")
        .arg(node.control.join("kubectl-cache"));
    kubectl.arg("--kubeconfig").arg(node.kubeconfig());
    kubectl
}

fn is_ready(layout: &Layout, node: &Node) -> Result<()> {
    // Cheap, and spares a process as long as no server listens.
    listens(layout, node.api_port)?;
    let ready = run::output(kubectl(node).args(["get", "--raw", "/readyz"]))?;
    ensure!(ready.trim() == "ok", "{ready}");
    Ok(())
}

fn node(layout: &Layout) -> Result<Node> {
    Record::read(layout)?
        .node
        .context("this stack is no node of a cluster")
}

fn listens(layout: &Layout, port: u16) -> Result<TcpStream> {
    netns::inside(&layout.netns_path(), || {
        Ok(TcpStream::connect(("127.0.0.1", port))?)
    })
}

/// Whether the status line of a page is 200.
fn healthy(layout: &Layout, port: u16, path: &str) -> Result<()> {
    let mut stream = listens(layout, port)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(4096).read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    let status = answer.lines().next().unwrap_or_default();
    ensure!(status.contains(" 200 "), "{status}");
    Ok(())
}
