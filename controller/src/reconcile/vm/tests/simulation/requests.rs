//! The controller's way to the API server.
//!
//! Invariant: a request has its effect at most once, also when its answer is lost; a process that has been
//! killed has no effect any more.
//! Failure: what a schedule lets go wrong: refusals, connections that end before or after the effect, and
//! the end of the process after a write.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use http::{Method, Request, Response};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::plan::Fault;
use super::world::World;
use crate::reconcile::vm::tests::api::{Answer, refuse};

/// A process of the controller.
#[derive(Default)]
pub(super) struct Life {
    is_over: AtomicBool,
    end: Notify,
}

impl Life {
    /// Returns when it was killed.
    pub(super) async fn ended(&self) {
        self.end.notified().await;
    }

    fn kill(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.end.notify_one();
    }

    async fn continues(&self) {
        if self.is_over.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    }
}

/// What becomes of one request.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Answered,
    Refused(u16),
    LostBefore,
    LostAfter,
}

struct Line {
    world: Arc<World>,
    life: Arc<Life>,
    random: Mutex<Rng>,
    /// One of so many writes is the last one of the process.
    deadly: usize,
}

/// The client of one process.
pub(super) fn client(world: &Arc<World>, life: &Arc<Life>, incarnation: usize) -> Client {
    let mut random = world.plan.random(&format!("requests of {incarnation}"));
    let deadly = [6, 15, 40][random.usize(..3)];
    let line = Arc::new(Line {
        world: Arc::clone(world),
        life: Arc::clone(life),
        random: Mutex::new(random),
        deadly,
    });
    let service = tower::service_fn(move |request: Request<Body>| {
        let line = Arc::clone(&line);
        async move { line.carry(request).await }
    });
    Client::new(service, "default")
}

impl Line {
    async fn carry(&self, request: Request<Body>) -> io::Result<Response<Body>> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
        let what = format!("{} {}", parts.method, parts.uri.path());
        let fate = self.fate();
        self.life.continues().await;
        self.wait().await;
        self.life.continues().await;
        if fate == Fate::LostBefore {
            self.world.note(&format!("{what}: lost"));
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let answer = match fate {
            Fate::Refused(code) => refuse(code, "Refused", "refused by the schedule"),
            _ => self.have(&parts, &body),
        };
        let code = answer.0;
        let note = format!("{what}: {code}, {fate:?}");
        if parts.method != Method::GET || !code.is_success() {
            self.world.note(&note);
        }
        self.life.continues().await;
        self.wait().await;
        if fate == Fate::LostAfter {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let text = serde_json::to_vec(&answer.1)?;
        let response = Response::builder().status(code);
        response.body(Body::from(text)).map_err(io::Error::other)
    }

    /// The effect, which may be the last one.
    fn have(&self, parts: &http::request::Parts, body: &[u8]) -> Answer {
        let answer = self.world.on_server(|state| state.answer(parts, body));
        if parts.method == Method::GET || !answer.0.is_success() {
            return answer;
        }
        self.world.writes.fetch_add(1, Ordering::Relaxed);
        let is_last = self.random.lock().unwrap().usize(..self.deadly) == 0;
        if is_last && self.world.has(Fault::Crashes) {
            self.world.note("the controller is killed");
            self.life.kill();
        }
        answer
    }

    fn fate(&self) -> Fate {
        let mut random = self.random.lock().unwrap();
        if !self.world.has(Fault::Answers) {
            return Fate::Answered;
        }
        match random.u8(..40) {
            0 => Fate::LostBefore,
            1..=3 => Fate::LostAfter,
            4 => Fate::Refused([429, 500, 503, 504][random.usize(..4)]),
            _ => Fate::Answered,
        }
    }

    async fn wait(&self) {
        let most = if self.world.has(Fault::Lag) { 400 } else { 10 };
        let length = self.random.lock().unwrap().u64(1..most);
        sleep(Duration::from_millis(length)).await;
    }
}
