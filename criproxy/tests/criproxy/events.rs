//! Container events of all runtimes.
//!
//! Invariant: the stream stays open whatever happens to the runtimes, and misses nothing.
//! Failure: the assertion shows the events.

use std::sync::Arc;
use std::time::Duration;

use cri_proto::v1;
use cri_proto::v1::ContainerEventType as Event;
use tokio::sync::Semaphore;
use tonic::{Code, Streaming};

use crate::environment::{Cri, TestEnvironment, eventually};
use crate::fake::{Fake, Mood};

type Events = Streaming<v1::ContainerEventResponse>;

/// Waits until the proxy knows what a runtime has.
async fn looked_at(fake: &Fake, cri: &mut Cri) {
    eventually("the first look", async || fake.was_called("ListContainers")).await;
    // Answered behind the look's own.
    cri.containers().await.unwrap();
}

async fn events(cri: &mut Cri) -> Events {
    let request = v1::GetEventsRequest {};
    cri.runtime
        .get_container_events(request)
        .await
        .unwrap()
        .into_inner()
}

/// A pod of the primary, and a client that the proxy has subscribed.
async fn pod_and_events(env: &TestEnvironment, cri: &mut Cri) -> (String, Events) {
    env.primary.have_events();
    let pod = cri.run("", "").await.unwrap();
    // The proxy has listed containers before, when it met the runtime.
    env.primary.calls();
    let events = events(cri).await;
    looked_at(&env.primary, cri).await;
    eventually("the proxy to listen", async || env.primary.is_subscribed()).await;
    (pod, events)
}

/// Waits for this event, past others.
async fn received(events: &mut Events, id: &str, kind: Event) -> v1::ContainerEventResponse {
    let wait = async {
        loop {
            let event = events.message().await.unwrap().expect("an endless stream");
            if event.container_id == id && event.container_event_type() == kind {
                return event;
            }
        }
    };
    let found = tokio::time::timeout(Duration::from_secs(60), wait).await;
    found.unwrap_or_else(|_| panic!("no {kind:?} of {id}"))
}

#[tokio::test]
async fn events_of_the_primary_pass_and_those_of_a_silent_secondary_are_found() {
    let (env, mut cri) = TestEnvironment::start().await;
    env.primary.have_events();
    let vm = cri.run("vmlet", "").await.unwrap();
    env.secondary.calls();
    let mut events = events(&mut cri).await;
    looked_at(&env.secondary, &mut cri).await;
    eventually("the proxy to listen", async || env.primary.is_subscribed()).await;
    env.primary.emit("p", Event::ContainerStoppedEvent);
    received(&mut events, "p", Event::ContainerStoppedEvent).await;

    let container = cri.container(&vm).await.unwrap();
    let event = received(&mut events, &container, Event::ContainerStartedEvent).await;
    assert_eq!(event.pod_sandbox_status.unwrap().id, vm);
    assert_eq!(event.containers_statuses[0].id, container);
}

#[tokio::test]
async fn changes_during_a_runtime_outage_are_reported_after_it() {
    let (mut env, mut cri) = TestEnvironment::start().await;
    let (pod, mut events) = pod_and_events(&env, &mut cri).await;
    env.primary.kill();
    env.primary.with(|state| state.sandboxes.clear());
    env.primary.start();
    received(&mut events, &pod, Event::ContainerDeletedEvent).await;
}

#[tokio::test]
async fn a_reported_change_has_the_time_of_its_status() {
    let (mut env, mut cri) = TestEnvironment::start().await;
    let (_, mut events) = pod_and_events(&env, &mut cri).await;
    env.primary.kill();
    env.primary.add_sandbox("during");
    // What the runtime sends itself after this time is newer for kubelet.
    env.primary.with(|state| state.time = 7);
    env.primary.start();
    let event = received(&mut events, "during", Event::ContainerStartedEvent).await;
    assert_eq!(event.created_at, 7);
    assert_eq!(event.pod_sandbox_status.unwrap().id, "during");
}

#[tokio::test]
async fn events_that_arrive_beside_the_lists_are_sent_once() {
    let (mut env, mut cri) = TestEnvironment::start().await;
    let (pod, mut events) = pod_and_events(&env, &mut cri).await;
    env.primary.kill();
    env.primary.add_sandbox("during");
    let held = Arc::new(Semaphore::new(0));
    env.primary.mood(Mood::Held(Arc::clone(&held)));
    env.primary.have_events();
    env.primary.start();
    eventually("the proxy to listen", async || env.primary.is_subscribed()).await;
    let beside = [
        ("during", Event::ContainerCreatedEvent),
        ("during", Event::ContainerStartedEvent),
        ("later", Event::ContainerCreatedEvent),
        ("during", Event::ContainerStoppedEvent),
    ];
    for (id, event) in beside {
        env.primary.emit(id, event);
    }
    env.primary.mood(Mood::Well);
    held.add_permits(1000);
    let mut all = Vec::new();
    while all.last() != Some(&(pod.clone(), Event::ContainerDeletedEvent)) {
        if all.len() == 4 {
            env.primary.emit(&pod, Event::ContainerDeletedEvent);
        }
        let next = tokio::time::timeout(Duration::from_secs(60), events.message()).await;
        let event = next.expect("an event").unwrap().expect("an endless stream");
        all.push((event.container_id.clone(), event.container_event_type()));
    }
    let expected = [
        ("during", Event::ContainerCreatedEvent),
        ("during", Event::ContainerStartedEvent),
        ("later", Event::ContainerCreatedEvent),
        ("during", Event::ContainerStoppedEvent),
        (pod.as_str(), Event::ContainerDeletedEvent),
    ];
    let expected = expected.map(|(id, event)| (id.to_owned(), event));
    assert_eq!(all, expected);
}

#[tokio::test]
async fn without_events_of_the_primary_there_are_none() {
    let (env, mut cri) = TestEnvironment::start().await;
    env.secondary.have_events();
    let mut events = events(&mut cri).await;
    let error = events.message().await.unwrap_err();
    assert_eq!(error.code(), Code::Unimplemented);
    assert_eq!(error.message(), "no events");
}
