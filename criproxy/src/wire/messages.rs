//! The fields that decide the route of a call; all other fields are skipped.
//!
//! Invariant: credentials are in none of these types; they are read, never sent.
//! Failure: prost's decode error for bytes that do not fit.

use std::collections::BTreeMap;

/// Any request about one object, and any answer that begins with an id.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FirstId {
    /// Id of a sandbox, container or image.
    #[prost(string, tag = "1")]
    pub id: String,
}

/// A status answer: the object's own message comes first, and its id first in that.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FirstStatus {
    /// The object, absent when there is none.
    #[prost(message, optional, tag = "1")]
    pub status: Option<FirstId>,
}

/// `PodSandboxMetadata`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Metadata {
    /// The pod's uid.
    #[prost(string, tag = "2")]
    pub uid: String,
}

/// `PodSandboxConfig`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SandboxConfig {
    /// Whose sandbox.
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<Metadata>,
    /// The pod's annotations.
    #[prost(btree_map = "string, string", tag = "7")]
    pub annotations: BTreeMap<String, String>,
}

impl SandboxConfig {
    /// The pod's uid, empty when it has none.
    pub fn uid(&self) -> &str {
        self.metadata.as_ref().map_or("", |m| &m.uid)
    }
}

/// `RunPodSandboxRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RunPodSandbox {
    /// The sandbox.
    #[prost(message, optional, tag = "1")]
    pub config: Option<SandboxConfig>,
    /// RuntimeClass handler.
    #[prost(string, tag = "2")]
    pub runtime_handler: String,
}

/// `RestorePodRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RestorePod {
    /// The sandbox.
    #[prost(message, optional, tag = "2")]
    pub config: Option<SandboxConfig>,
    /// RuntimeClass handler.
    #[prost(string, tag = "3")]
    pub runtime_handler: String,
}

/// `ImageSpec`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Image {
    /// Name, digest or id.
    #[prost(string, tag = "1")]
    pub name: String,
    /// All annotations of the pod, on some calls.
    #[prost(btree_map = "string, string", tag = "2")]
    pub annotations: BTreeMap<String, String>,
    /// RuntimeClass handler, when a kubelet gate is on.
    #[prost(string, tag = "19")]
    pub runtime_handler: String,
}

/// `ImageStatusRequest`, `RemoveImageRequest` and `PullImageRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ImageRequest {
    /// Which image.
    #[prost(message, optional, tag = "1")]
    pub image: Option<Image>,
}

/// The rest of `PullImageRequest`, without its credentials.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PullImage {
    /// Which image.
    #[prost(message, optional, tag = "1")]
    pub image: Option<Image>,
    /// For which pod.
    #[prost(message, optional, tag = "3")]
    pub sandbox: Option<SandboxConfig>,
}

/// A list request: `PodSandboxFilter`, `PodSandboxStatsFilter`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListById {
    /// The filter.
    #[prost(message, optional, tag = "1")]
    pub filter: Option<FirstId>,
}

/// `ListContainersRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListContainers {
    /// The filter.
    #[prost(message, optional, tag = "1")]
    pub filter: Option<ContainerFilter>,
}

/// `ContainerFilter`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerFilter {
    /// Of the container.
    #[prost(string, tag = "1")]
    pub id: String,
    /// Of its sandbox.
    #[prost(string, tag = "3")]
    pub pod_sandbox_id: String,
}

/// `ListContainerStatsRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListContainerStats {
    /// The filter.
    #[prost(message, optional, tag = "1")]
    pub filter: Option<ContainerStatsFilter>,
}

/// `ContainerStatsFilter`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerStatsFilter {
    /// Of the container.
    #[prost(string, tag = "1")]
    pub id: String,
    /// Of its sandbox.
    #[prost(string, tag = "2")]
    pub pod_sandbox_id: String,
}
