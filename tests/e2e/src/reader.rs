//! Reads of objects without a process of kubectl, which costs as much processor time as a guest
//! needs for a tenth of its boot; tests that wait read again and again.
//!
//! Invariant: the answer is what `kubectl get -o json` prints, without managed fields; a query
//! that this module does not know is left to kubectl.
//! Failure: the API server's own words, or that it did not answer within [`ANSWER`]. A connection
//! that the server closed is made once more.

use std::path::Path;
use std::sync::{LazyLock, Mutex, PoisonError, mpsc};
use std::time::Duration;

use anyhow::{Context, Result};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

use crate::outcome::{self, Late};
use crate::program::LEAST;
use crate::wait::allowed;

/// Longest time for an answer. The test waits for it, and for nothing else meanwhile.
const ANSWER: Duration = Duration::from_secs(60);

/// Runs requests, since those that wait for them block the runtime of their test.
static RUNTIME: LazyLock<Result<Runtime, String>> = LazyLock::new(|| {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(1).enable_all();
    builder.build().map_err(|error| error.to_string())
});

/// Kinds by the names that tests use, each with the path of its API and its plural.
const KINDS: &[(&[&str], &str, &str)] = &[
    (&["pod", "pods"], "api/v1", "pods"),
    (&["event", "events"], "api/v1", "events"),
    (&["pvc"], "api/v1", "persistentvolumeclaims"),
    (&["lease"], "apis/coordination.k8s.io/v1", "leases"),
    (&["vm", "virtualmachine"], OURS, "virtualmachines"),
    (
        &["virtualmachinetask", "virtualmachinetasks"],
        OURS,
        "virtualmachinetasks",
    ),
    (&["virtualmachineimage"], OURS, "virtualmachineimages"),
];
/// Kinds that belong to no namespace.
const CLUSTER_KINDS: &[(&[&str], &str, &str)] = &[
    (&["node", "nodes"], "api/v1", "nodes"),
    (&["imagemapping"], OURS, "imagemappings"),
];
const OURS: &str = "apis/vmlet.dev/v1alpha1";

/// A request without an answer.
#[derive(Debug)]
struct Unanswered {
    path: String,
    within: Duration,
}

impl std::fmt::Display for Unanswered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GET {}: not within {:?}", self.path, self.within)
    }
}

impl std::error::Error for Unanswered {}

/// Reads objects of one cluster with the administrator's rights.
#[derive(Default)]
pub(crate) struct Reader(Mutex<Option<Client>>);

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reader")
    }
}

impl Reader {
    /// The object, or the list, at a path of the API.
    pub(crate) fn get(&self, kubeconfig: &Path, path: &str) -> Result<Value> {
        let text = self.text(kubeconfig, path);
        // An object is the API server's own; a log comes from a node.
        let text = text.map_err(|error| {
            if error.is::<Unanswered>() {
                return error.context(Late);
            }
            outcome::classified(error)
        })?;
        let mut value = serde_json::from_str(&text).context("parse the API server's answer")?;
        remove_managed_fields(&mut value);
        Ok(value)
    }

    /// The text at a path of the API, such as a log.
    pub(crate) fn text(&self, kubeconfig: &Path, path: &str) -> Result<String> {
        let runtime = RUNTIME.as_ref().map_err(|why| anyhow::anyhow!("{why}"))?;
        let known = self.client().clone();
        let kubeconfig = kubeconfig.to_owned();
        let uri = path.to_owned();
        let within = allowed(ANSWER)?.max(LEAST);
        let (answer, answered) = mpsc::channel();
        runtime.spawn(async move {
            let read = tokio::time::timeout(within, read(known, &kubeconfig, &uri)).await;
            // The receiver waits below until it has this answer.
            let _ = answer.send(read);
        });
        let read = answered.recv().context("the request panicked")?;
        let Ok(read) = read else {
            // Its connection may be what hangs.
            *self.client() = None;
            let path = path.to_owned();
            return Err(Unanswered { path, within }.into());
        };
        let (client, text) = read?;
        *self.client() = Some(client);
        Ok(text)
    }

    fn client(&self) -> std::sync::MutexGuard<'_, Option<Client>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn read(known: Option<Client>, kubeconfig: &Path, uri: &str) -> Result<(Client, String)> {
    if let Some(client) = known {
        match request(&client, uri).await {
            Ok(text) => return Ok((client, text)),
            // The API server decided.
            Err(error @ kube::Error::Api(_)) => return Err(error.into()),
            Err(_) => {}
        }
    }
    // An error means that another cluster of this process was first.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let client = Client::try_from(config).context("make a client")?;
    let text = request(&client, uri).await?;
    Ok((client, text))
}

async fn request(client: &Client, uri: &str) -> Result<String, kube::Error> {
    let request = http::Request::get(uri).body(Vec::new());
    client
        .request_text(request.map_err(kube::Error::HttpError)?)
        .await
}

fn remove_managed_fields(value: &mut Value) {
    let items = value["items"].as_array_mut();
    for item in items.into_iter().flatten() {
        remove_managed_fields(item);
    }
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
}

/// The path for arguments of `kubectl get`; none if this module does not know one of them.
pub(crate) fn path(arguments: &[&str]) -> Option<String> {
    let mut words = Vec::new();
    let mut namespace = "default";
    let mut query = String::new();
    let mut rest = arguments.iter().copied();
    while let Some(argument) = rest.next() {
        if argument == "-n" {
            namespace = rest.next()?;
        } else if let Some((option, value)) = selector(argument, &mut rest) {
            let sign = if query.is_empty() { '?' } else { '&' };
            query.push_str(&format!("{sign}{option}={}", encoded(value)));
        } else if argument.starts_with('-') {
            return None;
        } else {
            words.push(argument);
        }
    }
    let (kind, name) = match words[..] {
        [kind] => (kind, String::new()),
        [kind, name] => (kind, format!("/{name}")),
        _ => return None,
    };
    let of = |kinds: &'static [(&[&str], &'static str, &'static str)]| {
        let found = kinds.iter().find(|(names, ..)| names.contains(&kind));
        found.map(|(_, api, plural)| (*api, *plural))
    };
    if let Some((api, plural)) = of(KINDS) {
        return Some(format!(
            "/{api}/namespaces/{namespace}/{plural}{name}{query}"
        ));
    }
    let (api, plural) = of(CLUSTER_KINDS)?;
    Some(format!("/{api}/{plural}{name}{query}"))
}

/// The parameter of the API for an option of kubectl, with its value.
fn selector<'a>(
    argument: &'a str,
    rest: &mut impl Iterator<Item = &'a str>,
) -> Option<(&'static str, &'a str)> {
    let (option, value) = match argument.split_once('=') {
        Some((option, value)) => (option, Some(value)),
        None => (argument, None),
    };
    let parameter = match option {
        "--field-selector" => "fieldSelector",
        "--selector" | "-l" => "labelSelector",
        _ => return None,
    };
    Some((parameter, value.or_else(|| rest.next())?))
}

/// A value of a query: selectors have only these characters that a URL gives another meaning.
fn encoded(value: &str) -> String {
    value
        .replace('%', "%25")
        .replace('=', "%3D")
        .replace(',', "%2C")
        .replace('!', "%21")
        .replace(' ', "%20")
        .replace('&', "%26")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_kubectl_are_paths_of_the_api() {
        for (arguments, expected) in [
            (&["pod", "a"][..], "/api/v1/namespaces/default/pods/a"),
            (&["node", "node1"], "/api/v1/nodes/node1"),
            (
                &["-n", "x", "lease", "l"],
                "/apis/coordination.k8s.io/v1/namespaces/x/leases/l",
            ),
            (
                &["vm", "a"],
                "/apis/vmlet.dev/v1alpha1/namespaces/default/virtualmachines/a",
            ),
            (
                &["virtualmachineimage", "a"],
                "/apis/vmlet.dev/v1alpha1/namespaces/default/virtualmachineimages/a",
            ),
            (
                &["events", "--field-selector=involvedObject.name=a,reason=b"],
                "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3Da%2Creason%3Db",
            ),
            (
                &["pods", "-l", "app=a"],
                "/api/v1/namespaces/default/pods?labelSelector=app%3Da",
            ),
        ] {
            assert_eq!(path(arguments).as_deref(), Some(expected), "{arguments:?}");
        }
        for unknown in [
            &["vm,pods"][..],
            &["pvc", "a", "--show-managed-fields"],
            &["deployment", "a"],
            &["pods", "-A"],
        ] {
            assert_eq!(path(unknown), None, "{unknown:?}");
        }
    }
}
