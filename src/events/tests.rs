//! Events of a whole life, and of clients that do not read.
//!
//! Invariant: real services over a real database, with fakes of libvirt and of the network.
//! Failure: the assertion shows the events.

use super::*;
use crate::testkit::Node;

/// What waits for the client: object, change, phase of the sandbox, phases of the containers.
fn waiting(events: &mut Subscription) -> Vec<String> {
    let mut all = Vec::new();
    while let Ok(event) = events.try_recv() {
        all.push(event.map_or_else(|ended| format!("{ended:?}"), |event| describe(&event)));
    }
    all
}

fn describe(event: &Event) -> String {
    let sandbox = event.sandbox.as_ref();
    let pod = sandbox.map_or("none".to_owned(), |s| s.phase.to_string());
    let object = if sandbox.is_some_and(|s| s.id.as_str() == event.id) {
        "sandbox"
    } else {
        "container"
    };
    let containers = event.containers.iter().map(|c| c.phase.to_string());
    let containers = containers.collect::<Vec<_>>().join(",");
    format!("{object} {:?} {pod} [{containers}]", event.change)
}

#[tokio::test]
async fn a_life_is_eight_events_with_the_pod_as_it_was() {
    let node = Node::new().await;
    let events = Events::following(&node.sandbox_rows, &node.rows);
    let mut client = events.subscribe();
    let pod = node.sandboxes.run(node.pod("web")).await.unwrap();
    let created = node.containers.create(&pod, node.machine(0)).await;
    let container = created.unwrap();
    node.containers.start(&container).await.unwrap();
    let expected = [
        "sandbox Created ready []",
        "sandbox Started ready []",
        "container Created ready [created]",
        "container Started ready [running]",
    ];
    assert_eq!(waiting(&mut client), expected);
    let late = events.subscribe();
    node.sandboxes.stop(&pod).await.unwrap();
    node.sandboxes.remove(&pod).await.unwrap();
    let stopped = waiting(&mut client);
    let expected = [
        "sandbox Stopped stopping [running]",
        "container Stopped stopping [exited]",
        "container Deleted removing []",
        "sandbox Deleted removing []",
    ];
    assert_eq!(stopped, expected);
    assert_eq!(
        late.len(),
        expected.len(),
        "nothing of before it subscribed"
    );
    assert!(events.lock().pods.is_empty(), "nothing is kept of the pod");
}

#[tokio::test]
async fn times_increase_and_pods_of_before_are_known() {
    let node = Node::new().await;
    let pod = node.sandboxes.run(node.pod("web")).await.unwrap();
    let events = Events::following(&node.sandbox_rows, &node.rows);
    let mut client = events.subscribe();
    let ahead = clock::from_now(std::time::Duration::from_secs(3600));
    events.lock().last = ahead;
    node.containers.create(&pod, node.machine(0)).await.unwrap();
    node.sandboxes.stop(&pod).await.unwrap();
    let mut times = vec![ahead];
    while let Ok(Ok(event)) = client.try_recv() {
        assert_eq!(event.sandbox.map(|s| s.id.clone()), Some(pod.clone()));
        times.push(event.at);
    }
    assert!(
        times.len() > 2 && times.is_sorted_by(|a, b| a < b),
        "{times:?}"
    );
}

#[tokio::test]
async fn a_client_that_does_not_read_is_cut_with_a_reason_and_the_others_are_not() {
    let node = Node::new().await;
    let events = Events::following(&node.sandbox_rows, &node.rows);
    let mut slow = events.subscribe();
    let mut fast = events.subscribe();
    let pod = node.sandboxes.run(node.pod("web")).await.unwrap();
    let first = waiting(&mut fast).len();
    let [before, after] = [Change::Created, Change::Deleted].map(|change| vec![change; WAITING]);
    for changes in [before, after] {
        events
            .lock()
            .publish(&pod, pod.as_str(), &changes[..WAITING - first]);
        assert_eq!(waiting(&mut fast).len(), WAITING - first);
    }
    assert_eq!(events.lock().clients.len(), 1);
    let received = waiting(&mut slow);
    assert_eq!(received.len(), WAITING + 1);
    assert_eq!(received.last().map(String::as_str), Some("TooSlow"));
    assert!(slow.recv().await.is_none());
}

#[tokio::test]
async fn a_stop_ends_every_subscription() {
    let node = Node::new().await;
    let events = Events::following(&node.sandbox_rows, &node.rows);
    let mut client = events.subscribe();
    drop(events.subscribe());
    node.sandboxes.run(node.pod("web")).await.unwrap();
    assert_eq!(events.lock().clients.len(), 1, "one has disconnected");
    events.close();
    assert_eq!(
        waiting(&mut client).last().map(String::as_str),
        Some("Stopping")
    );
    assert_eq!(waiting(&mut events.subscribe()), ["Stopping"]);
}
