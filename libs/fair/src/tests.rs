//! Who gets a place, and when.
//!
//! Invariant: no clock; a request is polled until it waits.
//! Failure: the owner that has a place.

use std::pin::pin;

use tokio::sync::mpsc;
use tokio::task::{JoinSet, yield_now};

use super::*;

fn owner(name: &str) -> Owner {
    Owner::from(name)
}

const fn places_of(all: usize, per_owner: usize) -> Bounds {
    Bounds { all, per_owner }
}

/// Whether a future has its result after one poll.
async fn is_ready<T>(future: impl Future<Output = T>) -> bool {
    let mut future = pin!(future);
    let poll = |context: &mut std::task::Context<'_>| {
        std::task::Poll::Ready(future.as_mut().poll(context).is_ready())
    };
    std::future::poll_fn(poll).await
}

#[tokio::test]
async fn an_owner_gets_its_share_and_leaves_the_rest_to_others() {
    let places = Places::new(places_of(4, 2));
    let greedy = owner("greedy");
    let other = owner("other");
    let first = places.take(&greedy).await;
    let second = places.take(&greedy).await;
    assert!(!is_ready(places.take(&greedy)).await);
    assert!(places.try_take(&greedy).is_none());
    let third = places.take(&other).await;
    assert_eq!(places.free(), 1);
    drop(first);
    assert!(is_ready(places.take(&greedy)).await);
    drop((second, third));
    assert_eq!(places.free(), 4);
    assert!(places.state().held.is_empty());
    assert!(places.state().waiting.is_empty());
}

#[tokio::test]
async fn a_place_goes_to_the_owner_that_holds_fewest_however_many_requests_wait() {
    let places = Places::new(places_of(3, 3));
    let mut held = Vec::new();
    for name in ["greedy", "greedy", "modest"] {
        held.push(places.take(&owner(name)).await);
    }
    let (grants, mut granted) = mpsc::unbounded_channel();
    let mut waiting = JoinSet::new();
    for (number, name) in ["greedy", "greedy", "greedy", "modest", "late"]
        .into_iter()
        .enumerate()
    {
        let places = places.clone();
        let grants = grants.clone();
        waiting.spawn(async move {
            let place = places.take(&owner(name)).await;
            grants.send((number, place)).unwrap();
        });
        yield_now().await;
    }
    // One place moves on: the others stay with those who hold them.
    let mut order = Vec::new();
    let mut moving = held.pop();
    for _ in 0..5 {
        drop(moving.take());
        let (number, place) = granted.recv().await.unwrap();
        order.push(number);
        moving = Some(place);
    }
    // Nothing is held by "modest" and "late"; the older request of these two comes first.
    assert_eq!(order, [3, 4, 0, 1, 2]);
}

#[tokio::test]
async fn a_request_that_was_given_up_takes_no_place() {
    let places = Places::new(places_of(1, 1));
    let held = places.take(&owner("a")).await;
    {
        let other = owner("b");
        let mut given_up = pin!(places.take(&other));
        assert!(!is_ready(given_up.as_mut()).await);
    }
    let late = owner("c");
    let mut granted_too_late = Box::pin(places.take(&late));
    assert!(!is_ready(granted_too_late.as_mut()).await);
    drop(held);
    // The place is on its way when the request is given up.
    assert_eq!(places.free(), 0);
    drop(granted_too_late);
    assert_eq!(places.free(), 1);
    assert!(places.try_take(&owner("d")).is_some());
}
