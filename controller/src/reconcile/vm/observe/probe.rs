//! The machine's own TCP readiness probe: who makes it, and what the node says of it.
//!
//! Invariant: the controller connects to nothing. kubelet makes a probe that the pod has; the node
//! makes any other one, from the same network: both reach guests behind network policies. A result of
//! another probe than the present one does not count.
//! Failure: none; a node that cannot make probes is an answer.

use std::net::IpAddr;

use crds::names;
use crds::vm::TcpSocketProbe;
use crds::{GuestProbe, NodeProbe, ProbeOutcome};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::answer::Answer;
use super::pods;
use crate::reconcile::vm::pass::Pass;

/// How often a machine is probed when it does not say.
const PERIOD: u32 = 10;
/// How long a probe may take when the machine does not say.
const TIMEOUT: u32 = 1;
/// The first version of agent and daemon that make probes.
const SINCE: &str = "0.1.0";

/// Whether the pod has this probe. One that was built from an earlier specification may not.
pub(crate) fn is_kubelets(pass: &Pass<'_>, socket: &TcpSocketProbe) -> bool {
    let spec = pass.view.pod.as_deref().and_then(|pod| pod.spec.as_ref());
    let machine = spec.and_then(|spec| spec.containers.first());
    let probe = machine.and_then(|machine| machine.readiness_probe.as_ref());
    let port = probe.and_then(|probe| Some(&probe.tcp_socket.as_ref()?.port));
    socket.host.is_none() && port == Some(&IntOrString::Int(i32::from(socket.port)))
}

/// The probe that the node is to make of the machine, if it runs and has one that kubelet does not
/// make.
pub(crate) fn of_node(pass: &Pass<'_>) -> Option<NodeProbe> {
    let probe = pass.vm.spec.readiness_probe.as_ref()?;
    let socket = probe.tcp_socket.as_ref()?;
    let pod = pass.view.pod.as_deref()?;
    if !pods::runs(pod) || is_kubelets(pass, socket) {
        return None;
    }
    Some(NodeProbe {
        port: socket.port,
        host: socket.host.as_deref().map(usual_spelling),
        period_seconds: probe.period_seconds.unwrap_or(PERIOD).clamp(1, 3600),
        timeout_seconds: probe.timeout_seconds.unwrap_or(TIMEOUT).clamp(1, 3600),
    })
}

/// The node reports addresses so. What is none is refused by the node.
fn usual_spelling(host: &str) -> String {
    match host.parse::<IpAddr>() {
        Ok(address) => address.to_string(),
        Err(_) => host.to_owned(),
    }
}

/// What the node has found out about this probe; `None`: nothing yet.
pub(crate) fn answer(
    pass: &Pass<'_>,
    wanted: &NodeProbe,
    reported: Option<&GuestProbe>,
) -> Option<Answer> {
    let Some(reported) = reported.filter(|reported| reported.probe == *wanted) else {
        return obstacle(pass).map(Answer::Unsupported);
    };
    match reported.outcome {
        ProbeOutcome::Connected => Some(Answer::Yes),
        ProbeOutcome::Refused => Some(Answer::No(
            "the readiness probe fails: the port does not accept a connection from the node",
        )),
        ProbeOutcome::TimedOut => Some(Answer::No(
            "the readiness probe fails: the port does not answer the node in time",
        )),
        ProbeOutcome::NoAddress => Some(Answer::No(
            "the readiness probe fails: the machine has no address on eth0 of its pod",
        )),
        ProbeOutcome::NotAllowed => Some(Answer::No(
            "the readiness probe fails: its host is an address of the node, or one with a special \
             meaning, to which nodes do not connect for machines",
        )),
        ProbeOutcome::Unknown => None,
    }
}

/// Why the node makes no probe, as far as its agent has reported anything at all.
fn obstacle(pass: &Pass<'_>) -> Option<String> {
    let agents = &pass.ctx.stores.agents;
    let node = pass.view.pod.as_deref().and_then(pods::node)?;
    if !agents.are_listed() || agents.has(node, names::NODE_PROBES) {
        return None;
    }
    let Some(versions) = agents.versions(node) else {
        let text =
            format!("node {node} makes this probe, and has no vmlet-agent: check its pod there");
        return Some(text);
    };
    let reported = |version: &str| match version {
        "" => "none".to_owned(),
        version => version.to_owned(),
    };
    Some(format!(
        "node {node} makes this probe, which needs vmlet-agent and vmlet of version {SINCE} or later \
         with this feature; it has vmlet-agent {} and vmlet {}: upgrade the programs of the node",
        reported(&versions.agent),
        reported(&versions.daemon)
    ))
}
