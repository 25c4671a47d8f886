//! Services, DNS settings and host ports treat VM pods like other pods.
//!
//! Invariant: each way is a page fetched by the side that is named first.
//! Failure: the way that fails is named; pods, events and logs follow.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Cluster, Guest, container_pod, eventually, service, vm_pod};
use serde_json::{Value, json};

const READY: Duration = Duration::from_secs(300);
const GONE: Duration = Duration::from_secs(180);
const SERVE: &str = "hostname >/tmp/index.html; exec httpd -f -p 80 -h /tmp";
const NODE_PORT: u16 = 30_080;
const HOST_PORT: u16 = 18_080;

pub(super) async fn services_dns_and_host_ports_work_for_machines_and_containers_alike(
    cluster: &Cluster,
) -> Result<()> {
    cluster.apply(&container_pod("box", SERVE))?;
    cluster.apply(&machine())?;
    cluster.apply(&vm_pod("other"))?;
    for app in ["box", "machine", "other"] {
        cluster.apply(&service_of(app))?;
    }
    for pod in ["box", "machine", "other"] {
        cluster.await_ready(&format!("pod/{pod}"), READY)?;
    }
    let guest = |pod| Guest::in_pod(cluster.stack(), pod);
    let machine = guest("machine")?;
    let other = guest("other")?;

    for (from, to) in [("box", "machine"), ("box", "other")] {
        page(
            &format!("container {from} to VM {to}"),
            to,
            &service_ip(cluster, to)?,
            |url| cluster.kubectl(&["exec", from, "--", "wget", "-q", "-O", "-", url]),
        )
        .await?;
    }
    page(
        "container to VM's address",
        "other",
        &cluster.pod_ip("other")?,
        |url| cluster.kubectl(&["exec", "box", "--", "wget", "-q", "-O", "-", url]),
    )
    .await?;
    page(
        "VM to container",
        "box",
        &service_ip(cluster, "box")?,
        |url| machine.wget(url),
    )
    .await?;
    page("VM to VM", "other", &service_ip(cluster, "other")?, |url| {
        machine.wget(url)
    })
    .await?;
    page(
        "VM to VM",
        "machine",
        &service_ip(cluster, "machine")?,
        |url| other.wget(url),
    )
    .await?;
    page(
        "VM to pod address",
        "other",
        &cluster.pod_ip("other")?,
        |url| machine.wget(url),
    )
    .await?;
    // A Service that leads back to the machine itself needs the plugin's hairpin mode.
    page(
        "VM to itself",
        "machine",
        &service_ip(cluster, "machine")?,
        |url| machine.wget(url),
    )
    .await?;

    let address = node_address(cluster)?;
    for (way, url) in [
        ("NodePort", format!("http://{address}:{NODE_PORT}/")),
        ("host port", format!("http://{address}:{HOST_PORT}/")),
    ] {
        let text = cluster.stack().fetch(&url, READY).await.context(way)?;
        ensure!(text.contains("machine"), "{way}: {text}");
    }
    page(
        "VM to NodePort",
        "machine",
        &format!("{address}:{NODE_PORT}"),
        |url| other.wget(url),
    )
    .await?;

    let resolver = machine.run(&["cat", "/etc/resolv.conf"])?;
    for line in [
        "nameserver 10.96.0.53",
        "nameserver 192.0.2.53",
        "example.test",
        "cluster.test",
    ] {
        ensure!(
            resolver.contains(line),
            "no {line:?} in the guest's resolv.conf:\n{resolver}"
        );
    }
    for pod in ["box", "machine", "other"] {
        cluster.delete(&format!("pod/{pod}"), GONE)?;
    }
    Ok(())
}

/// A VM pod with a host port and DNS settings of its own.
fn machine() -> Value {
    let mut pod = vm_pod("machine");
    let spec = &mut pod["spec"];
    spec["containers"][0]["ports"] = json!([{ "containerPort": 80, "hostPort": HOST_PORT }]);
    spec["dnsPolicy"] = json!("None");
    spec["dnsConfig"] = json!({
        "nameservers": ["10.96.0.53", "192.0.2.53"],
        "searches": ["example.test", "cluster.test"],
    });
    pod
}

/// The machine's is also a NodePort.
fn service_of(app: &str) -> Value {
    let mut made = service(app);
    if app == "machine" {
        made["spec"]["type"] = json!("NodePort");
        made["spec"]["ports"][0]["nodePort"] = json!(NODE_PORT);
    }
    made
}

fn service_ip(cluster: &Cluster, name: &str) -> Result<String> {
    cluster.kubectl(&["get", "service", name, "-o", "jsonpath={.spec.clusterIP}"])
}

fn node_address(cluster: &Cluster) -> Result<String> {
    let path = "jsonpath={.items[0].status.addresses[?(@.type=='InternalIP')].address}";
    cluster.kubectl(&["get", "nodes", "-o", path])
}

/// Fetches until the page names who should have answered.
async fn page(
    way: &str,
    whose: &str,
    address: &str,
    fetch: impl Fn(&str) -> Result<String>,
) -> Result<()> {
    let url = format!("http://{address}/");
    eventually(READY, way, || async {
        let text = fetch(&url)?;
        ensure!(text.contains(whose), "{url} answers {text:?}, not {whose}");
        Ok(())
    })
    .await
}
