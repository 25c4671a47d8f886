//! Kubernetes events: what users see with `kubectl describe`.
//!
//! Invariant: a pass never waits for an event to be written; the same event again becomes a count,
//! and one with another message an event of its own.
//! Failure: events that the API server refuses, or that are more than the queue holds, are lost and
//! counted.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource};
use prometheus_client::metrics::counter::Counter;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::metrics::Metrics;

/// Who reports. A plain name: slashes are refused by the API server.
pub const REPORTER: &str = "vmlet-controller";
/// How many events may wait to be written.
const WAITING: usize = 1024;
/// How long events that wait are written on after the last pass has ended.
pub const FLUSH: Duration = Duration::from_secs(2);
/// Longest time that writing one event may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Longest message that the API takes, in bytes.
const LONGEST_NOTE: usize = 1024;
/// Longest reason, and longest action, that the API takes, in bytes.
const LONGEST_REASON: usize = 128;
/// Length of the part of an action that stands for the message, in bytes.
const HASH: usize = 9;

/// An event on its way.
#[derive(Debug, Clone, PartialEq)]
pub struct Reported {
    /// What it is about.
    pub object: ObjectReference,
    /// It should be looked at.
    pub is_warning: bool,
    /// One word.
    pub reason: String,
    /// A sentence.
    pub message: String,
}

/// Takes events to be written.
#[derive(Debug, Clone)]
pub struct Events {
    queue: mpsc::Sender<Reported>,
    lost: Counter,
}

/// Events that were not written yet.
pub type Queue = mpsc::Receiver<Reported>;

impl Events {
    /// Both ends.
    #[must_use]
    pub fn channel() -> (Self, Queue) {
        let (sender, receiver) = mpsc::channel(WAITING);
        let events = Self {
            queue: sender,
            lost: Counter::default(),
        };
        (events, receiver)
    }

    /// The same, counting there what finds no room.
    #[must_use]
    pub fn counting(self, lost: Counter) -> Self {
        Self { lost, ..self }
    }

    /// Reports that something succeeded.
    pub fn normal(&self, object: &impl Resource<DynamicType = ()>, reason: &str, message: &str) {
        self.report(object, false, reason, message);
    }

    /// Reports what an owner or an administrator should look at.
    pub fn warning(&self, object: &impl Resource<DynamicType = ()>, reason: &str, message: &str) {
        self.report(object, true, reason, message);
    }

    fn report(
        &self,
        object: &impl Resource<DynamicType = ()>,
        is_warning: bool,
        reason: &str,
        message: &str,
    ) {
        let reported = Reported {
            object: object.object_ref(&()),
            is_warning,
            reason: shortened(reason, LONGEST_REASON),
            message: shortened(message, LONGEST_NOTE),
        };
        // A full queue loses the event, as documented; a closed one means that the process ends.
        if self.queue.try_send(reported).is_err() {
            self.lost.inc();
            tracing::debug!(reason, message, "event dropped");
        }
    }
}

/// Writes events until every [`Events`] no longer exists.
pub async fn write(client: Client, instance: String, mut queue: Queue, metrics: Arc<Metrics>) {
    let reporter = Reporter {
        controller: REPORTER.to_owned(),
        instance: Some(instance),
    };
    let recorder = Recorder::new(client, reporter);
    while let Some(reported) = queue.recv().await {
        let event = Event {
            type_: if reported.is_warning {
                EventType::Warning
            } else {
                EventType::Normal
            },
            action: action(&reported),
            reason: reported.reason,
            note: Some(reported.message),
            secondary: None,
        };
        let published = timeout(TIMEOUT, recorder.publish(&event, &reported.object)).await;
        let error = match published {
            Ok(Ok(_)) => continue,
            Ok(Err(error)) => error.to_string(),
            Err(elapsed) => elapsed.to_string(),
        };
        metrics.events_lost.inc();
        tracing::debug!(error, reason = event.reason, "event dropped");
    }
}

/// The recorder counts events of the same action and reason as one, and keeps the text of the
/// first: another text is another action.
fn action(reported: &Reported) -> String {
    let mut hasher = DefaultHasher::new();
    reported.message.hash(&mut hasher);
    let reason = shortened(&reported.reason, LONGEST_REASON - HASH);
    format!("{reason}-{:08x}", hasher.finish() & u64::from(u32::MAX))
}

/// The text, or its beginning when it is longer than `limit` bytes.
fn shortened(text: &str, limit: usize) -> String {
    let end = (0..=limit.min(text.len()))
        .rev()
        .find(|end| text.is_char_boundary(*end));
    text[..end.unwrap_or_default()].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crds::VirtualMachine;
    use http_body_util::BodyExt;

    #[test]
    fn an_event_is_shortened_to_what_the_api_takes() {
        let (events, mut queue) = Events::channel();
        let vm = VirtualMachine::new("vm", Default::default());
        events.warning(&vm, "CreateFailure", &"ä".repeat(LONGEST_NOTE));
        let reported = queue.try_recv().unwrap();
        assert_eq!(reported.message.len(), LONGEST_NOTE);
        assert_eq!(reported.object.kind.as_deref(), Some("VirtualMachine"));
        assert!(reported.is_warning);
    }

    #[test]
    fn unwritten_events_never_block_a_pass() {
        let (events, mut queue) = Events::channel();
        let lost = Counter::default();
        let events = events.counting(lost.clone());
        let vm = VirtualMachine::new("vm", Default::default());
        for _ in 0..=WAITING {
            events.normal(&vm, "UpdateSuccess", "resized");
        }
        queue.close();
        assert_eq!(queue.len(), WAITING);
        assert_eq!(lost.get(), 1, "the one that was too much");
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_does_not_answer_loses_one_event_at_a_time() {
        let (events, queue) = Events::channel();
        let silent = tower::service_fn(|_: http::Request<kube::client::Body>| {
            std::future::pending::<Result<http::Response<kube::client::Body>, std::io::Error>>()
        });
        let client = Client::new(silent, "default");
        let vm = VirtualMachine::new("vm", Default::default());
        events.normal(&vm, "UpdateSuccess", "resized");
        drop(events);
        let metrics = Arc::new(Metrics::default());
        write(client, "x".to_owned(), queue, Arc::clone(&metrics)).await;
        assert_eq!(metrics.events_lost.get(), 1);
    }

    /// What the API server received for these events: method, note and action.
    async fn written(messages: &[&str]) -> Vec<(http::Method, String, String)> {
        let (sender, mut received) = mpsc::unbounded_channel();
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let sender = sender.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let event: serde_json::Value = serde_json::from_slice(&body).unwrap();
                let text = |field: &str| event[field].as_str().unwrap().to_owned();
                sender
                    .send((parts.method, text("note"), text("action")))
                    .unwrap();
                let response = http::Response::new(kube::client::Body::from(body.to_vec()));
                Ok::<_, std::convert::Infallible>(response)
            }
        });
        let (events, queue) = Events::channel();
        let vm = VirtualMachine::new("vm", Default::default());
        for message in messages {
            events.warning(&vm, &"R".repeat(LONGEST_REASON), message);
        }
        drop(events);
        let client = Client::new(service, "default");
        write(client, "x".to_owned(), queue, Arc::new(Metrics::default())).await;
        let mut all = Vec::new();
        while let Ok(one) = received.try_recv() {
            all.push(one);
        }
        all
    }

    #[tokio::test]
    async fn a_new_message_is_a_new_event_and_the_same_one_is_counted() {
        let all = written(&["no image", "no image", "quota exceeded", "no image"]).await;
        let is_new: Vec<_> = all.iter().map(|(m, ..)| m == http::Method::POST).collect();
        assert_eq!(is_new, [true, false, true, false]);
        assert_eq!(all[2].1, "quota exceeded");
        assert!(
            all.iter()
                .all(|(.., action)| action.len() <= LONGEST_REASON)
        );
    }

    #[test]
    fn the_reporter_has_a_name_that_the_api_takes() {
        let plain = REPORTER.chars().all(|c| c.is_ascii_lowercase() || c == '-');
        assert!(plain && REPORTER.len() < 64);
    }
}
