//! Names of methods and codes for metrics.
//!
//! Invariant: what a client sends never becomes a label: an unknown method is `other`.
//! Failure: none.

use tonic::Code;

/// Methods of the protocol.
const METHODS: [&str; 41] = [
    "Attach",
    "CheckpointContainer",
    "ContainerStats",
    "ContainerStatus",
    "CreateContainer",
    "Exec",
    "ExecSync",
    "GetContainerEvents",
    "ImageFsInfo",
    "ImageStatus",
    "ListContainerStats",
    "ListContainers",
    "ListImages",
    "ListMetricDescriptors",
    "ListPodSandbox",
    "ListPodSandboxMetrics",
    "ListPodSandboxStats",
    "PodSandboxStats",
    "PodSandboxStatus",
    "PortForward",
    "PullImage",
    "RemoveContainer",
    "RemoveImage",
    "RemovePodSandbox",
    "ReopenContainerLog",
    "RunPodSandbox",
    "RuntimeConfig",
    "StartContainer",
    "Status",
    "StopContainer",
    "StopPodSandbox",
    "StreamContainerStats",
    "StreamContainers",
    "StreamImages",
    "StreamPodSandboxMetrics",
    "StreamPodSandboxStats",
    "StreamPodSandboxes",
    "UpdateContainerResources",
    "UpdatePodSandboxResources",
    "UpdateRuntimeConfig",
    "Version",
];

/// A method of the protocol, or `other`.
pub(super) fn method(name: &str) -> &'static str {
    let known = METHODS.iter().find(|known| **known == name);
    known.copied().unwrap_or("other")
}

/// The name of a code in gRPC.
pub(super) const fn code(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_of_the_protocol_has_its_name_and_no_other_has() {
        let facts = include_str!("../../../tests/fixtures/cri-fields.tsv");
        let lines = facts.lines().filter_map(|line| line.strip_prefix("rpc\t"));
        let mut count = 0;
        for name in lines.filter_map(|line| line.split('\t').nth(1)) {
            assert_eq!(method(name), name);
            count += 1;
        }
        assert_eq!(count, METHODS.len());
        assert_eq!(method("Levitate"), "other");
    }
}
