//! The result of a machine's own TCP readiness probe.
//!
//! Invariant: a machine is probed exactly while it runs and has such a probe that kubelet does not
//! make: kubelet's reaches guests behind network policies, and Services go by it.
//! Failure: none; an address that is not known yet is an answer of the probe.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crds::vm::TcpSocketProbe;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::pods;
use crate::reconcile::vm::pass::Pass;
use crate::shared::prober::Target;

/// How often a machine is probed when it does not say.
const PERIOD: u32 = 10;
/// How long a probe may take when the machine does not say.
const TIMEOUT: u32 = 1;

/// Registers the machine's probe if it has one of this kind and runs, else takes it out.
pub(crate) fn sync(pass: &Pass<'_>) {
    let prober = &pass.ctx.shared.prober;
    let probe = pass.vm.spec.readiness_probe.as_ref();
    let socket = probe.and_then(|p| p.tcp_socket.as_ref());
    let is_on = pass.view.pod.as_deref().is_some_and(pods::runs);
    let socket = socket.filter(|socket| is_on && !is_kubelets(pass, socket));
    let (Some(probe), Some(socket)) = (probe, socket) else {
        prober.unregister(pass.key);
        return;
    };
    let seconds = |s: Option<u32>, usual: u32| {
        Duration::from_secs(u64::from(s.unwrap_or(usual).clamp(1, 3600)))
    };
    let target = Target {
        address: address(pass, socket),
        period: seconds(probe.period_seconds, PERIOD),
        timeout: seconds(probe.timeout_seconds, TIMEOUT),
    };
    prober.register(pass.key, target);
}

/// Whether the pod has this probe. One that was built from an earlier specification may not.
pub(crate) fn is_kubelets(pass: &Pass<'_>, socket: &TcpSocketProbe) -> bool {
    let spec = pass.view.pod.as_deref().and_then(|pod| pod.spec.as_ref());
    let machine = spec.and_then(|spec| spec.containers.first());
    let probe = machine.and_then(|machine| machine.readiness_probe.as_ref());
    let port = probe.and_then(|probe| Some(&probe.tcp_socket.as_ref()?.port));
    socket.host.is_none() && port == Some(&IntOrString::Int(i32::from(socket.port)))
}

fn address(pass: &Pass<'_>, socket: &TcpSocketProbe) -> Option<SocketAddr> {
    let network = pass.seen().and_then(|s| s.network.as_ref());
    let primary = network.and_then(|n| n.primary_ip4.as_ref().or(n.primary_ip6.as_ref()));
    let host = socket.host.as_ref().or(primary)?;
    let ip: IpAddr = host.parse().ok()?;
    Some(SocketAddr::new(ip, socket.port))
}
