//! Errors of the API server, and the remedy for each.
//!
//! Invariant: the server's own sentence is kept where it says more than ours.
//! Failure: none.

use kube::config::KubeconfigError;
use kube::core::Status;

/// Why the cluster did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClusterError {
    // The library's errors repeat their sources, so only the innermost is shown.
    #[error("there is no usable kubeconfig: {}", kubeconfig(.0))]
    Kubeconfig(Box<KubeconfigError>),
    #[error("cannot use the configuration of {server}: {}", innermost(.source))]
    Client {
        server: String,
        source: Box<kube::Error>,
    },
    #[error("the cluster does not answer: {0}")]
    Unreachable(String),
    #[error(
        "the cluster has no virtual machines: the kind VirtualMachine of vmlet.dev is not installed"
    )]
    NoKinds,
    #[error("there is no virtual machine {name} in namespace {namespace}")]
    NotFound { namespace: String, name: String },
    #[error("there is no image {name} {}", place(.namespace))]
    NoImage { namespace: String, name: String },
    #[error("there is no group {name} in namespace {namespace}")]
    NoGroup { namespace: String, name: String },
    #[error("there is no namespace {0}")]
    NoNamespace(String),
    #[error("others set the same fields of {name} otherwise: {message}")]
    Owned { name: String, message: String },
    #[error("not allowed: {0}")]
    Forbidden(String),
    #[error("the cluster does not know who you are")]
    Unauthorized,
    #[error("another client changed {name} concurrently (409); nothing was changed")]
    Raced { name: String },
    #[error("{name}: {conflict} (409)")]
    Conflict { name: String, conflict: String },
    #[error("there is a virtual machine {0} already")]
    Exists(String),
    #[error("the cluster refuses that: {0}")]
    Refused(String),
    #[error("failed to read {name}, which the cluster lists: {error}")]
    Unreadable { name: String, error: String },
    #[error("ask the cluster: {}", innermost(.0))]
    Other(Box<kube::Error>),
}

impl ClusterError {
    /// From an answer about the machine `name`.
    pub(crate) fn about(namespace: &str, name: &str, error: kube::Error) -> Self {
        let kube::Error::Api(status) = error else {
            return Self::of_transport(error);
        };
        match status.code {
            404 if is_missing_kind(&status) => Self::NoKinds,
            404 if is_about(&status, "namespaces") => Self::NoNamespace(namespace.to_owned()),
            404 => Self::NotFound {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            },
            409 if status.reason == "AlreadyExists" => Self::Exists(name.to_owned()),
            409 if is_owned(&status) => Self::Owned {
                name: name.to_owned(),
                message: status.message.clone(),
            },
            409 => Self::Raced {
                name: name.to_owned(),
            },
            422 if is_failed_test(&status) => Self::Raced {
                name: name.to_owned(),
            },
            401 => Self::Unauthorized,
            403 => Self::Forbidden(status.message.clone()),
            // A rule about the whole object has no field; the server's word for that is no help.
            400 | 422 => Self::Refused(status.message.replace("<nil>: ", "")),
            _ => Self::Other(Box::new(kube::Error::Api(status))),
        }
    }

    /// From an answer about no particular machine.
    pub(crate) fn from_api(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.code == 404 => Self::NoKinds,
            other => Self::about("", "", other),
        }
    }

    fn of_transport(error: kube::Error) -> Self {
        match error {
            kube::Error::HyperError(_) | kube::Error::Service(_) => {
                Self::Unreachable(innermost(&error))
            }
            other => Self::Other(Box::new(other)),
        }
    }

    /// Whether the same request may succeed later.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable(_) => true,
            Self::Other(error) => {
                matches!(&**error, kube::Error::Api(status) if status.code == 429 || status.code >= 500)
            }
            _ => false,
        }
    }

    /// What the user can do, as one line.
    pub(crate) const fn advice(&self) -> Option<&'static str> {
        Some(match self {
            Self::Kubeconfig(_) => {
                "name a kubeconfig with --kubeconfig or KUBECONFIG, and a context of it with \
                 --context; for pods of this node without a cluster: vmletctl node ps, node logs, \
                 node console, node stop"
            }
            Self::Client { .. } => "look at that cluster and user in the kubeconfig",
            Self::Unreachable(_) => {
                "see whether its API server runs and whether the kubeconfig has its address \
                 (kubectl cluster-info)"
            }
            Self::NoKinds => {
                "install Vmlet there (kubectl apply -k deploy), or name another cluster with \
                 --context"
            }
            Self::NotFound { .. } => {
                "vmletctl list shows what is there; -n names another namespace, list -A shows all \
                 of them"
            }
            Self::NoImage { .. } => {
                "vmletctl image list shows what is there; -n names another namespace, image list \
                 -A shows all of them"
            }
            Self::NoGroup { .. } => {
                "vmletctl group list shows what is there; -n names another namespace, group list \
                 -A shows all of them"
            }
            Self::NoNamespace(_) => {
                "create it (kubectl create namespace), or name another one with -n"
            }
            Self::Owned { .. } => {
                "choose another name; or change that machine with kubectl edit vm, or by the tool \
                 that made it"
            }
            Self::Forbidden(_) => {
                "ask an administrator for a role that allows it, or name another user with \
                 --context"
            }
            Self::Unauthorized => "log in again, or name another user with --context",
            Self::Raced { .. } => {
                "look at it with vmletctl status, and try again if it is still needed"
            }
            Self::Conflict { .. } => return None,
            Self::Exists(_) => "choose another name, or change that one with kubectl edit vm",
            Self::Refused(_) => "change what the sentence names, and try again",
            Self::Unreadable { .. } => {
                "use a vmletctl of the cluster's version, or repair or delete that object with kubectl"
            }
            Self::Other(_) => return None,
        })
    }
}

/// Where an image was looked for.
fn place(namespace: &str) -> String {
    match namespace {
        "" => "of the cluster".to_owned(),
        namespace => format!("in namespace {namespace}, nor of the cluster"),
    }
}

/// The cause that all others only wrap, without the kernel's number for it.
pub(crate) fn innermost(error: &dyn std::error::Error) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    let text = last.to_string();
    let end = text.rfind(" (os error ").unwrap_or(text.len());
    text[..end].to_owned()
}

/// The library prints the path as a value of its language.
fn kubeconfig(error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::ReadConfig(source, path) => {
            format!("cannot read {}: {}", path.display(), innermost(source))
        }
        other => other.to_string(),
    }
}

/// A server without the kind reports it in plain text, without naming an object.
fn is_missing_kind(status: &Status) -> bool {
    status.details.as_ref().is_none_or(|d| d.name.is_empty())
}

fn is_about(status: &Status, kind: &str) -> bool {
    status.details.as_ref().is_some_and(|d| d.kind == kind)
}

/// Server-side apply would take fields away from others that set them.
fn is_owned(status: &Status) -> bool {
    let causes = status.details.as_ref().map(|d| d.causes.as_slice());
    let mut causes = causes.unwrap_or_default().iter();
    causes.any(|c| c.reason == "FieldManagerConflict")
}

/// The `test` of a JSON patch has failed; the server gives it no reason of its own.
fn is_failed_test(status: &Status) -> bool {
    let details = status.details.as_ref();
    let causes = details.map(|d| d.causes.as_slice()).unwrap_or_default();
    let is_unnamed = details.is_none_or(|d| d.name.is_empty());
    is_unnamed
        && (status.message.contains("the server rejected our request")
            || causes.iter().any(|c| c.message.contains("test")))
}

/// What to do about an error, when it is one of those that know.
pub(crate) fn advice(error: &anyhow::Error) -> Option<&'static str> {
    error
        .chain()
        .find_map(|cause| cause.downcast_ref::<ClusterError>())
        .and_then(ClusterError::advice)
}

#[cfg(test)]
mod tests;
