//! What a sink of metrics is told when a key is handed out.
//!
//! Invariant: time is an argument.
//! Failure: the assertion shows what was told.

use std::time::Duration;

use workqueue::{Ageing, Class, Config, Metrics, Options, Queue, Tally};

#[derive(Default)]
struct Told(Vec<(Class, u64, bool)>);

impl Metrics for Told {
    fn dispatched(&mut self, class: Class, waited: Duration, aged: bool) {
        self.0.push((class, waited.as_secs(), aged));
    }
}

#[test]
fn a_dispatch_is_told_with_its_class_its_wait_and_whether_it_was_due_by_age() {
    let config = Config {
        levels: vec![100],
        ageing: Some(Ageing {
            starvation_after: Duration::from_secs(600),
            every: 1,
        }),
        ..Config::default()
    };
    let mut queue = Queue::with_metrics(config, Told::default());
    let at = Duration::from_secs;
    queue.push(at(0), "old", Options::at(7));
    queue.push(at(690), "new", Options::at(100));
    queue.pop(at(700));
    queue.pop(at(700));
    let told = &queue.metrics().0;
    let wanted = [(Class::Custom, 700, true), (Class::Level(100), 10, false)];
    assert_eq!(*told, wanted);
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
