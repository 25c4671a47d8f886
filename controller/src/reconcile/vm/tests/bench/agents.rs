//! Agents of nodes, as their leases show them.
//!
//! Invariant: each report is a renewal.
//! Failure: none of its own.

use std::sync::atomic::{AtomicU32, Ordering};

use crds::names;
use kube::runtime::watcher::Event;
use serde_json::{Value, json};

use super::{Bench, VMS};

static RENEWALS: AtomicU32 = AtomicU32::new(1);

impl Bench {
    /// The agent of a node reports this of its daemon.
    pub(in crate::reconcile::vm::tests) fn agent(&mut self, node: &str, daemon: &Value) {
        self.agent_reports(node, &json!({ "daemon": daemon }));
    }

    /// The agent of a node reports these facts.
    pub(in crate::reconcile::vm::tests) fn agent_reports(&mut self, node: &str, facts: &Value) {
        let mut all = json!({ "daemon": { "reachable": true } });
        json_patch::merge(&mut all, facts);
        let renewal = RENEWALS.fetch_add(1, Ordering::Relaxed);
        let lease = json!({
            "metadata": {
                "name": format!("vmlet-node-{node}"),
                "annotations": { names::NODE_FACTS: all.to_string() },
            },
            "spec": { "renewTime": format!("2026-01-01T00:00:00.{renewal:06}Z") },
        });
        let lease = serde_json::from_value(lease).unwrap();
        self.ctx.stores.agents.apply(&Event::Apply(lease));
    }

    /// The leases are listed: agents of these nodes live, and their daemons read and pull images.
    pub(in crate::reconcile::vm::tests) fn agents(&mut self, nodes: &[&str]) {
        self.ctx.stores.agents.apply(&Event::Init);
        for node in nodes {
            self.agent(node, &json!({ "taskKinds": ["InspectImage", "PullImage"] }));
        }
        self.ctx.stores.agents.apply(&Event::InitDone);
    }

    /// The leases are listed, and node `n1` makes readiness probes.
    pub(in crate::reconcile::vm::tests) fn probing(&mut self) {
        self.agents(&["n1"]);
        self.agent_reports("n1", &json!({ "features": [names::NODE_PROBES] }));
    }

    /// The leases are listed, and node `n1` flattens disks.
    pub(in crate::reconcile::vm::tests) fn promoting(&mut self) {
        self.agents(&["n1"]);
        self.agent_reports("n1", &json!({ "features": [names::DISK_PROMOTION] }));
    }

    /// The node n1 flattens disks, those of running machines too.
    pub(in crate::reconcile::vm::tests) fn promoting_online(&mut self) {
        self.agents(&["n1"]);
        let features = [names::DISK_PROMOTION, names::ONLINE_DISK_PROMOTION];
        self.agent_reports("n1", &json!({ "features": features }));
    }

    /// A machine that ran, and is off, on a node that flattens disks.
    pub(in crate::reconcile::vm::tests) async fn off(&mut self, mode: &str) {
        self.promoting();
        let spec = json!({ "runStrategy": "Always", "promoteDisksMode": mode });
        self.running(json!({ "spec": spec })).await;
        self.edit(VMS, "vm", json!({ "spec": { "runStrategy": "Halted" } }));
        self.settle().await.ok();
        self.end("vm", 0, "Stopped");
        self.settle().await.ok();
        assert!(!self.has_pod());
    }
}
