//! Every method of the CRI, and how its calls are routed.
//!
//! Invariant: whatever is not in the table is passed on as a stream of bytes.
//! Failure: none.

/// A kind of object that belongs to a runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Object {
    /// A pod sandbox.
    Sandbox,
    /// A container.
    Container,
}

/// A list of things of several runtimes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Listing {
    /// Pod sandboxes.
    Sandboxes,
    /// Containers.
    Containers,
    /// Images.
    Images,
    /// Usage of containers.
    ContainerStats,
    /// Usage of pod sandboxes.
    SandboxStats,
    /// Metrics of pod sandboxes.
    SandboxMetrics,
}

/// What is done with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plan {
    /// To the owner of the object that field 1 names.
    Owned(Object),
    /// As [`Plan::Owned`]; the last report of the owner serves while it is away.
    Status(Object),
    /// As [`Plan::Owned`]; to all when the owner of the object is unknown.
    End(Object),
    /// As [`Plan::End`]; afterwards the object is forgotten.
    Remove(Object),
    /// To the runtime that the pod requests.
    RunSandbox,
    /// As [`Plan::RunSandbox`], from a checkpoint.
    RestorePod,
    /// To the owner of the sandbox; the answer names a container.
    CreateContainer,
    /// To all; the answers are put together.
    List(Listing),
    /// To all, as streams.
    Stream(Listing),
    /// By hints, else the runtime that has the image.
    ImageStatus,
    /// By hints, else the primary.
    PullImage,
    /// To all that have the image.
    RemoveImage,
    /// To all; the primary's entries first.
    ImageFsInfo,
    /// To the primary; waits for its first answer after the proxy's start.
    Version,
    /// To all; the primary's answer counts.
    NodeStatus,
    /// To the primary.
    Primary,
    /// To all; only the primary's failure counts.
    UpdateRuntimeConfig,
    /// To all; one descriptor per name.
    MetricDescriptors,
    /// Events of all in one endless stream.
    Events,
    /// Not known: to the owner of what field 1 names if it is known, else to the primary.
    Unknown,
    /// Not of this API: to the primary, unread.
    Foreign,
}

/// How long a runtime may take for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lasts {
    /// It answers from what it knows.
    Briefly,
    /// A command in a container.
    AsGuestWants,
    /// Starts, stops, pulls, events, and whatever is not known.
    Long,
}

/// How long a call may last.
pub(crate) fn lasts(path: &str) -> Lasts {
    match plan(path) {
        ("ExecSync", _) => Lasts::AsGuestWants,
        (
            "Exec" | "Attach" | "PortForward" | "ReopenContainerLog" | "ContainerStats"
            | "PodSandboxStats",
            _,
        )
        | (
            _,
            Plan::Status(_)
            | Plan::List(_)
            | Plan::Stream(_)
            | Plan::ImageStatus
            | Plan::ImageFsInfo
            | Plan::Version
            | Plan::NodeStatus
            | Plan::Primary
            | Plan::UpdateRuntimeConfig
            | Plan::MetricDescriptors,
        ) => Lasts::Briefly,
        _ => Lasts::Long,
    }
}

/// The method's name for metrics, and the plan for it.
pub(crate) fn plan(path: &str) -> (&'static str, Plan) {
    use Listing as L;
    use Object::{Container, Sandbox};
    use Plan as P;

    macro_rules! methods {
        ($name:expr, { $($method:literal => $plan:expr,)+ }) => {
            match $name {
                $($method => ($method, $plan),)+
                _ => ("other", P::Unknown),
            }
        };
    }

    if let Some(name) = path.strip_prefix("/runtime.v1.RuntimeService/") {
        methods!(name, {
            "Version" => P::Version,
            "RunPodSandbox" => P::RunSandbox,
            "StopPodSandbox" => P::End(Sandbox),
            "RemovePodSandbox" => P::Remove(Sandbox),
            "PodSandboxStatus" => P::Status(Sandbox),
            "ListPodSandbox" => P::List(L::Sandboxes),
            "StreamPodSandboxes" => P::Stream(L::Sandboxes),
            "CreateContainer" => P::CreateContainer,
            "StartContainer" => P::Owned(Container),
            "StopContainer" => P::End(Container),
            "RemoveContainer" => P::Remove(Container),
            "ListContainers" => P::List(L::Containers),
            "StreamContainers" => P::Stream(L::Containers),
            "ContainerStatus" => P::Status(Container),
            "UpdateContainerResources" => P::Owned(Container),
            "ReopenContainerLog" => P::Owned(Container),
            "ExecSync" => P::Owned(Container),
            "Exec" => P::Owned(Container),
            "Attach" => P::Owned(Container),
            "PortForward" => P::Owned(Sandbox),
            "ContainerStats" => P::Owned(Container),
            "ListContainerStats" => P::List(L::ContainerStats),
            "StreamContainerStats" => P::Stream(L::ContainerStats),
            "PodSandboxStats" => P::Owned(Sandbox),
            "ListPodSandboxStats" => P::List(L::SandboxStats),
            "StreamPodSandboxStats" => P::Stream(L::SandboxStats),
            "UpdateRuntimeConfig" => P::UpdateRuntimeConfig,
            "Status" => P::NodeStatus,
            "CheckpointContainer" => P::Owned(Container),
            "GetContainerEvents" => P::Events,
            "ListMetricDescriptors" => P::MetricDescriptors,
            "ListPodSandboxMetrics" => P::List(L::SandboxMetrics),
            "StreamPodSandboxMetrics" => P::Stream(L::SandboxMetrics),
            "RuntimeConfig" => P::Primary,
            "UpdatePodSandboxResources" => P::Owned(Sandbox),
            "CheckpointPod" => P::Owned(Sandbox),
            "RestorePod" => P::RestorePod,
        })
    } else if let Some(name) = path.strip_prefix("/runtime.v1.ImageService/") {
        methods!(name, {
            "ListImages" => P::List(L::Images),
            "StreamImages" => P::Stream(L::Images),
            "ImageStatus" => P::ImageStatus,
            "PullImage" => P::PullImage,
            "RemoveImage" => P::RemoveImage,
            "ImageFsInfo" => P::ImageFsInfo,
        })
    } else {
        ("foreign", P::Foreign)
    }
}

impl Listing {
    /// The path of the method that gives the whole list at once.
    pub(crate) const fn path(self) -> &'static str {
        match self {
            Self::Sandboxes => "/runtime.v1.RuntimeService/ListPodSandbox",
            Self::Containers => "/runtime.v1.RuntimeService/ListContainers",
            Self::Images => "/runtime.v1.ImageService/ListImages",
            Self::ContainerStats => "/runtime.v1.RuntimeService/ListContainerStats",
            Self::SandboxStats => "/runtime.v1.RuntimeService/ListPodSandboxStats",
            Self::SandboxMetrics => "/runtime.v1.RuntimeService/ListPodSandboxMetrics",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_of_the_api_has_a_plan() {
        let mut seen = 0;
        for line in include_str!("../../proto/proto/api.proto").lines() {
            let line = line.trim();
            let Some(name) = line.strip_prefix("rpc ").and_then(|l| l.split('(').next()) else {
                continue;
            };
            let services = ["RuntimeService", "ImageService"];
            let found = services.map(|s| plan(&format!("/runtime.v1.{s}/{name}")).0);
            assert!(found.contains(&name), "{name}");
            seen += 1;
        }
        assert!(seen >= 41, "only {seen} methods found");
    }

    #[test]
    fn stops_and_probes_last_and_lists_do_not() {
        let of = |name: &str| lasts(&format!("/runtime.v1.RuntimeService/{name}"));
        for name in [
            "StopContainer",
            "StartContainer",
            "RunPodSandbox",
            "Levitate",
        ] {
            assert_eq!(of(name), Lasts::Long, "{name}");
        }
        for name in [
            "ListContainers",
            "ContainerStatus",
            "Status",
            "Version",
            "Exec",
        ] {
            assert_eq!(of(name), Lasts::Briefly, "{name}");
        }
        assert_eq!(of("ExecSync"), Lasts::AsGuestWants);
        assert_eq!(lasts("/runtime.v1.ImageService/PullImage"), Lasts::Long);
        assert_eq!(lasts("/runtime.v1.ImageService/ListImages"), Lasts::Briefly);
    }

    #[test]
    fn a_method_of_the_future_is_unknown_and_another_api_is_foreign() {
        assert_eq!(plan("/runtime.v1.RuntimeService/Levitate").1, Plan::Unknown);
        assert_eq!(plan("/grpc.health.v1.Health/Check").1, Plan::Foreign);
    }
}
