//! Pods as users name them: a sandbox together with its containers.
//!
//! Invariant: a look-up yields exactly one pod; a doubtful one is refused, never guessed.
//! Failure: [`SelectError`] lists the candidates.

use std::collections::BTreeMap;

use cri_proto::v1::{Container, ContainerState, PodSandbox, PodSandboxState};

use crate::runtime::{CallError, Runtime};
use crate::table::{printable, short};

/// A sandbox and its containers, newest first.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pod {
    pub(crate) sandbox: PodSandbox,
    pub(crate) containers: Vec<Container>,
}

/// Selects one pod.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct PodArg {
    /// Name of the pod, or the beginning of its ID or of its container's ID.
    #[arg(value_name = "NAME|ID")]
    pub(crate) pod: String,

    /// Namespace of the pod, if the pod is given by name.
    #[arg(short, long, default_value = "default")]
    pub(crate) namespace: String,
}

/// No pod, or more than one, answers to a name.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SelectError {
    #[error(
        "no pod {0:?} in namespace {1:?}, nor one whose id begins so; vmletctl ps -a lists all"
    )]
    Unknown(String, String),
    #[error("{0:?} may be any of these, name one by its id:\n{1}")]
    Ambiguous(String, String),
}

impl Pod {
    pub(crate) fn id(&self) -> &str {
        &self.sandbox.id
    }

    pub(crate) fn name(&self) -> &str {
        self.sandbox
            .metadata
            .as_ref()
            .map_or("", |m| m.name.as_str())
    }

    pub(crate) fn namespace(&self) -> &str {
        self.sandbox
            .metadata
            .as_ref()
            .map_or("", |m| m.namespace.as_str())
    }

    pub(crate) fn uid(&self) -> &str {
        self.sandbox
            .metadata
            .as_ref()
            .map_or("", |m| m.uid.as_str())
    }

    /// The container that counts: there is one VM per pod, and the newest container is it.
    pub(crate) fn container(&self) -> Option<&Container> {
        self.containers.first()
    }

    pub(crate) fn running(&self) -> impl Iterator<Item = &Container> {
        self.containers
            .iter()
            .filter(|c| c.state() == ContainerState::ContainerRunning)
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.sandbox.state() == PodSandboxState::SandboxReady
    }

    /// One word for the whole pod.
    pub(crate) fn state(&self) -> &'static str {
        match (self.container().map(Container::state), self.is_ready()) {
            (Some(ContainerState::ContainerRunning), _) => "Running",
            (Some(ContainerState::ContainerUnknown), _) => "Unknown",
            (Some(ContainerState::ContainerExited), _) => "Exited",
            (Some(ContainerState::ContainerCreated), true) => "Created",
            (None, true) => "Ready",
            (Some(ContainerState::ContainerCreated) | None, false) => "Stopped",
        }
    }

    /// The image as the user wrote it, where that is known.
    pub(crate) fn image(&self) -> &str {
        let spec = self.container().and_then(|c| c.image.as_ref());
        spec.map_or("", |s| match s.user_specified_image.as_str() {
            "" => &s.image,
            name => name,
        })
    }

    fn matches_id(&self, prefix: &str) -> bool {
        self.id().starts_with(prefix) || self.containers.iter().any(|c| c.id.starts_with(prefix))
    }
}

/// Every pod of the daemon, newest first.
pub(crate) async fn all(runtime: &Runtime) -> Result<Vec<Pod>, CallError> {
    let sandboxes = runtime.sandboxes(BTreeMap::new()).await?;
    Ok(join(sandboxes, runtime.containers().await?))
}

/// The one pod that the user means.
pub(crate) async fn find(runtime: &Runtime, wanted: &PodArg) -> anyhow::Result<Pod> {
    let pods = all(runtime).await?;
    Ok(select(pods, &wanted.pod, &wanted.namespace)?)
}

fn join(sandboxes: Vec<PodSandbox>, mut containers: Vec<Container>) -> Vec<Pod> {
    containers.sort_by_key(|c| std::cmp::Reverse(c.created_at));
    let mut by_sandbox: BTreeMap<String, Vec<Container>> = BTreeMap::new();
    for container in containers {
        by_sandbox
            .entry(container.pod_sandbox_id.clone())
            .or_default()
            .push(container);
    }
    let with_containers = |sandbox: PodSandbox| {
        let containers = by_sandbox.remove(&sandbox.id).unwrap_or_default();
        Pod {
            sandbox,
            containers,
        }
    };
    let mut pods: Vec<Pod> = sandboxes.into_iter().map(with_containers).collect();
    pods.sort_by_key(|pod| std::cmp::Reverse(pod.sandbox.created_at));
    pods
}

/// A name wins over an id that looks the same, since names are what people choose.
fn select(pods: Vec<Pod>, wanted: &str, namespace: &str) -> Result<Pod, SelectError> {
    let unknown = || SelectError::Unknown(wanted.to_owned(), namespace.to_owned());
    if wanted.is_empty() {
        return Err(unknown());
    }
    let (named, others): (Vec<Pod>, Vec<Pod>) = pods
        .into_iter()
        .partition(|p| p.name() == wanted && p.namespace() == namespace);
    let mut found = named;
    if found.is_empty() {
        found = others
            .into_iter()
            .filter(|p| p.matches_id(wanted))
            .collect();
    }
    match (found.pop(), found.as_slice()) {
        (Some(pod), []) => Ok(pod),
        (Some(last), rest) => {
            let candidates = rest
                .iter()
                .chain([&last])
                .map(candidate)
                .collect::<Vec<_>>();
            Err(SelectError::Ambiguous(
                wanted.to_owned(),
                candidates.join("\n"),
            ))
        }
        (None, _) => Err(unknown()),
    }
}

fn candidate(pod: &Pod) -> String {
    let name = printable(&format!("{}/{}", pod.namespace(), pod.name()));
    format!("  {}  {name}  {}", short(pod.id()), pod.state())
}

#[cfg(test)]
mod tests;
