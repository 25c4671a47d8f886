//! An object that a command creates or changes, and waits for.
//!
//! Invariant: an object is created once; waiting changes nothing, and is for the object that was there at the
//! request, not for another one of its name.
//! Failure: a name that is taken is a conflict. A watch that breaks off begins again, which is reported.

use std::fmt::Debug;

use anyhow::{Context, bail};
use futures_util::StreamExt;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, PostParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watch_object};
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::cluster::{Cluster, ClusterError, innermost};

/// The name of what is taken of a machine: that of the machine with the time.
pub(super) fn default_name(machine: &str, now: Timestamp) -> String {
    format!("{machine}-{}", now.strftime("%Y%m%d-%H%M%S"))
}

/// Creates an object, and returns its UID; `what` it is called in the error.
pub(super) async fn create<K>(
    cluster: &Cluster,
    object: &K,
    what: &str,
) -> Result<String, ClusterError>
where
    K: Resource<Scope = NamespaceResourceScope> + Clone + Debug + Serialize + DeserializeOwned,
    K::DynamicType: Default,
{
    let params = PostParams {
        field_manager: Some("vmletctl".to_owned()),
        ..PostParams::default()
    };
    let api: Api<K> = cluster.api();
    match api.create(&params, object).await {
        Ok(made) => Ok(made.uid().unwrap_or_default()),
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {
            Err(ClusterError::Conflict {
                name: object.name_any(),
                conflict: format!("there is a {what} of that name already"),
            })
        }
        Err(error) => Err(ClusterError::about(
            &cluster.namespace,
            &object.name_any(),
            error,
        )),
    }
}

/// Watches the object of this UID until `judge` returns true; an error with the text `deleted` when it is gone.
pub(super) async fn follow<K>(
    api: Api<K>,
    name: &str,
    uid: &str,
    deleted: &str,
    mut judge: impl FnMut(&K, &mut Said) -> anyhow::Result<bool>,
) -> anyhow::Result<()>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let mut said = Said::default();
    let mut seen = std::pin::pin!(watch_object(api, name).default_backoff());
    loop {
        let object = match seen.next().await.context("the watch ended")? {
            Ok(object) => object,
            Err(error) => {
                said.say(&broken(&error));
                continue;
            }
        };
        let Some(object) = object.filter(|found| found.uid().as_deref() == Some(uid)) else {
            bail!("{deleted}");
        };
        if judge(&object, &mut said)? {
            return Ok(());
        }
    }
}

/// The last message on the standard error, which is printed once.
#[derive(Debug, Default)]
pub(super) struct Said(String);

impl Said {
    pub(super) fn say(&mut self, text: &str) {
        if !text.is_empty() && self.0 != text {
            eprintln!("{}", crate::table::printable(text));
            text.clone_into(&mut self.0);
        }
    }
}

pub(super) fn broken(error: &watcher::Error) -> String {
    let why = innermost(error);
    format!("warning: the watch broke off and is begun again: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_the_machine_and_the_time() {
        let now = "2026-03-01T07:08:09.5Z".parse().unwrap();
        assert_eq!(default_name("web", now), "web-20260301-070809");
    }
}
