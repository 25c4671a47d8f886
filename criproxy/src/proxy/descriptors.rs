//! Descriptors of pod metrics, and which of a secondary's descriptors match.
//!
//! Invariant: one description per name, the primary's when it has one. A secondary's metric is
//! passed on only if its number of labels is the described one; one that does not fit would break
//! kubelet's whole export.
//! Failure: the primary's; a secondary's is left out.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use cri_proto::v1;
use futures_util::future::{join, join_all};
use http::Response;
use prost::Message;

use super::answer::merge;
use super::{Call, Proxy};
use crate::wire::{Body, tagged};

/// Names, and their labels' names, that kubelet has received.
#[derive(Debug, Default)]
pub(super) struct Accepted(Mutex<Option<BTreeMap<String, Vec<String>>>>);

impl Proxy {
    /// Of all, one per name.
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
            answer.map_or_else(|_| Bytes::new(), |answer| answer.message)
        }));
        let primary = self.primary.unary(call.name, call.copy(message));
        match join(primary, others).await {
            (Ok(answer), others) => {
                let more = self.accepted.renew(&answer.message, &others);
                merge(answer, more)
            }
            (Err(failure), _) => failure.into_response(&self.primary),
        }
    }
}

impl Accepted {
    /// Takes the primary's descriptions, and gives those of the others that go with them.
    fn renew(&self, primary: &Bytes, others: &[Bytes]) -> Vec<Bytes> {
        let mut names = BTreeMap::new();
        for descriptor in decoded(primary) {
            names.insert(descriptor.name, descriptor.label_keys);
        }
        let mut more = Vec::new();
        for descriptor in others.iter().flat_map(decoded) {
            match names.get(&descriptor.name) {
                None => {
                    more.push(tagged(1, &descriptor.encode_to_vec()));
                    names.insert(descriptor.name, descriptor.label_keys);
                }
                Some(keys) if *keys == descriptor.label_keys => {}
                Some(_) => {
                    let name = descriptor.name;
                    tracing::warn!(metric = %name, "metric descriptor dropped: labels differ");
                }
            }
        }
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(names);
        more
    }

    /// A secondary's metrics without those that fit no description.
    pub(super) fn only(&self, metrics: Bytes) -> Bytes {
        let names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(names) = &*names else {
            return metrics;
        };
        let Ok(mut list) = v1::ListPodSandboxMetricsResponse::decode(metrics) else {
            return Bytes::new();
        };
        let fits = |metric: &v1::Metric| {
            let keys = names.get(&metric.name);
            keys.is_some_and(|keys| keys.len() == metric.label_values.len())
        };
        for pod in &mut list.pod_metrics {
            pod.metrics.retain(fits);
            for container in &mut pod.container_metrics {
                container.metrics.retain(fits);
            }
        }
        list.encode_to_vec().into()
    }
}

fn decoded(list: &Bytes) -> Vec<v1::MetricDescriptor> {
    let list = v1::ListMetricDescriptorsResponse::decode(list.clone());
    list.unwrap_or_default().descriptors
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn the_primarys_description_wins_and_only_fitting_metrics_pass() {
        let accepted = Accepted::default();
        let primary = list(&[("cpu", &["id"])]);
        let other = list(&[("cpu", &["id", "name"]), ("vm", &["id"])]);
        let more = accepted.renew(&primary, &[other]);
        assert_eq!(decoded(&more.concat().into())[0].name, "vm");
        assert_eq!(more.len(), 1);

        let metric = |name: &str, labels: usize| v1::Metric {
            name: name.into(),
            label_values: vec!["x".into(); labels],
            ..Default::default()
        };
        let metrics = v1::ListPodSandboxMetricsResponse {
            pod_metrics: vec![v1::PodSandboxMetrics {
                pod_sandbox_id: "p".into(),
                metrics: vec![metric("cpu", 2), metric("vm", 1), metric("gone", 1)],
                ..Default::default()
            }],
        };
        let kept = accepted.only(metrics.encode_to_vec().into());
        let kept = v1::ListPodSandboxMetricsResponse::decode(kept).unwrap();
        let names: Vec<_> = kept.pod_metrics[0]
            .metrics
            .iter()
            .map(|m| &*m.name)
            .collect();
        assert_eq!(names, ["vm"]);
    }
}
