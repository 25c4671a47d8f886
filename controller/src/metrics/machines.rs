//! Series of each machine, of each image and of the tasks, made from the stores at each scrape.
//!
//! Invariant: a machine that no longer exists, or a condition that it no longer has, has no series;
//! nothing is kept.
//! Failure: none.

use std::collections::BTreeMap;
use std::fmt;

use crds::conditions::{CREATED, find};
use crds::{PowerState, TaskKind, VirtualMachine};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::stores::{Key, Stores};

mod images;

/// Series of the machines, the images and the tasks in the stores.
pub(super) struct Machines(Stores);

impl Machines {
    pub(super) fn new(stores: Stores) -> Self {
        Self(stores)
    }
}

impl fmt::Debug for Machines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Machines")
    }
}

type Labels<const N: usize> = [(&'static str, String); N];

impl Collector for Machines {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let vms = self.0.vms.state();
        let vms = || vms.iter().map(|vm| (Key::from_object(&**vm), &**vm));
        gauges(
            &mut encoder,
            "vm_status_condition_status",
            "Conditions of machines: 1 True, 0 False, -1 Unknown",
            vms().flat_map(|(key, vm)| conditions(&key, vm)),
        )?;
        gauges(
            &mut encoder,
            "vm_status_phase",
            "Machines by phase",
            vms().map(|(key, vm)| (with(&key, [("phase", phase(vm).to_owned())]), 1)),
        )?;
        gauges(
            &mut encoder,
            "vm_powerstate",
            "Wanted and observed power of machines",
            vms().map(|(key, vm)| (with(&key, power(vm)), 1)),
        )?;
        gauges(
            &mut encoder,
            "vm_status_ip",
            "Whether a machine has an address",
            vms().map(|(key, vm)| (with(&key, []), i64::from(has_address(vm)))),
        )?;
        images::encode(&mut encoder, &self.0)?;
        let mut tasks = BTreeMap::<(TaskKind, String), i64>::new();
        for task in self.0.tasks.state() {
            let state = task.status.as_ref().and_then(|status| status.state);
            if !state.is_some_and(crds::TaskState::is_final) {
                let node = task.spec.node_name.clone();
                *tasks.entry((task.spec.kind, node)).or_default() += 1;
            }
        }
        let tasks = tasks.into_iter().map(|((kind, node), count)| {
            let labels = [("kind", format!("{kind:?}")), ("node", node)];
            (labels.to_vec(), count)
        });
        gauges(
            &mut encoder,
            "live_tasks",
            "Tasks that have not ended",
            tasks,
        )?;
        let sizes = self.0.sizes().into_iter().map(|(kind, size)| {
            let labels = vec![("kind", kind.to_owned())];
            (labels, i64::try_from(size).unwrap_or(i64::MAX))
        });
        gauges(&mut encoder, "store_objects", "Objects in memory", sizes)
    }
}

fn gauges(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    series: impl Iterator<Item = (Vec<(&'static str, String)>, i64)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in series {
        let labels = Set(labels);
        let series = family.encode_family(&labels)?;
        ConstGauge::new(value).encode(series)?;
    }
    Ok(())
}

#[derive(Debug)]
struct Set(Vec<(&'static str, String)>);

impl EncodeLabelSet for Set {
    fn encode(
        &self,
        encoder: &mut prometheus_client::encoding::LabelSetEncoder<'_>,
    ) -> fmt::Result {
        EncodeLabelSet::encode(&self.0, encoder)
    }
}

fn with<const N: usize>(key: &Key, more: Labels<N>) -> Vec<(&'static str, String)> {
    let mut all = vec![
        ("vm_name", key.name.clone()),
        ("vm_namespace", key.namespace.clone()),
    ];
    all.extend(more);
    all
}

fn conditions(key: &Key, vm: &VirtualMachine) -> Vec<(Vec<(&'static str, String)>, i64)> {
    let conditions = vm.status.iter().flat_map(|status| &status.conditions);
    conditions
        .map(|condition| {
            let labels = [
                ("condition_type", condition.type_.clone()),
                ("condition_reason", condition.reason.clone()),
            ];
            let value = match condition.status.as_str() {
                "True" => 1,
                "False" => 0,
                _ => -1,
            };
            (with(key, labels), value)
        })
        .collect()
}

fn phase(vm: &VirtualMachine) -> &'static str {
    let conditions = vm.status.as_ref().map(|status| &status.conditions);
    let created = conditions.and_then(|all| find(all, CREATED));
    match created.map(|condition| condition.status.as_str()) {
        Some("True") => "Created",
        Some("Unknown") => "Unknown",
        _ => "Creating",
    }
}

fn power(vm: &VirtualMachine) -> Labels<2> {
    let word = |state: Option<PowerState>| state.map(|s| format!("{s:?}")).unwrap_or_default();
    let specified = match (vm.spec.power_state, vm.spec.run_strategy, vm.spec.running) {
        (Some(state), _, _) => word(Some(state)),
        (None, Some(strategy), _) => format!("{strategy:?}"),
        (None, None, Some(true)) => "Always".to_owned(),
        (None, None, _) => "Halted".to_owned(),
    };
    let observed = vm.status.as_ref().and_then(|status| status.power_state);
    [("spec", specified), ("status", word(observed))]
}

fn has_address(vm: &VirtualMachine) -> bool {
    let network = vm
        .status
        .as_ref()
        .and_then(|status| status.network.as_ref());
    network.is_some_and(|n| n.primary_ip4.is_some() || n.primary_ip6.is_some())
}
