//! What log lines look like, and which are written.
//!
//! Invariant: nothing is written to standard error: each test has a subscriber of its own.
//! Failure: the line is shown.

use std::io;
use std::sync::{Arc, Mutex};

use rstest::rstest;
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::util::SubscriberInitExt;

use super::log::{adjustable, subscriber, traced};
use super::*;

/// Keeps what is written.
#[derive(Clone, Default)]
struct Paper(Arc<Mutex<Vec<u8>>>);

impl io::Write for Paper {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What is written while `work` runs.
fn written(level: &str, format: Format, work: impl FnOnce()) -> String {
    let level = level.parse().unwrap();
    let paper = Paper::default();
    let writer = paper.clone();
    let log = Log { level, format };
    let guard = subscriber(&log, move || writer.clone(), false).set_default();
    work();
    drop(guard);
    let bytes = paper.0.lock().unwrap();
    String::from_utf8(bytes.clone()).unwrap()
}

#[test]
fn a_line_of_json_has_the_events_fields_at_the_top_and_the_innermost_span() {
    let text = written("info", Format::Json, || {
        let _outer = tracing::info_span!("pass", key = "a").entered();
        let _inner = tracing::info_span!("step", id = 7).entered();
        tracing::info!(outcome = "done", "vm");
    });
    let line: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(line["outcome"], "done");
    assert_eq!(line["message"], "vm");
    assert_eq!(line["span"]["id"], 7);
    assert_eq!(line["spans"][0]["key"], "a");
}

#[test]
fn a_line_for_people_has_no_colours_away_from_a_terminal() {
    let text = written("info", Format::Text, || tracing::info!(n = 1, "said"));
    assert!(text.ends_with("said n=1\n"), "{text}");
    assert!(!text.contains('\u{1b}'), "{text}");
}

#[test]
fn the_transport_is_quiet_unless_it_is_named() {
    let talk = || {
        tracing::debug!(target: "hyper::proto", "theirs");
        tracing::debug!("ours");
    };
    let text = written("debug", Format::Text, talk);
    assert!(text.contains("ours") && !text.contains("theirs"), "{text}");
    let text = written("info,hyper=debug", Format::Text, talk);
    assert!(!text.contains("ours") && text.contains("theirs"), "{text}");
}

#[rstest]
#[case::level(r#"{"level": "a=b=c"}"#, "no log filter")]
#[case::format(r#"{"format": "xml"}"#, "one of text, json is allowed")]
#[case::key(r#"{"levl": "info"}"#, "levl")]
fn what_cannot_be_used_is_refused_with_a_sentence(#[case] text: &str, #[case] reason: &str) {
    let error = serde_json::from_str::<Log>(text).unwrap_err().to_string();
    assert!(error.contains(reason), "{error}");
}

#[test]
fn settings_print_as_they_are_written() {
    let log: Log = serde_json::from_str(r#"{"level": "warn,kube=debug"}"#).unwrap();
    assert_eq!(log.level.to_string(), "warn,kube=debug");
    assert_eq!(log.format.to_string().parse(), Ok(Format::Text));
    assert_eq!(Format::Json.to_string().parse(), Ok(Format::Json));
}

#[test]
fn steps_are_for_traces_and_not_for_lines() {
    let lines = |work: fn()| {
        let paper = Paper::default();
        let writer = paper.clone();
        let log = Log {
            level: "error".parse().unwrap(),
            format: Format::Text,
        };
        let seen = Arc::new(Mutex::new(Vec::new()));
        let traces = Seen(Arc::clone(&seen)).boxed();
        let subscriber = traced(&log, move || writer.clone(), false, traces).0;
        let guard = subscriber.set_default();
        work();
        drop(guard);
        let bytes = paper.0.lock().unwrap().clone();
        let seen = seen.lock().unwrap().clone();
        (String::from_utf8(bytes).unwrap(), seen)
    };
    let (text, seen) = lines(|| {
        let _request = tracing::info_span!("request").entered();
        let _step = tracing::info_span!(target: STEPS, "step").entered();
        tracing::info!("below the level");
        tracing::error!("failed");
    });
    assert_eq!(seen, ["request", "step"]);
    assert!(
        text.ends_with("failed\n") && !text.contains("step"),
        "{text}"
    );
    assert!(!text.contains("below"), "{text}");
    let text = written("trace", Format::Text, || {
        let _request = tracing::info_span!("request").entered();
        let _step = tracing::info_span!(target: STEPS, "step").entered();
        tracing::info!("done");
    });
    assert!(text.contains("request") && !text.contains("step"), "{text}");
}

/// Names of spans in the order in which they began.
struct Seen(Arc<Mutex<Vec<&'static str>>>);

impl<S: tracing::Subscriber> Layer<S> for Seen {
    fn on_new_span(
        &self,
        span: &tracing::span::Attributes<'_>,
        _: &tracing::span::Id,
        _: Context<'_, S>,
    ) {
        self.0.lock().unwrap().push(span.metadata().name());
    }
}

#[test]
fn the_level_of_a_log_that_runs_can_change_with_and_without_traces() {
    for has_traces in [false, true] {
        let log = Log::default();
        let paper = Paper::default();
        let writer = paper.clone();
        let other = paper.clone();
        let say = |level: &Level| {
            for filter in ["info", "debug", "error", "info"] {
                assert!(level.set(&filter.parse().unwrap()));
                tracing::debug!("at {filter}: debug");
                tracing::warn!("at {filter}: warn");
            }
        };
        if has_traces {
            let nothing = tracing_subscriber::layer::Identity::new().boxed();
            let (subscriber, level) = traced(&log, move || writer.clone(), false, nothing);
            let _guard = subscriber.set_default();
            say(&level);
        } else {
            let (subscriber, level) = adjustable(&log, move || other.clone(), false);
            let _guard = subscriber.set_default();
            say(&level);
        }
        let bytes = paper.0.lock().unwrap().clone();
        let text = String::from_utf8(bytes).unwrap();
        let lines: Vec<_> = text
            .lines()
            .filter_map(|line| line.split_once("at "))
            .collect();
        let lines: Vec<_> = lines.iter().map(|(_, said)| *said).collect();
        assert_eq!(
            lines,
            ["info: warn", "debug: debug", "debug: warn", "info: warn"]
        );
    }
}
