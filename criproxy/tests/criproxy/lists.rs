//! Lists of both runtimes in one.
//!
//! Invariant: each entry appears once, whichever way it is requested.
//! Failure: the assertion shows the ids.

use cri_proto::v1;
use tonic::Code;

use crate::environment::TestEnvironment;

#[tokio::test]
async fn lists_hold_what_both_have_the_primarys_first() {
    let (_env, mut cri) = TestEnvironment::start().await;
    let vm = cri.run("vmlet", "").await.unwrap();
    let pod = cri.run("", "").await.unwrap();
    let vm_container = cri.container(&vm).await.unwrap();
    let container = cri.container(&pod).await.unwrap();
    assert_eq!(cri.sandboxes().await.unwrap(), [pod, vm]);
    assert_eq!(
        cri.containers().await.unwrap(),
        [container.clone(), vm_container.clone()]
    );
    let request = v1::ListContainerStatsRequest::default();
    let stats = cri
        .runtime
        .list_container_stats(request)
        .await
        .unwrap()
        .into_inner()
        .stats;
    let ids: Vec<_> = stats
        .into_iter()
        .map(|s| s.attributes.unwrap().id)
        .collect();
    assert_eq!(ids, [container, vm_container]);
}

#[tokio::test]
async fn a_filter_that_names_an_object_goes_to_its_owner_alone() {
    let (env, mut cri) = TestEnvironment::start().await;
    let vm = cri.run("vmlet", "").await.unwrap();
    let pod = cri.run("", "").await.unwrap();
    for (id, owner, other) in [
        (vm, &env.secondary, &env.primary),
        (pod, &env.primary, &env.secondary),
    ] {
        env.primary.calls();
        env.secondary.calls();
        let filter = v1::PodSandboxFilter {
            id: id[..20].into(),
            ..Default::default()
        };
        let request = v1::ListPodSandboxRequest {
            filter: Some(filter),
        };
        let answer = cri
            .runtime
            .list_pod_sandbox(request)
            .await
            .unwrap()
            .into_inner();
        assert_eq!(answer.items.len(), 1);
        assert_eq!(answer.items[0].id, id);
        assert!(owner.was_called("ListPodSandbox"));
        assert!(!other.was_called("ListPodSandbox"));

        let filter = v1::ContainerFilter {
            pod_sandbox_id: id,
            ..Default::default()
        };
        let request = v1::ListContainersRequest {
            filter: Some(filter),
        };
        cri.runtime.list_containers(request).await.unwrap();
        assert!(owner.was_called("ListContainers"));
        assert!(!other.was_called("ListContainers"));
    }
}

#[tokio::test]
async fn a_filter_by_label_goes_to_both() {
    let (_env, mut cri) = TestEnvironment::start().await;
    let vm = cri.run("vmlet", "").await.unwrap();
    let vm_container = cri.container(&vm).await.unwrap();
    let pod = cri.run("", "").await.unwrap();
    cri.container(&pod).await.unwrap();
    let filter = v1::ContainerFilter {
        label_selector: [("pod".to_owned(), vm)].into(),
        ..Default::default()
    };
    let request = v1::ListContainersRequest {
        filter: Some(filter),
    };
    let found = cri
        .runtime
        .list_containers(request)
        .await
        .unwrap()
        .into_inner()
        .containers;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].id, vm_container);
}

#[tokio::test]
async fn a_streamed_list_is_the_primarys_stream_and_then_the_others_list() {
    let (env, mut cri) = TestEnvironment::start().await;
    env.primary.add_sandbox("p1");
    env.primary.add_sandbox("p2");
    let vm = cri.run("vmlet", "").await.unwrap();
    let request = v1::StreamPodSandboxesRequest::default();
    let mut stream = cri
        .runtime
        .stream_pod_sandboxes(request)
        .await
        .unwrap()
        .into_inner();
    let mut messages = Vec::new();
    while let Some(message) = stream.message().await.unwrap() {
        let ids: Vec<_> = message.pod_sandboxes.into_iter().map(|s| s.id).collect();
        messages.push(ids);
    }
    assert_eq!(
        messages,
        [vec!["p1".to_owned()], vec!["p2".into()], vec![vm]]
    );
}

#[tokio::test]
async fn a_stream_that_the_primary_does_not_know_is_unimplemented() {
    let (_env, mut cri) = TestEnvironment::start().await;
    let request = v1::StreamContainersRequest::default();
    let error = cri.runtime.stream_containers(request).await.unwrap_err();
    assert_eq!(error.code(), Code::Unimplemented);
}

#[tokio::test]
async fn a_stream_ends_with_an_error_when_what_a_secondary_had_is_lost() {
    let (mut env, _) = TestEnvironment::start().await;
    env.secondary.add_sandbox("v1");
    let mut cri = env.lose_memory().await;
    let request = v1::StreamPodSandboxesRequest::default();
    let mut stream = match cri.runtime.stream_pod_sandboxes(request).await {
        Ok(stream) => stream.into_inner(),
        Err(error) => {
            assert_eq!(error.code(), Code::Unavailable);
            return;
        }
    };
    let error = loop {
        match stream.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the stream ended well"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.code(), Code::Unavailable);
}

fn descriptor(name: &str, keys: &[&str]) -> v1::MetricDescriptor {
    v1::MetricDescriptor {
        name: name.into(),
        help: String::new(),
        label_keys: keys.iter().map(|key| (*key).into()).collect(),
    }
}

/// A sandbox with one metric.
fn measured(sandbox: &str, name: &str, labels: &[&str]) -> v1::PodSandboxMetrics {
    v1::PodSandboxMetrics {
        pod_sandbox_id: sandbox.into(),
        metrics: vec![v1::Metric {
            name: name.into(),
            label_values: labels.iter().map(|label| (*label).into()).collect(),
            ..v1::Metric::default()
        }],
        ..v1::PodSandboxMetrics::default()
    }
}

/// Also when the proxy was restarted after kubelet had asked for descriptors.
#[tokio::test]
async fn metrics_of_both_have_the_labels_that_were_described() {
    let (env, mut cri) = TestEnvironment::start().await;
    let theirs = vec![descriptor("cpu", &["zone", "id"])];
    env.secondary.with(|s| s.descriptors = theirs);
    let ours = measured("a", "cpu", &["a", "first"]);
    env.primary.with(|s| {
        s.descriptors = vec![descriptor("cpu", &["id", "name"])];
        s.metrics = vec![ours.clone()];
    });
    env.secondary
        .with(|s| s.metrics = vec![measured("b", "cpu", &["east", "b"])]);
    let want = [ours, measured("b", "cpu", &["b", ""])];
    let request = v1::ListPodSandboxMetricsRequest {};
    let answer = cri.runtime.list_pod_sandbox_metrics(request).await.unwrap();
    assert_eq!(answer.into_inner().pod_metrics, want);
    let request = v1::StreamPodSandboxMetricsRequest {};
    let stream = cri.runtime.stream_pod_sandbox_metrics(request).await;
    let mut stream = stream.unwrap().into_inner();
    let mut streamed = Vec::new();
    while let Some(part) = stream.message().await.unwrap() {
        streamed.extend(part.pod_sandbox_metrics);
    }
    assert_eq!(streamed, want);
}

#[tokio::test]
async fn metric_descriptors_are_one_per_name() {
    let (env, mut cri) = TestEnvironment::start().await;
    env.primary
        .with(|s| s.descriptors = vec![descriptor("cpu", &["id"])]);
    let theirs = vec![descriptor("cpu", &["other"]), descriptor("vm", &["id"])];
    env.secondary.with(|s| s.descriptors = theirs);
    let request = v1::ListMetricDescriptorsRequest {};
    let answer = cri
        .runtime
        .list_metric_descriptors(request)
        .await
        .unwrap()
        .into_inner();
    let want = [descriptor("cpu", &["id"]), descriptor("vm", &["id"])];
    assert_eq!(answer.descriptors, want);
}
