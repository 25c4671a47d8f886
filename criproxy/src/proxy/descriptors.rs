//! Descriptors of pod metrics, and how a secondary's metrics become the described ones.
//!
//! Invariant: one description per name, the primary's when it has one. The label values of a
//! secondary's metric are put in the described order: a label that the description lacks is left
//! out, one that the secondary lacks is empty. No metric passes that fits no description or repeats
//! another's name and labels: it would break kubelet's whole export.
//! Failure: the primary's; a secondary's is left out. After a restart of the proxy the runtimes are
//! asked again: kubelet asks only once.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use cri_proto::v1;
use futures_util::future::{join, join_all};
use http::Response;
use prost::Message;

use super::answer::merge;
use super::{Call, Proxy, Secondary};
use crate::state::BackendIndex;
use crate::wire::{Body, tagged};

const PATH: &str = "/runtime.v1.RuntimeService/ListMetricDescriptors";

/// What kubelet has received.
#[derive(Debug, Default)]
pub(super) struct Accepted(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// Names, and their labels' names; `None` until the primary has answered.
    names: Option<BTreeMap<String, Vec<String>>>,
    /// How each secondary's metrics become these.
    orders: BTreeMap<BackendIndex, BTreeMap<String, Order>>,
}

/// Where the described labels are among those of a runtime.
#[derive(Debug)]
struct Order {
    /// How many labels the runtime's own description has.
    labels: usize,
    places: Vec<Option<usize>>,
}

impl Proxy {
    /// Answers with the descriptors of all runtimes, one per name.
    pub(super) async fn metric_descriptors(&self, call: &Call, message: &Bytes) -> Response<Body> {
        let others = join_all(self.secondaries.iter().map(|secondary| async {
            // kubelet asks once: one that is about to come up is worth a moment.
            let mut up = secondary.backend.link.watch();
            let known = self.has_connected(secondary);
            if known && secondary.backend.link.get().await.is_err() {
                let _ =
                    tokio::time::timeout(self.limits.fanout_timeout.get(), up.wait_for(|up| *up))
                        .await;
            }
            let answer = secondary
                .query(call.name, call.copy(message), &self.metrics)
                .await;
            let list = answer.ok()?.message;
            Some((secondary.backend.index, list))
        }));
        let primary = self.primary.unary(call.name, call.copy(message));
        match join(primary, others).await {
            (Ok(answer), others) => {
                let others: Vec<_> = others.into_iter().flatten().collect();
                let more = self.accepted.renew(&answer.message, &others);
                merge(answer, more)
            }
            (Err(failure), _) => failure.into_response(&self.primary),
        }
    }

    /// A secondary's metrics as they are described to kubelet.
    pub(super) async fn described(&self, secondary: &Secondary, metrics: Bytes) -> Bytes {
        let index = secondary.backend.index;
        let nothing = Bytes::new();
        let call = Call::own(PATH, "refresh");
        if !self.accepted.is_known() {
            let _ = Box::pin(self.metric_descriptors(&call, &nothing)).await;
        }
        if !self.accepted.knows(index) {
            let request = call.copy(&nothing);
            if let Ok(answer) = secondary.query("refresh", request, &self.metrics).await {
                self.accepted.learn(index, &answer.message);
            }
        }
        self.accepted.only(index, metrics)
    }
}

impl Accepted {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_known(&self) -> bool {
        self.lock().names.is_some()
    }

    fn knows(&self, index: BackendIndex) -> bool {
        self.lock().orders.contains_key(&index)
    }

    /// Takes the primary's descriptions, and gives those that the others have in addition.
    fn renew(&self, primary: &Bytes, others: &[(BackendIndex, Bytes)]) -> Vec<Bytes> {
        let names = decoded(primary).map(|found| (found.name, found.label_keys));
        let mut known = self.lock();
        known.names = Some(names.collect());
        known.orders.clear();
        let others = others.iter();
        others
            .flat_map(|(index, list)| known.learn(*index, list))
            .collect()
    }

    /// Takes a secondary's descriptions when the primary's are there.
    fn learn(&self, index: BackendIndex, list: &Bytes) {
        self.lock().learn(index, list);
    }

    /// A secondary's metrics without those that fit no description.
    fn only(&self, index: BackendIndex, metrics: Bytes) -> Bytes {
        let known = self.lock();
        let Some(orders) = known.orders.get(&index) else {
            return Bytes::new();
        };
        let Ok(mut list) = v1::ListPodSandboxMetricsResponse::decode(metrics) else {
            return Bytes::new();
        };
        let mut seen = HashSet::new();
        let mut fits = |metric: &mut v1::Metric| {
            let order = orders.get(&metric.name);
            let Some(order) = order.filter(|order| order.labels == metric.label_values.len())
            else {
                return false;
            };
            let value = |place: &Option<usize>| {
                let value = place.and_then(|place| metric.label_values.get(place));
                value.cloned().unwrap_or_default()
            };
            metric.label_values = order.places.iter().map(value).collect();
            seen.insert((metric.name.clone(), metric.label_values.clone()))
        };
        for pod in &mut list.pod_metrics {
            pod.metrics.retain_mut(&mut fits);
            for container in &mut pod.container_metrics {
                container.metrics.retain_mut(&mut fits);
            }
        }
        list.encode_to_vec().into()
    }
}

impl Known {
    /// Gives the descriptions of names that were not there.
    fn learn(&mut self, index: BackendIndex, list: &Bytes) -> Vec<Bytes> {
        let Some(names) = &mut self.names else {
            return Vec::new();
        };
        let mut orders = BTreeMap::new();
        let mut more = Vec::new();
        for descriptor in decoded(list) {
            let keys = names.entry(descriptor.name.clone()).or_insert_with(|| {
                more.push(tagged(1, &descriptor.encode_to_vec()));
                descriptor.label_keys.clone()
            });
            let own = &descriptor.label_keys;
            if keys != own {
                let metric = descriptor.name.as_str();
                tracing::debug!(metric, "labels of a metric adapted to the primary's");
            }
            let place = |key| own.iter().position(|found| found == key);
            let order = Order {
                labels: own.len(),
                places: keys.iter().map(place).collect(),
            };
            orders.insert(descriptor.name, order);
        }
        self.orders.insert(index, orders);
        more
    }
}

fn decoded(list: &Bytes) -> impl Iterator<Item = v1::MetricDescriptor> {
    let list = v1::ListMetricDescriptorsResponse::decode(list.clone());
    list.unwrap_or_default().descriptors.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER: BackendIndex = BackendIndex(1);

    fn list(descriptors: &[(&str, &[&str])]) -> Bytes {
        let descriptors = descriptors.iter().map(|(name, keys)| v1::MetricDescriptor {
            name: (*name).into(),
            help: String::new(),
            label_keys: keys.iter().map(|key| (*key).into()).collect(),
        });
        let descriptors = descriptors.collect();
        let list = v1::ListMetricDescriptorsResponse { descriptors };
        list.encode_to_vec().into()
    }

    fn metric(name: &str, labels: &[&str]) -> v1::Metric {
        v1::Metric {
            name: name.into(),
            label_values: labels.iter().map(|label| (*label).into()).collect(),
            ..v1::Metric::default()
        }
    }

    /// Name and labels of what passes.
    fn passed(accepted: &Accepted, metrics: Vec<v1::Metric>) -> Vec<(String, Vec<String>)> {
        let list = v1::ListPodSandboxMetricsResponse {
            pod_metrics: vec![v1::PodSandboxMetrics {
                pod_sandbox_id: "p".into(),
                metrics,
                ..v1::PodSandboxMetrics::default()
            }],
        };
        let kept = accepted.only(OTHER, list.encode_to_vec().into());
        let kept = v1::ListPodSandboxMetricsResponse::decode(kept).unwrap();
        let kept = kept.pod_metrics.into_iter().flat_map(|pod| pod.metrics);
        kept.map(|metric| (metric.name, metric.label_values))
            .collect()
    }

    #[test]
    fn the_primarys_description_wins_and_a_secondarys_labels_are_put_in_its_order() {
        let accepted = Accepted::default();
        let primary = list(&[("cpu", &["id", "zone"]), ("disk", &["id"])]);
        let other = list(&[
            ("cpu", &["name", "id"]),
            ("vm", &["id"]),
            ("disk", &["id", "device"]),
        ]);
        let more = accepted.renew(&primary, &[(OTHER, other)]);
        let more: Vec<_> = decoded(&more.concat().into()).map(|d| d.name).collect();
        assert_eq!(more, ["vm"]);
        let kept = passed(
            &accepted,
            vec![
                metric("cpu", &["n", "1"]),
                metric("vm", &["1"]),
                metric("disk", &["1", "sda"]),
                metric("disk", &["1", "sdb"]),
                metric("disk", &["2", "sda"]),
                metric("vm", &["1", "2"]),
                metric("gone", &["1"]),
            ],
        );
        let own = |name: &str, labels: &[&str]| {
            let metric = metric(name, labels);
            (metric.name, metric.label_values)
        };
        let expected = [
            own("cpu", &["1", ""]),
            own("vm", &["1"]),
            own("disk", &["1"]),
            own("disk", &["2"]),
        ];
        assert_eq!(kept, expected);
    }

    #[test]
    fn metrics_of_a_runtime_that_has_described_nothing_are_left_out() {
        let accepted = Accepted::default();
        accepted.learn(OTHER, &list(&[("vm", &["id"])]));
        assert!(!accepted.is_known() && !accepted.knows(OTHER));
        accepted.renew(&list(&[]), &[]);
        assert!(passed(&accepted, vec![metric("vm", &["1"])]).is_empty());
        accepted.learn(OTHER, &list(&[("vm", &["id"])]));
        assert_eq!(passed(&accepted, vec![metric("vm", &["1"])]).len(), 1);
    }
}
