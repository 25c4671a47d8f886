//! Reads objects of the cluster, for a sentence that people read.
//!
//! Invariant: no error repeats what is in an object.
//! Failure: a sentence that states what is missing and what to do.

use std::fmt::Debug;
use std::time::Duration;

use kube::Api;
use kube::api::ListParams;
use serde::de::DeserializeOwned;
use service::telemetry;

/// Longest wait for the API server in one call.
const API: Duration = Duration::from_secs(8);

/// The object of this name. `what` stands for it in the sentence, `advice` gives the right to read
/// it.
pub(crate) async fn read<K>(api: &Api<K>, name: &str, what: &str, advice: &str) -> Result<K, String>
where
    K: Clone + Debug + DeserializeOwned,
{
    answer(api.get(name), what, advice).await
}

/// All objects with these parameters, as [`read`].
pub(crate) async fn list<K>(
    api: &Api<K>,
    parameters: &ListParams,
    what: &str,
) -> Result<Vec<K>, String>
where
    K: Clone + Debug + DeserializeOwned,
{
    let advice = "apply deploy/agent/serviceaccount.yaml";
    let list = answer(api.list(parameters), what, advice).await?;
    Ok(list.items)
}

async fn answer<T>(
    request: impl Future<Output = kube::Result<T>>,
    what: &str,
    advice: &str,
) -> Result<T, String> {
    match tokio::time::timeout(API, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => {
            Err(format!("{what} does not exist: create it"))
        }
        Ok(Err(kube::Error::Api(status))) if status.code == 403 => {
            Err(format!("vmlet-agent may not read {what}: {advice}"))
        }
        // What cannot be decoded may be shown by its error.
        Ok(Err(kube::Error::SerdeError(_))) => Err(format!("{what} cannot be understood")),
        Ok(Err(error)) => Err(telemetry::one_line(&error)),
        Err(_) => Err("the API server did not answer in time".to_owned()),
    }
}
