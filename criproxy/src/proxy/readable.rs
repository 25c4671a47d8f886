//! Checks whether kubelet can decode a secondary's reply.
//!
//! Invariant: an answer that is joined with another runtime's, or that is used later, is read
//! here as kubelet will read it: one that kubelet could not read would take the other runtime's
//! pods with it.
//! Failure: none; `false` is the finding.

use bytes::Bytes;
use cri_proto::v1;
use prost::Message;

/// Whether `message` is an answer of the method with this path. Those of methods whose answers go
/// through alone are not looked at.
pub(super) fn is_readable(path: &str, message: &Bytes) -> bool {
    let method = path.rsplit('/').next().unwrap_or_default();
    let read = match method {
        "ContainerStatus" => read::<v1::ContainerStatusResponse>,
        "GetContainerEvents" => read::<v1::ContainerEventResponse>,
        "ImageFsInfo" => read::<v1::ImageFsInfoResponse>,
        "ImageStatus" => read::<v1::ImageStatusResponse>,
        "ListContainerStats" => read::<v1::ListContainerStatsResponse>,
        "ListContainers" => read::<v1::ListContainersResponse>,
        "ListImages" => read::<v1::ListImagesResponse>,
        "ListMetricDescriptors" => read::<v1::ListMetricDescriptorsResponse>,
        "ListPodSandbox" => read::<v1::ListPodSandboxResponse>,
        "ListPodSandboxMetrics" => read::<v1::ListPodSandboxMetricsResponse>,
        "ListPodSandboxStats" => read::<v1::ListPodSandboxStatsResponse>,
        "PodSandboxStatus" => read::<v1::PodSandboxStatusResponse>,
        "Status" => read::<v1::StatusResponse>,
        "Version" => read::<v1::VersionResponse>,
        _ => return true,
    };
    message.is_empty() || read(message)
}

fn read<M: Message + Default>(message: &Bytes) -> bool {
    M::decode(message.clone()).is_ok()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::wire::tagged;

    const LIST: &str = "/runtime.v1.RuntimeService/ListContainers";

    #[rstest]
    #[case::nothing(b"", true)]
    #[case::cut_off(b"\x0a\x7f\xff", false)]
    // A container whose id is longer than itself.
    #[case::cut_off_inside(b"\x0a\x02\x0a\x7f", false)]
    #[case::not_unicode(b"\x0a\x03\x0a\x01\xff", false)]
    #[case::another_kind_of_field(b"\x08\x01", false)]
    fn a_list_is_read_to_its_depth(#[case] message: &'static [u8], #[case] want: bool) {
        assert_eq!(is_readable(LIST, &Bytes::from_static(message)), want);
    }

    #[test]
    fn fields_of_the_future_do_not_matter() {
        assert!(is_readable(LIST, &tagged(500, b"\xff")));
        let inside = tagged(1, &tagged(500, b"\xff"));
        assert!(is_readable(LIST, &inside));
    }
}
