//! Quiet pushes: what a pass itself changed ends no back-off, and is not lost either.
//!
//! Invariant: time is an argument.
//! Failure: the assertion shows what was handed out, or when.

use std::time::Duration;

use workqueue::{Config, Options, Queue};

const NOW: Duration = Duration::from_secs(1);

fn queue() -> Queue<&'static str> {
    Queue::new(Config::default())
}

/// A key in flight.
fn in_flight() -> Queue<&'static str> {
    let mut queue = queue();
    queue.push(NOW, "a", Options::at(1));
    queue.pop(NOW).unwrap();
    queue
}

#[test]
fn a_quiet_push_of_an_idle_key_is_a_push() {
    let mut queue = queue();
    queue.push(NOW, "a", Options::at(7).quiet());
    assert_eq!(queue.pop(NOW).unwrap().priority, 7);
}

#[test]
fn a_key_that_waits_after_a_failure_keeps_waiting() {
    let mut queue = in_flight();
    queue.push(NOW, "a", Options::at(1).rate_limited());
    queue.done(NOW, &"a");
    queue.push(NOW, "a", Options::at(100).quiet());
    assert_eq!(queue.pop(NOW), None);
    assert!(queue.pop(NOW + Duration::from_millis(5)).is_some());
}

#[test]
fn any_other_push_ends_the_wait() {
    let mut queue = in_flight();
    queue.push(NOW, "a", Options::at(1).rate_limited());
    queue.done(NOW, &"a");
    queue.push(NOW, "a", Options::at(100));
    assert!(queue.pop(NOW).is_some());
}

#[test]
fn a_key_that_waits_without_a_failure_becomes_ready() {
    let mut queue = in_flight();
    queue.push(NOW, "a", Options::at(1).after(Duration::from_mins(1)));
    queue.done(NOW, &"a");
    queue.push(NOW, "a", Options::at(1).quiet());
    assert!(queue.pop(NOW).is_some());
}

#[test]
fn a_quiet_push_during_a_flight_that_fails_is_dropped() {
    let mut queue = in_flight();
    queue.push(NOW, "a", Options::at(1).quiet());
    queue.push(NOW, "a", Options::at(1).rate_limited());
    queue.done(NOW, &"a");
    assert_eq!((queue.len(), queue.waiting()), (0, 1));
}

#[test]
fn a_quiet_push_during_a_flight_that_does_not_fail_counts() {
    let mut queue = in_flight();
    queue.push(NOW, "a", Options::at(5).quiet());
    queue.push(NOW, "a", Options::at(3).quiet());
    assert!(queue.is_empty(), "before the verdict");
    queue.forget(&"a");
    queue.push(NOW, "a", Options::at(0).after(Duration::from_mins(1)));
    queue.done(NOW, &"a");
    assert_eq!(queue.pop(NOW).unwrap().priority, 5);
    queue.done(NOW, &"a");
    assert_eq!(queue.pop(NOW), None, "once");
}

#[test]
fn a_key_that_was_woken_during_its_flight_takes_the_higher_priority() {
    let mut queue = in_flight();
    queue.push(NOW, "a", Options::at(9).quiet());
    queue.push(NOW, "a", Options::at(3));
    queue.done(NOW, &"a");
    assert_eq!(queue.pop(NOW).unwrap().priority, 9);
    queue.done(NOW, &"a");
    assert_eq!(queue.pop(NOW), None, "once");
}

#[test]
fn after_a_shutdown_nothing_comes_back() {
    let mut queue = in_flight();
    queue.push(NOW, "a", Options::at(9).quiet());
    queue.shut_down();
    queue.done(NOW, &"a");
    assert!(queue.is_empty());
}
