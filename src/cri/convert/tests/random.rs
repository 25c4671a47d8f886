//! Random and damaged messages.
//!
//! Invariant: nothing that a client sends makes the conversion panic.
//! Failure: the seed and the bytes are printed.

use proptest::prelude::*;
use prost::Message;

use super::*;

/// Reads what decodes; the outcome does not matter.
fn read(bytes: &[u8]) {
    if let Ok(request) = v1::RunPodSandboxRequest::decode(bytes) {
        let _ = sandbox::config(request);
    }
    if let Ok(request) = v1::CreateContainerRequest::decode(bytes) {
        let _ = container::config(request.config);
    }
    if let Ok(request) = v1::PullImageRequest::decode(bytes) {
        let _ = image::spec("image", request.image);
    }
    if let Ok(request) = v1::StopContainerRequest::decode(bytes) {
        container::grace(request.timeout);
    }
    if let Ok(request) = v1::ListPodSandboxRequest::decode(bytes) {
        crate::cri::filter::sandboxes(Vec::new(), request.filter);
    }
    if let Ok(request) = v1::ListContainersRequest::decode(bytes) {
        crate::cri::filter::containers(Vec::new(), request.filter);
    }
}

/// A valid request of each big kind, encoded.
fn valid_requests() -> [Vec<u8>; 2] {
    let create = v1::CreateContainerRequest {
        pod_sandbox_id: "ab".into(),
        config: Some(machine()),
        sandbox_config: pod().config,
    };
    [pod().encode_to_vec(), create.encode_to_vec()]
}

proptest! {
    #[test]
    fn random_bytes_never_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        read(&bytes);
    }

    #[test]
    fn damaged_requests_never_make_it_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        length in any::<prop::sample::Index>(),
        cut in any::<bool>(),
    ) {
        for mut bytes in valid_requests() {
            for (at, value) in &changes {
                let at = at.index(bytes.len());
                bytes[at] = *value;
            }
            if cut {
                bytes.truncate(length.index(bytes.len()));
            }
            read(&bytes);
        }
    }

    #[test]
    fn whatever_passes_has_safe_names(name in ".{0,300}", path in ".{0,40}") {
        let request = pod_with(|c| {
            c.metadata.as_mut().unwrap().name = name;
            c.log_directory = path;
        });
        if let Ok(config) = sandbox::config(request) {
            prop_assert!((1..=253).contains(&config.metadata.name.len()));
            prop_assert!(!config.metadata.name.contains([';', '=', '/', ' ', '\n']));
            prop_assert!(config.log_directory.is_empty() || config.log_directory.starts_with('/'));
            prop_assert!(!config.log_directory.split('/').any(|part| part == ".."));
        }
    }
}
