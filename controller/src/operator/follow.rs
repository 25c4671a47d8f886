//! Decides when a pass over the installation is due.
//!
//! Invariant: at most one pass a second; a change of a part, or of the object that counts, is followed
//! by one; the first waits until every part is known.
//! Failure: a pass that could not read or write everything is repeated after a delay that grows to
//! a minute.

use std::future::pending;
use std::pin::pin;
use std::time::Duration;

use crds::Vmlet;
use crds::guard::Guarded;
use crds::names::VMLET_NAME;
use futures_util::{Stream, StreamExt};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, ResourceExt};
use service::backoff::Backoff;
use service::telemetry::one_line;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::assess::Memory;
use super::parts::Parts;
use super::task::{Error, Operator};

/// Least time between two passes, and so between two writes.
const LEAST: Duration = Duration::from_secs(1);
/// Longest wait for the first lists of parts; a pass then names those that are not there.
const LISTS: Duration = Duration::from_secs(10);
/// Time between passes without a change: for leases that are not renewed, and resources without a
/// watch.
const USUAL: Duration = Duration::from_secs(30);
/// Longest time between passes when something cannot be read or written.
const LONGEST: Duration = Duration::from_secs(60);
/// Keeps the status true until `stop`.
pub async fn run(operator: Operator, stop: CancellationToken) {
    let api = Api::<Guarded<Vmlet>>::all(operator.client.clone());
    let objects = watcher(api, watcher::Config::default()).default_backoff();
    tokio::select! {
        () = stop.cancelled() => {}
        () = follow(&operator, objects) => {}
    }
}

/// An object that cannot be read is no request.
fn readable(object: Guarded<Vmlet>) -> Option<Vmlet> {
    let name = object.name_any();
    let read = object.0.inspect_err(|error| {
        tracing::warn!(
            name,
            error = one_line(error),
            "Vmlet object ignored, it cannot be read"
        );
    });
    read.ok()
}

/// The object that counts, as its watch has it.
#[derive(Default)]
struct Object {
    known: Option<Vmlet>,
    listed: Option<Vmlet>,
    /// It is known whether there is one.
    is_listed: bool,
}

/// What an event asks for.
enum Request {
    /// The object that counts is another, or has gone.
    Look,
    /// The object has another name.
    Refuse(Box<Vmlet>),
}

impl Object {
    fn take(&mut self, event: Event<Guarded<Vmlet>>) -> Option<Request> {
        let is_ours = |object: &Guarded<Vmlet>| object.name_any() == VMLET_NAME;
        let refuse = |object| readable(object).map(|object| Request::Refuse(Box::new(object)));
        match event {
            Event::Init => self.listed = None,
            Event::InitApply(object) if is_ours(&object) => {
                // One that cannot be read stays as it was.
                self.listed = readable(object).or_else(|| self.known.clone());
                return None;
            }
            Event::InitDone => {
                self.known = self.listed.take();
                self.is_listed = true;
                return Some(Request::Look);
            }
            Event::Apply(object) if is_ours(&object) => {
                let object = readable(object)?;
                self.known = Some(object);
                return Some(Request::Look);
            }
            Event::Delete(object) if is_ours(&object) => {
                self.known = None;
                return Some(Request::Look);
            }
            Event::InitApply(object) | Event::Apply(object) => return refuse(object),
            Event::Delete(_) => {}
        }
        None
    }
}

async fn follow<E: std::fmt::Display>(
    operator: &Operator,
    objects: impl Stream<Item = Result<Event<Guarded<Vmlet>>, E>>,
) {
    let mut objects = pin!(objects);
    let mut object = Object::default();
    // Without the object nothing is checked, and nothing is watched.
    let mut watched = None;
    let mut parts = None::<Parts>;
    let mut memory = Memory::default();
    let mut retry = Backoff::new(LEAST * 2, LONGEST);
    let mut next = Instant::now();
    let mut last = Instant::now();
    loop {
        tokio::select! {
            event = objects.next() => {
                let request = match event {
                    Some(Ok(event)) => object.take(event),
                    Some(Err(error)) => {
                        tracing::debug!(%error, "vmlets watch failed");
                        None
                    }
                    None => return,
                };
                match request {
                    Some(Request::Look) => {
                        let known = object.known.as_ref();
                        let namespace = known.map(|object| object.spec.watch.namespace.clone());
                        if watched != namespace {
                            let watch = |name: &String| Parts::new(&operator.client, name);
                            parts = namespace.as_ref().map(watch);
                            watched = namespace;
                            next = Instant::now() + LISTS;
                        }
                        next = due(next, last, parts.as_ref());
                    }
                    Some(Request::Refuse(other)) => report(operator.refuse(&other).await.err()),
                    None => {}
                }
            }
            () = changed(&mut parts) => next = due(next, last, parts.as_ref()),
            () = sleep_until(next), if object.is_listed => {
                let watched = object.known.as_ref().zip(parts.as_mut());
                let passed = Box::pin(operator.pass(watched, &mut memory)).await.err();
                last = Instant::now();
                next = last + if passed.is_some() {
                    retry.failed(last)
                } else {
                    retry.reset();
                    USUAL
                };
                report(passed);
            }
        }
    }
}

async fn changed(parts: &mut Option<Parts>) {
    match parts {
        Some(parts) => parts.changed().await,
        None => pending().await,
    }
}

/// When the next pass is, after a change: soon, once all parts are known.
fn due(next: Instant, last: Instant, parts: Option<&Parts>) -> Instant {
    if parts.is_none_or(Parts::are_known) {
        next.min(last + LEAST)
    } else {
        next
    }
}

fn report(error: Option<Error>) {
    match error {
        None => tracing::debug!("installation status computed"),
        Some(error) => tracing::warn!(error = %one_line(&error), "installation status not written"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::task::tests::vmlet;
    use super::*;

    #[test]
    fn the_object_that_counts_is_the_last_that_could_be_read() {
        let mut object = Object::default();
        let known = |object: &Object| object.known.as_ref()?.resource_version();
        let good = |name, version| Guarded(Ok(vmlet(name, version)));
        let bad = || {
            let text = json!({"metadata": {"name": VMLET_NAME}, "spec": 1});
            let guarded: Guarded<Vmlet> = serde_json::from_value(text).unwrap();
            assert!(guarded.0.is_err());
            guarded
        };
        assert!(object.take(Event::Init).is_none());
        assert!(object.take(Event::InitApply(good("default", 1))).is_none());
        assert!(!object.is_listed && known(&object).is_none());
        assert!(matches!(object.take(Event::InitDone), Some(Request::Look)));
        assert_eq!(known(&object).as_deref(), Some("1"));
        let other = object.take(Event::Apply(good("other", 2)));
        assert!(matches!(other, Some(Request::Refuse(_))));
        assert!(object.take(Event::Apply(bad())).is_none());
        assert_eq!(known(&object).as_deref(), Some("1"));
        object.take(Event::Init);
        object.take(Event::InitApply(bad()));
        object.take(Event::InitDone);
        assert_eq!(known(&object).as_deref(), Some("1"));
        let gone = object.take(Event::Delete(good("default", 3)));
        assert!(matches!(gone, Some(Request::Look)) && known(&object).is_none());
    }
}
