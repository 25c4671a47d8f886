//! Applies a filter to a stored list.
//!
//! Invariant: what passes keeps its bytes. The rules are those of the runtimes: id, or its
//! beginning, AND state AND sandbox AND every label.
//! Failure: prost's error for what is no list or no request.

use bytes::{Bytes, BytesMut};
use cri_proto::v1;
use prost::{DecodeError, Message};

use crate::state::Kind;
use crate::wire::fields;

/// The entries of `list` that pass the filter of `request`.
pub(super) fn filtered(kind: Kind, list: &Bytes, request: &Bytes) -> Result<Bytes, DecodeError> {
    let request = request.clone();
    match kind {
        Kind::Sandbox => {
            let filter = v1::ListPodSandboxRequest::decode(request)?.filter;
            let filter = filter.unwrap_or_default();
            keep(list, |entry: &v1::PodSandbox| sandbox(entry, &filter))
        }
        Kind::Container => {
            let filter = v1::ListContainersRequest::decode(request)?.filter;
            let filter = filter.unwrap_or_default();
            keep(list, |entry: &v1::Container| container(entry, &filter))
        }
        Kind::Image => {
            let filter = v1::ListImagesRequest::decode(request)?.filter;
            let name = filter.and_then(|f| f.image).unwrap_or_default().image;
            keep(list, |entry: &v1::Image| {
                let names = entry.repo_tags.iter().chain(&entry.repo_digests);
                name.is_empty() || entry.id == name || names.into_iter().any(|n| *n == name)
            })
        }
    }
}

fn keep<T: Message + Default>(
    list: &Bytes,
    passes: impl Fn(&T) -> bool,
) -> Result<Bytes, DecodeError> {
    let mut kept = BytesMut::new();
    for field in fields(list).map_while(Result::ok) {
        if field.number == 1
            && let Some(content) = field.content
            && !passes(&T::decode(content)?)
        {
            continue;
        }
        kept.extend_from_slice(field.raw);
    }
    Ok(kept.freeze())
}

fn sandbox(entry: &v1::PodSandbox, filter: &v1::PodSandboxFilter) -> bool {
    let state = filter.state.as_ref().map(|wanted| wanted.state);
    let mut labels = filter.label_selector.iter();
    entry.id.starts_with(&filter.id)
        && state.is_none_or(|state| state == entry.state)
        && labels.all(|(key, value)| entry.labels.get(key) == Some(value))
}

fn container(entry: &v1::Container, filter: &v1::ContainerFilter) -> bool {
    let state = filter.state.as_ref().map(|wanted| wanted.state);
    let mut labels = filter.label_selector.iter();
    entry.id.starts_with(&filter.id)
        && entry.pod_sandbox_id.starts_with(&filter.pod_sandbox_id)
        && state.is_none_or(|state| state == entry.state)
        && labels.all(|(key, value)| entry.labels.get(key) == Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: &str, state: v1::ContainerState, app: &str) -> v1::Container {
        v1::Container {
            id: id.into(),
            pod_sandbox_id: format!("pod-{id}"),
            state: state.into(),
            labels: [("app".to_owned(), app.to_owned())].into(),
            ..Default::default()
        }
    }

    fn ids(filter: v1::ContainerFilter) -> Vec<String> {
        let running = v1::ContainerState::ContainerRunning;
        let exited = v1::ContainerState::ContainerExited;
        let containers = vec![
            entry("a1", running, "x"),
            entry("a2", exited, "x"),
            entry("b1", running, "y"),
        ];
        let list = v1::ListContainersResponse { containers };
        let request = v1::ListContainersRequest {
            filter: Some(filter),
        };
        let list = list.encode_to_vec().into();
        let kept = filtered(Kind::Container, &list, &request.encode_to_vec().into()).unwrap();
        let kept = v1::ListContainersResponse::decode(kept).unwrap();
        kept.containers.into_iter().map(|c| c.id).collect()
    }

    #[test]
    fn a_remembered_list_is_filtered_as_the_runtime_would() {
        let running = v1::ContainerStateValue {
            state: v1::ContainerState::ContainerRunning.into(),
        };
        let all = v1::ContainerFilter::default();
        assert_eq!(ids(all.clone()), ["a1", "a2", "b1"]);
        let mut filter = all.clone();
        filter.state = Some(running);
        assert_eq!(ids(filter.clone()), ["a1", "b1"]);
        filter.label_selector = [("app".to_owned(), "y".to_owned())].into();
        assert_eq!(ids(filter), ["b1"]);
        let mut filter = all.clone();
        filter.id = "a".into();
        assert_eq!(ids(filter), ["a1", "a2"]);
        let mut filter = all;
        filter.pod_sandbox_id = "pod-b1".into();
        assert_eq!(ids(filter), ["b1"]);
    }
}
