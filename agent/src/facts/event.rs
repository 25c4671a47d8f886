//! Events about what a pod asks for and its guest does not get.
//!
//! Invariant: one event for each pod and text: its name is made from both, so that another attempt, or another agent,
//! creates none.
//! Failure: the API server's words; what was created already stays.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, PostParams};

use super::pod::Identity;

/// Longest wait for the API server in one call.
const API: Duration = Duration::from_secs(15);
/// What the API server takes: bytes of a note, and of the name of who reports.
const LONGEST_NOTE: usize = 1024;
const LONGEST_INSTANCE: usize = 128;
/// Bytes of the pod's name in the event's name.
const LONGEST_NAME: usize = 200;

/// Creates an event for each text.
pub(super) async fn report(
    client: kube::Client,
    node: &str,
    pod: &Identity,
    texts: &[String],
) -> Result<(), String> {
    let api: Api<Event> = Api::namespaced(client, &pod.namespace);
    for text in texts {
        let event = event(node, pod, text, Timestamp::now());
        match tokio::time::timeout(API, api.create(&PostParams::default(), &event)).await {
            Ok(Ok(_)) => {}
            Ok(Err(kube::Error::Api(status))) if status.code == 409 => {}
            Ok(Err(e)) => return Err(telemetry::one_line(&e)),
            Err(_) => return Err("the API server did not answer in time".to_owned()),
        }
    }
    Ok(())
}

fn event(node: &str, pod: &Identity, text: &str, now: Timestamp) -> Event {
    let mut hash = DefaultHasher::new();
    (&pod.uid, text).hash(&mut hash);
    let name = cut(&pod.name, LONGEST_NAME);
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{name}.{:016x}", hash.finish())),
            namespace: Some(pod.namespace.clone()),
            ..ObjectMeta::default()
        },
        action: Some("CreateContainer".to_owned()),
        event_time: Some(MicroTime(now)),
        note: Some(cut(text, LONGEST_NOTE).to_owned()),
        reason: Some("Unsupported".to_owned()),
        regarding: Some(ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: Some(pod.name.clone()),
            namespace: Some(pod.namespace.clone()),
            uid: Some(pod.uid.clone()),
            ..ObjectReference::default()
        }),
        reporting_controller: Some("vmlet-agent".to_owned()),
        reporting_instance: Some(cut(node, LONGEST_INSTANCE).to_owned()),
        type_: Some("Warning".to_owned()),
        ..Event::default()
    }
}

/// The beginning of a text, in whole characters.
fn cut(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(uid: &str, text: &str) -> String {
        let pod = Identity {
            uid: uid.to_owned(),
            namespace: "ns".to_owned(),
            name: "p".repeat(253),
        };
        let event = event("n1", &pod, text, Timestamp::UNIX_EPOCH);
        assert!(event.note.unwrap().len() <= LONGEST_NOTE);
        event.metadata.name.unwrap()
    }

    #[test]
    fn the_same_pod_and_text_make_the_same_name() {
        assert_eq!(name("u", "a"), name("u", "a"));
        assert_ne!(name("u", "a"), name("u", "b"));
        assert_ne!(name("u", "a"), name("v", "a"));
        assert!(name("u", &"é".repeat(2000)).len() <= 253);
    }
}
