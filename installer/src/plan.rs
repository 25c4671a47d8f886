//! What is to be done, in order.
//!
//! Invariant: the proxy answers before kubelet is pointed at it, and kubelet is off it before the proxy
//! stops. Each step can be repeated.
//! Failure: none; a plan is a list.

mod show;

use crate::changes::{Change, Reader};
use crate::proxy;

/// A step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Writes or removes a file.
    File(Change),
    /// Has the service manager read its units.
    Reload,
    Enable(String),
    Disable(String),
    Start(String),
    Stop(String),
    Restart(String),
    Await(Event),
    /// Removes the journal and the folders of the installation.
    Forget,
}

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// kubelet's health page says that it is well.
    KubeletHealthy,
    /// The proxy answers a call of CRI with the answer of kubelet's own runtime.
    ProxyAnswers,
    /// kubelet is healthy and connected to the proxy.
    KubeletBehindProxy,
    /// Nothing is connected to the proxy.
    ProxyUnused,
}

/// What a plan depends on, besides files.
#[derive(Debug, Clone, Default)]
pub(crate) struct Facts {
    /// The unit that runs kubelet.
    pub(crate) service: String,
    /// Whether the unit of the proxy is enabled, and active.
    pub(crate) is_enabled: bool,
    pub(crate) is_active: bool,
    /// Whether something is connected to the proxy.
    pub(crate) is_used: bool,
    /// Whether an operation was not finished: systemd and the proxy may not have seen its files.
    pub(crate) is_unfinished: bool,
    /// Whether it came to kubelet's files: kubelet may not have seen them.
    pub(crate) is_kubelet_touched: bool,
}

/// Puts kubelet behind the proxy, or replaces the proxy that it is behind.
pub(crate) fn inward(changes: Vec<Change>, facts: &Facts) -> Vec<Step> {
    let unit = proxy::UNIT.to_owned();
    let (proxy, kubelet) = by_reader(changes);
    let mut steps = Vec::new();
    let is_changed = !proxy.is_empty() || facts.is_unfinished;
    let is_reloaded = proxy.iter().any(Change::is_unit) || facts.is_unfinished;
    steps.extend(proxy.into_iter().map(Step::File));
    if is_reloaded {
        steps.push(Step::Reload);
    }
    if !facts.is_enabled {
        steps.push(Step::Enable(unit.clone()));
    }
    if !facts.is_active {
        steps.push(Step::Start(unit));
    } else if is_changed {
        steps.push(Step::Restart(unit));
    }
    if !steps.is_empty() {
        steps.push(Step::Await(Event::ProxyAnswers));
    }
    if !kubelet.is_empty() || facts.is_kubelet_touched {
        // After a crash kubelet may be unwell because of it.
        if !facts.is_kubelet_touched {
            steps.push(Step::Await(Event::KubeletHealthy));
        }
        restart(kubelet, facts, &mut steps);
    }
    if !steps.is_empty() {
        steps.push(Step::Await(Event::KubeletBehindProxy));
    }
    steps
}

/// Takes kubelet from the proxy, and removes the proxy.
pub(crate) fn outward(changes: Vec<Change>, facts: &Facts) -> Vec<Step> {
    let unit = proxy::UNIT.to_owned();
    let (proxy, kubelet) = by_reader(changes);
    let mut steps = Vec::new();
    if !kubelet.is_empty() || facts.is_used || facts.is_kubelet_touched {
        restart(kubelet, facts, &mut steps);
        steps.push(Step::Await(Event::KubeletHealthy));
    }
    if facts.is_active {
        steps.push(Step::Await(Event::ProxyUnused));
        steps.push(Step::Stop(unit.clone()));
    }
    if facts.is_enabled {
        steps.push(Step::Disable(unit));
    }
    let is_reloaded = proxy.iter().any(Change::is_unit) || facts.is_unfinished;
    steps.extend(proxy.into_iter().map(Step::File));
    if is_reloaded {
        steps.push(Step::Reload);
    }
    steps.push(Step::Forget);
    steps
}

fn restart(kubelet: Vec<Change>, facts: &Facts, steps: &mut Vec<Step>) {
    let is_reloaded = kubelet.iter().any(Change::is_unit) || facts.is_kubelet_touched;
    steps.extend(kubelet.into_iter().map(Step::File));
    if is_reloaded {
        steps.push(Step::Reload);
    }
    steps.push(Step::Restart(facts.service.clone()));
}

fn by_reader(changes: Vec<Change>) -> (Vec<Change>, Vec<Change>) {
    let is_proxy = |change: &Change| change.reader == Reader::Proxy;
    changes.into_iter().partition(is_proxy)
}

#[cfg(test)]
mod tests;
