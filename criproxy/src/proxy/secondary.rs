//! A runtime beside the primary: asked with a deadline, left out while it fails, and doubted when
//! it returns with nothing.
//!
//! Invariant: one that hangs costs a call at most the deadline, and soon nothing.
//! Failure: [`Failure::Down`] for whatever keeps it from answering.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use tokio::time::Instant;

use super::readable::is_readable;
use crate::backend::{Answer, Backend, Failure};
use crate::config;
use crate::methods::Object;
use crate::metrics::Metrics;
use crate::state::{Breaker, BreakerState};
use crate::wire::Body;

/// Calls without an answer in time, one after the other, after which it is left alone.
const FAILURES: u32 = 3;

/// Longest answer that is read between other calls, in bytes.
const LONG: usize = 256 * 1024;

/// A runtime beside the primary.
#[derive(Debug)]
pub(super) struct Secondary {
    pub(super) backend: Backend,
    /// How its full ids end.
    pub(super) id_suffix: Option<String>,
    /// Its last answer about itself.
    pub(super) node_status: Mutex<Option<Bytes>>,
    /// Whether it formats cgroup paths as the primary does; `None` until that is known.
    pub(super) same_cgroup_driver: Mutex<Option<bool>>,
    breaker: Breaker,
    limit: Duration,
    grace: Duration,
    trust: Mutex<[Trust; 2]>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Trust {
    /// The connection whose lists are believed.
    generation: Option<u64>,
    /// When a list without anything came first.
    doubted: Option<Instant>,
}

impl Secondary {
    pub(super) fn new(
        backend: Backend,
        settings: &config::Secondary,
        limits: &config::Limits,
    ) -> Self {
        Self {
            backend,
            id_suffix: settings.id_suffix.clone(),
            node_status: Mutex::default(),
            same_cgroup_driver: Mutex::default(),
            breaker: Breaker::new(FAILURES, limits.breaker_open.get()),
            limit: limits.fanout_timeout.get(),
            grace: limits.empty_grace.get(),
            trust: Mutex::default(),
        }
    }

    /// Asks it, briefly, unless it failed again and again.
    pub(super) async fn query(
        &self,
        method: &'static str,
        request: Request<Body>,
        metrics: &Metrics,
    ) -> Result<Answer, Failure> {
        let permit = match self.breaker.allow() {
            Ok(permit) => permit,
            Err(refused) => return Err(Failure::Down(refused.to_string())),
        };
        let path = request.uri().path().to_owned();
        let mut answer = self.backend.unary_within(self.limit, method, request).await;
        if let Ok(reported) = &answer
            && !Box::pin(reads(path, &reported.message)).await
        {
            answer = Err(Failure::Down("its answer cannot be read".into()));
        }
        match &answer {
            Err(Failure::Late(_)) => permit.failure(),
            // Trouble that shows at once needs no breaker.
            Err(Failure::Down(_)) => drop(permit),
            Ok(_) | Err(Failure::Refused(_)) => permit.success(),
        }
        let open = self.breaker.state() != BreakerState::Closed;
        metrics.breaker(&self.backend.name, open);
        answer
    }

    /// Whether an id of this form can be its own.
    pub(super) fn may_name(&self, id: &str) -> bool {
        let hex = |c: u8| matches!(c, b'0'..=b'9' | b'a'..=b'f');
        match &self.id_suffix {
            Some(suffix) if id.len() == 64 && id.bytes().all(hex) => id.ends_with(suffix.as_str()),
            _ => true,
        }
    }

    /// Whether its lists on the present connection are believed already.
    pub(super) fn is_trusted(&self, object: Object) -> bool {
        let generation = self.backend.link.generation();
        generation.is_some() && self.trust(object, |trust| trust.generation == generation)
    }

    /// Whether a complete list is believed. One without anything from a runtime that had something,
    /// the first on its connection, is doubted for a while: a runtime that is still starting may
    /// return it.
    pub(super) fn believes(&self, object: Object, empty: bool, had_some: bool) -> bool {
        let generation = self.backend.link.generation();
        let grace = self.grace;
        self.trust(object, |trust| {
            let known = generation.is_some() && trust.generation == generation;
            let believed = if known || !(empty && had_some) {
                true
            } else if let Some(since) = trust.doubted {
                since.elapsed() >= grace
            } else {
                let name = &*self.backend.name;
                tracing::warn!(backend = name, ?object, "empty list ignored");
                trust.doubted = Some(Instant::now());
                grace.is_zero()
            };
            if believed {
                trust.doubted = None;
                trust.generation = generation;
            }
            believed
        })
    }

    fn trust<T>(&self, object: Object, with: impl FnOnce(&mut Trust) -> T) -> T {
        let mut trust = self.trust.lock().unwrap_or_else(PoisonError::into_inner);
        let [sandboxes, containers] = &mut *trust;
        with(match object {
            Object::Sandbox => sandboxes,
            Object::Container => containers,
        })
    }
}

/// As [`is_readable`]; a long answer keeps no other call waiting.
async fn reads(path: String, message: &Bytes) -> bool {
    if message.len() <= LONG {
        return is_readable(&path, message);
    }
    let message = message.clone();
    let reading = tokio::task::spawn_blocking(move || is_readable(&path, &message));
    reading.await.unwrap_or(false)
}
