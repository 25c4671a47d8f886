//! Reads one object of the cluster, for a sentence that people read.
//!
//! Invariant: no error repeats what is in an object.
//! Failure: a sentence that states what is missing and what to do.

use std::fmt::Debug;
use std::time::Duration;

use kube::Api;
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
    match tokio::time::timeout(API, api.get(name)).await {
        Ok(Ok(object)) => Ok(object),
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
