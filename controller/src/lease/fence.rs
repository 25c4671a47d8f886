//! The lease fence: a controller without its lease cannot write.
//!
//! Invariant: a request that changes anything is sent only before the moment up to which the lease
//! is certain; also by a process that was stopped for a while and believes that no time passed.
//! Failure: [`Lost`], which every later attempt gets too. A request that is on its way when the
//! lease ends may still arrive; names that exist once and versions in writes make that harmless.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{Either, Ready, ready};
use http::{Method, Request};
use tokio::time::Instant;
use tower::{BoxError, Layer, Service};

/// The lease is lost; this process may no longer act.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the lease is lost")]
pub struct Lost;

/// Open up to a moment. Clones are the same fence.
#[derive(Debug, Clone)]
pub struct Fence(Arc<Mutex<State>>);

#[derive(Debug)]
enum State {
    Always,
    Until(Instant),
    /// For good, or until it is opened for the first time.
    Closed,
}

impl Fence {
    /// A fence that lets everything through, for a controller that is alone.
    #[must_use]
    pub fn open() -> Self {
        Self(Arc::new(Mutex::new(State::Always)))
    }

    pub(super) fn closed() -> Self {
        Self(Arc::new(Mutex::new(State::Closed)))
    }

    pub(super) fn open_until(&self, end: Instant) {
        *self.lock() = State::Until(end);
    }

    pub(super) fn close(&self) {
        *self.lock() = State::Closed;
    }

    /// How long it will be open if nothing happens.
    #[must_use]
    pub fn left(&self) -> Duration {
        match *self.lock() {
            State::Always => Duration::MAX,
            State::Until(end) => end.saturating_duration_since(Instant::now()),
            State::Closed => Duration::ZERO,
        }
    }

    /// # Errors
    ///
    /// [`Lost`] when it is closed.
    pub fn pass(&self) -> Result<(), Lost> {
        if self.left().is_zero() {
            return Err(Lost);
        }
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Puts a fence before a client.
#[derive(Debug, Clone)]
pub struct FenceLayer(pub Fence);

/// A client behind a fence.
#[derive(Debug, Clone)]
pub struct Fenced<S> {
    inner: S,
    fence: Fence,
}

impl<S> Layer<S> for FenceLayer {
    type Service = Fenced<S>;

    fn layer(&self, inner: S) -> Fenced<S> {
        let fence = self.0.clone();
        Fenced { inner, fence }
    }
}

impl<S, B> Service<Request<B>> for Fenced<S>
where
    S: Service<Request<B>>,
    S::Error: Into<BoxError>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = Either<
        futures_util::future::ErrInto<S::Future, BoxError>,
        Ready<Result<S::Response, BoxError>>,
    >;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let reads = matches!(
            *request.method(),
            Method::GET | Method::HEAD | Method::OPTIONS
        );
        match self.fence.pass() {
            Err(lost) if !reads => Either::Right(ready(Err(lost.into()))),
            _ => Either::Left(futures_util::TryFutureExt::err_into(
                self.inner.call(request),
            )),
        }
    }
}
