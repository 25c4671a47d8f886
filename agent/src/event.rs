//! Events that the agent creates.
//!
//! Invariant: one event for each object and key, which is the text unless said otherwise: the
//! event's name is made from both, so that another attempt, or another agent, creates none.
//! Failure: the API server's message; objects that were created already stay.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, PostParams};
use service::telemetry;

/// Longest wait for the API server in one call.
const API: Duration = Duration::from_secs(15);
/// What the API server takes: bytes of a note, and of the name of who reports.
const LONGEST_NOTE: usize = 1024;
const LONGEST_INSTANCE: usize = 128;
/// Bytes of the object's name in the event's name.
const LONGEST_NAME: usize = 200;

/// What events are about, and why there are any.
#[derive(Debug, Clone)]
pub(crate) struct About<'a> {
    /// Of the events.
    pub(crate) namespace: &'a str,
    pub(crate) object: ObjectReference,
    pub(crate) action: &'static str,
    pub(crate) reason: &'static str,
    pub(crate) severity: Severity,
}

/// The type of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Severity {
    Normal,
    Warning,
}

/// A pod, for [`About`].
pub(crate) fn pod(namespace: &str, name: &str, uid: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        name: Some(name.to_owned()),
        namespace: Some(namespace.to_owned()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    }
}

/// A node, for [`About`].
pub(crate) fn node(name: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: Some(name.to_owned()),
        // As kubelet names its node in events.
        uid: Some(name.to_owned()),
        ..ObjectReference::default()
    }
}

/// Creates an event for each text.
pub(crate) async fn report(
    client: kube::Client,
    node: &str,
    about: &About<'_>,
    texts: &[String],
) -> Result<(), String> {
    for text in texts {
        report_once(client.clone(), node, about, text, text).await?;
    }
    Ok(())
}

/// Creates an event, unless the object has one with this key.
pub(crate) async fn report_once(
    client: kube::Client,
    node: &str,
    about: &About<'_>,
    key: &str,
    text: &str,
) -> Result<(), String> {
    let api: Api<Event> = Api::namespaced(client, about.namespace);
    let event = event(node, about, key, text, Timestamp::now());
    match tokio::time::timeout(API, api.create(&PostParams::default(), &event)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(kube::Error::Api(status))) if status.code == 409 => Ok(()),
        Ok(Err(e)) => Err(telemetry::one_line(&e)),
        Err(_) => Err("the API server did not answer in time".to_owned()),
    }
}

fn event(node: &str, about: &About<'_>, key: &str, text: &str, now: Timestamp) -> Event {
    let object = &about.object;
    let mut hash = DefaultHasher::new();
    (&object.uid, key).hash(&mut hash);
    let name = cut(object.name.as_deref().unwrap_or_default(), LONGEST_NAME);
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{name}.{:016x}", hash.finish())),
            namespace: Some(about.namespace.to_owned()),
            ..ObjectMeta::default()
        },
        action: Some(about.action.to_owned()),
        event_time: Some(MicroTime(now)),
        note: Some(cut(text, LONGEST_NOTE).to_owned()),
        reason: Some(about.reason.to_owned()),
        regarding: Some(object.clone()),
        reporting_controller: Some("vmlet-agent".to_owned()),
        reporting_instance: Some(cut(node, LONGEST_INSTANCE).to_owned()),
        type_: Some(format!("{:?}", about.severity)),
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
        let about = About {
            namespace: "ns",
            object: ObjectReference {
                name: Some("p".repeat(253)),
                uid: Some(uid.to_owned()),
                ..ObjectReference::default()
            },
            action: "CreateContainer",
            reason: "Unsupported",
            severity: Severity::Warning,
        };
        let event = event("n1", &about, text, text, Timestamp::UNIX_EPOCH);
        assert!(event.note.unwrap().len() <= LONGEST_NOTE);
        assert_eq!(event.type_.as_deref(), Some("Warning"));
        event.metadata.name.unwrap()
    }

    #[test]
    fn the_same_object_and_text_make_the_same_name() {
        assert_eq!(name("u", "a"), name("u", "a"));
        assert_ne!(name("u", "a"), name("u", "b"));
        assert_ne!(name("u", "a"), name("v", "a"));
        assert!(name("u", &"é".repeat(2000)).len() <= 253);
    }
}
