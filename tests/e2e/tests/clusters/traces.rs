//! Traces of a kubelet that traces: its spans, and those of the daemon below them.
//!
//! Invariant: kubelet and the daemon send their spans to one collector in the node's network, and
//! the CRI proxy is between the two.
//! Failure: the requests whose spans are missing, with the spans that arrived.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Cluster, eventually, vm_pod};
use nix::sys::signal::Signal;
use otel::collector::{Arrived, Collector};
use serde_json::json;

const READY: Duration = Duration::from_secs(200);
const GONE: Duration = Duration::from_secs(180);

/// The requests of a pod's life, which kubelet sends while it syncs the pod.
const REQUESTS: [&str; 6] = [
    "RuntimeService/RunPodSandbox",
    "ImageService/PullImage",
    "RuntimeService/CreateContainer",
    "RuntimeService/StartContainer",
    "RuntimeService/StopContainer",
    "RuntimeService/StopPodSandbox",
];

pub(super) async fn requests_and_their_steps_are_in_the_traces_of_kubelet(
    cluster: &Cluster,
) -> Result<()> {
    let stack = cluster.stack();
    let collector = Collector::at(stack.listen()?).await;
    let endpoint = collector.endpoint();
    let file = stack.dir().join("vmlet.toml");
    let settings = std::fs::read_to_string(&file)?;
    // No request is traced by the daemon's own decision.
    let traced = format!("{settings}\n[tracing]\nendpoint = \"{endpoint}\"\n");
    std::fs::write(&file, traced)?;
    stack.kill("vmlet", Signal::SIGTERM).await?;
    stack.restart("vmlet")?;
    let address = endpoint.trim_start_matches("http://").to_owned();
    cluster.configure_kubelet(|kubelet| {
        kubelet["tracing"] = json!({"endpoint": address, "samplingRatePerMillion": 1_000_000});
    })?;
    cluster.await_condition("node/node1", "condition=Ready", READY)?;

    let mut pod = vm_pod("vm");
    pod["spec"]["containers"][0]["imagePullPolicy"] = json!("Always");
    cluster.apply(&pod)?;
    cluster.await_ready("pod/vm", READY)?;
    cluster.delete("pod/vm", GONE)?;
    eventually(READY, "spans of kubelet and of the daemon", || async {
        let spans = collector.spans();
        REQUESTS.iter().try_for_each(|name| joined(&spans, name))
    })
    .await?;
    let spans = collector.spans();
    let start = of_daemon(&spans, "RuntimeService/StartContainer").context("a start")?;
    let steps = spans.iter().filter(|s| {
        s.span.trace_id == start.span.trace_id && s.span.parent_span_id == start.span.span_id
    });
    ensure!(steps.count() > 0, "no step below {start:?}");
    Ok(())
}

/// An error unless the daemon's span of the request is a child of a span that kubelet sent.
fn joined(spans: &[Arrived], request: &str) -> Result<()> {
    let names = || spans.iter().map(|s| (service(s), s.span.name.as_str()));
    let call =
        of_daemon(spans, request).with_context(|| format!("no {request}: {:?}", seen(names())))?;
    let parent = spans.iter().find(|s| {
        s.span.span_id == call.span.parent_span_id && s.span.trace_id == call.span.trace_id
    });
    let parent = parent.with_context(|| format!("no parent of {call:?}: {:?}", seen(names())))?;
    ensure!(service(parent) == "kubelet", "{parent:?} above {call:?}");
    Ok(())
}

fn of_daemon<'a>(spans: &'a [Arrived], request: &str) -> Option<&'a Arrived> {
    let name = format!("runtime.v1.{request}");
    let mut of_daemon = spans.iter().filter(|s| service(s) == "vmlet");
    of_daemon.find(|s| s.span.name == name)
}

/// The program that sent a span.
fn service(arrived: &Arrived) -> &str {
    arrived.of_resource("service.name").unwrap_or_default()
}

fn seen<'a>(spans: impl Iterator<Item = (&'a str, &'a str)>) -> HashSet<(&'a str, &'a str)> {
    spans.collect()
}
