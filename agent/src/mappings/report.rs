//! The condition `Ready` of an object, which the agents of all nodes share.
//!
//! Invariant: for a generation of the object, `False` of one node stays until that node accepts it;
//! so the condition is written a few times, however many nodes there are.
//! Failure: a write that is refused or late is a line in the log; the next event or round repeats it.

use std::time::Duration;

use crds::conditions::{self, READY, Status};
use crds::{ImageMapping, ImageMappingStatus};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use service::telemetry;

use super::Object;

/// Longest wait for the API server.
const API: Duration = Duration::from_secs(8);
/// Longest message, in bytes.
const MESSAGE: usize = 1024;
const REFUSED: &str = "Refused";

/// Says in the object's status how this node uses it.
pub(super) async fn report(
    client: &kube::Client,
    node: &str,
    object: &Object,
    outcome: Result<(), &str>,
) {
    let Some(status) = changed(node, object, outcome, Timestamp::now()) else {
        return;
    };
    let name = object.metadata.name.as_deref().unwrap_or_default();
    // Another agent may have written meanwhile; then its event brings this one back here.
    let patch = json!({
        "metadata": { "resourceVersion": object.metadata.resource_version },
        "status": status,
    });
    let api: Api<ImageMapping> = Api::all(client.clone());
    let patch = Patch::Merge(&patch);
    let params = PatchParams::default();
    let written = tokio::time::timeout(API, api.patch_status(name, &params, &patch));
    match written.await {
        Ok(Ok(_)) => {}
        Ok(Err(kube::Error::Api(status))) if [404, 409].contains(&status.code) => {}
        Ok(Err(error)) => {
            let error = telemetry::one_line(&error);
            tracing::warn!(
                mapping = name,
                error,
                "status of an image mapping not written"
            );
        }
        Err(_) => {
            let error = "the API server did not answer in time";
            tracing::warn!(
                mapping = name,
                error,
                "status of an image mapping not written"
            );
        }
    }
}

/// The status to write, if it differs.
fn changed(
    node: &str,
    object: &Object,
    outcome: Result<(), &str>,
    now: Timestamp,
) -> Option<ImageMappingStatus> {
    let mut status = object.status.clone();
    let generation = object.metadata.generation;
    let prefix = format!("node {node}: ");
    let ready = conditions::find(&status.conditions, READY);
    let is_current = status.observed_generation == generation && ready.is_some();
    let is_false = ready.is_some_and(|ready| ready.status == Status::False.as_str());
    let is_ours = |ready: &Condition| ready.message.starts_with(&prefix);
    let stays = match outcome {
        Ok(()) => is_current && !(is_false && ready.is_some_and(is_ours)),
        // The reason may have changed.
        Err(_) => is_current && is_false && !ready.is_some_and(is_ours),
    };
    if stays {
        return None;
    }
    let (value, reason, message) = match outcome {
        Ok(()) => (Status::True, "Accepted", String::new()),
        Err(reason) => {
            let message = crds::text::printable(&format!("{prefix}{reason}"), MESSAGE);
            (Status::False, REFUSED, message)
        }
    };
    let all = &mut status.conditions;
    let now = Time(now);
    let is_new = conditions::set(all, READY, value, reason, &message, generation, &now);
    let is_seen = status.observed_generation == generation;
    status.observed_generation = generation;
    (is_new || !is_seen).then_some(status)
}

#[cfg(test)]
mod tests {
    use crds::ImageMappingSpec;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    use super::*;

    /// The object after this outcome on this node, and whether it was written.
    fn after(
        object: &mut Object,
        node: &str,
        outcome: Result<(), &str>,
    ) -> Option<(String, String)> {
        let status = changed(node, object, outcome, Timestamp::UNIX_EPOCH)?;
        let ready = conditions::find(&status.conditions, READY).unwrap();
        let seen = (ready.status.clone(), ready.message.clone());
        assert_eq!(status.observed_generation, object.metadata.generation);
        object.status = status;
        Some(seen)
    }

    #[test]
    fn a_node_that_refuses_counts_until_it_accepts_or_the_object_changes() {
        let mut object = Object {
            metadata: ObjectMeta::default(),
            spec: Ok(ImageMappingSpec::default()),
            status: ImageMappingStatus::default(),
        };
        object.metadata.generation = Some(1);
        let accepted = || Some(("True".to_owned(), String::new()));
        let refused = |message: &str| Some(("False".to_owned(), message.to_owned()));
        assert_eq!(after(&mut object, "a", Ok(())), accepted());
        assert_eq!(after(&mut object, "b", Ok(())), None);
        assert_eq!(after(&mut object, "b", Err("x")), refused("node b: x"));
        assert_eq!(after(&mut object, "b", Err("x")), None);
        assert_eq!(after(&mut object, "b", Err("y")), refused("node b: y"));
        for outcome in [Ok(()), Err("z")] {
            assert_eq!(after(&mut object, "a", outcome), None);
        }
        assert_eq!(after(&mut object, "b", Ok(())), accepted());
        object.metadata.generation = Some(2);
        assert_eq!(after(&mut object, "a", Err("z")), refused("node a: z"));
        object.metadata.generation = Some(3);
        assert_eq!(after(&mut object, "b", Ok(())), accepted());
    }
}
