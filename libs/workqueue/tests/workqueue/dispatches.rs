//! What a metrics sink receives when a key is dispatched.
//!
//! Invariant: time is an argument.
//! Failure: the assertion shows what was recorded.

use std::time::Duration;

use workqueue::{Ageing, Class, Config, Metrics, Options, Queue, Tally};

#[derive(Default)]
struct Recorder(Vec<(Class, u64, bool)>);

impl Metrics for Recorder {
    fn dispatched(&mut self, class: Class, waited: Duration, aged: bool) {
        self.0.push((class, waited.as_secs(), aged));
    }
}

/// A queue in which every key that has been ready for over ten minutes is dispatched first.
fn ageing() -> Queue<&'static str, Recorder> {
    let config = Config {
        levels: vec![100],
        ageing: Some(Ageing {
            starvation_after: at(600),
            every: 1,
        }),
        ..Config::default()
    };
    Queue::with_metrics(config, Recorder::default())
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn a_dispatch_is_recorded_with_class_wait_and_ageing() {
    let mut queue = ageing();
    queue.push(at(0), "old", Options::at(7));
    queue.push(at(690), "new", Options::at(100));
    queue.pop(at(700));
    queue.pop(at(700));
    let recorded = &queue.metrics().0;
    let wanted = [(Class::Custom, 700, true), (Class::Level(100), 10, false)];
    assert_eq!(*recorded, wanted);
}

#[test]
fn of_two_keys_of_one_age_the_one_of_higher_priority_goes_first() {
    let mut queue = ageing();
    queue.push(at(0), "low", Options::at(1).after(at(5)));
    queue.push(at(0), "high", Options::at(2).after(at(5)));
    queue.advance(at(5));
    queue.push(at(700), "new", Options::at(3));
    let keys = [(); 3].map(|()| queue.pop(at(700)).map(|popped| popped.key));
    assert_eq!(keys, [Some("high"), Some("low"), Some("new")]);
}

#[test]
fn age_takes_no_key_from_beyond_the_limit() {
    let mut queue = ageing();
    queue.push(at(0), "old", Options::at(3));
    queue.push(at(700), "new", Options::at(5));
    assert_eq!(queue.pop_below(at(700), Some(3)), None);
    let popped = queue.pop_below(at(700), Some(6)).unwrap();
    assert_eq!(popped.key, "old");
}

#[test]
fn what_a_pass_came_to_is_one_of_four_results() {
    use Tally::{Error, Panic, Requeue, RequeueAfter, Success, Terminal, Timeout};
    let all = [
        Success,
        RequeueAfter,
        Requeue,
        Error,
        Terminal,
        Panic,
        Timeout,
    ];
    let results = all.map(Tally::result);
    let wanted = [
        "success",
        "requeue_after",
        "requeue",
        "error",
        "error",
        "error",
        "error",
    ];
    assert_eq!(results, wanted);
}

#[test]
fn the_clock_is_not_read_for_a_key_that_stays_where_it_is() {
    let mut queue = ageing();
    queue.push(at(0), "ready", Options::at(2));
    let clock = || panic!("the clock was read");
    queue.push_with(clock, "ready", Options::at(1));
    queue.push_with(clock, "ready", Options::at(2));
}
