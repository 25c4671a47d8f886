//! One span and one event per request, and a bound on requests in progress.
//!
//! Invariant: every request that arrives gets exactly one event: its outcome, or that the client
//! disconnected. Each refusal has a message. A request ends at its client's deadline.
//! Failure: beyond the bound a request is refused at once with `ResourceExhausted`; it never
//! queues.

use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use cri_proto::{code_name, method_name};
use http::{Request, Response};
use service::telemetry::RequestTraces;
use tokio::sync::Semaphore;
use tonic::{Code, Status};
use tower::{Layer, Service};
use tracing::field::Empty;
use tracing::{Instrument, Span};

use crate::metrics::Metrics;

/// Target of the spans of requests.
pub const TARGET: &str = module_path!();

/// Requests in progress on all connections.
const IN_PROGRESS: usize = 1024;

/// Longest method name that is logged; real ones are shorter.
const LONGEST_METHOD: usize = 40;

/// What knows the traces of clients, if there are traces.
pub(crate) type Traces = Option<Arc<dyn RequestTraces>>;

/// Observes and bounds requests.
#[derive(Debug, Clone)]
pub(super) struct Calls {
    permits: Arc<Semaphore>,
    metrics: Arc<Metrics>,
    traces: Traces,
}

/// A service whose requests are observed and bounded.
#[derive(Debug, Clone)]
pub(super) struct Observed<S> {
    inner: S,
    permits: Arc<Semaphore>,
    metrics: Arc<Metrics>,
    traces: Traces,
}

/// A request in progress; dropped without an outcome when the client disconnects.
struct Call {
    method: String,
    since: Instant,
    ended: bool,
    metrics: Arc<Metrics>,
    span: Span,
    traces: Traces,
}

impl Calls {
    pub(super) fn new(metrics: Arc<Metrics>, traces: Traces) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(IN_PROGRESS)),
            metrics,
            traces,
        }
    }
}

impl<S> Layer<S> for Calls {
    type Service = Observed<S>;

    fn layer(&self, inner: S) -> Observed<S> {
        Observed {
            inner,
            permits: Arc::clone(&self.permits),
            metrics: Arc::clone(&self.metrics),
            traces: self.traces.clone(),
        }
    }
}

impl<S, B, R> Service<Request<B>> for Observed<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    R: Default + Send + 'static,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let method = method(request.uri().path());
        let span = tracing::info_span!(
            "call",
            method,
            pod = Empty,
            sandbox = Empty,
            container = Empty,
            image = Empty
        );
        if let Some(traces) = &self.traces {
            traces.begin(&span, request.uri().path(), request.headers());
        }
        let call = Call {
            method,
            since: Instant::now(),
            ended: false,
            metrics: Arc::clone(&self.metrics),
            span: span.clone(),
            traces: self.traces.clone(),
        };
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
            let refusal = Status::resource_exhausted("too many requests in progress: try again");
            let response = refusal.into_http();
            span.in_scope(|| call.end(&response));
            return Box::pin(ready(Ok(response)));
        };
        // Before the transport's own, which answers Canceled: clients expect DeadlineExceeded.
        let limit = cri_proto::timeout(request.headers());
        let deadline = limit.and_then(|limit| tokio::time::Instant::now().checked_add(limit));
        let answer = self.inner.call(request);
        let work = async move {
            let _permit = permit;
            // Moved in first, so that a dropped request is reported from within its span.
            let call = call;
            let answer = match deadline {
                None => answer.await?,
                Some(deadline) => match tokio::time::timeout_at(deadline, answer).await {
                    Ok(answer) => answer?,
                    Err(_) => Status::deadline_exceeded("the deadline of the client has passed")
                        .into_http(),
                },
            };
            let response = call.explained(answer);
            call.end(&response);
            Ok(response)
        };
        Box::pin(work.instrument(span))
    }
}

impl Call {
    /// The transport refuses a method that no service has, and says nothing: a later protocol's, or
    /// a slip.
    fn explained<R: Default>(&self, response: Response<R>) -> Response<R> {
        let status = Status::from_header_map(response.headers());
        match status {
            Some(status) if status.code() == Code::Unimplemented && status.message().is_empty() => {
                let method = &self.method;
                let words = format!(
                    "{method}: no such method: RuntimeService and ImageService of runtime.v1 are \
                     served here"
                );
                Status::unimplemented(words).into_http()
            }
            _ => response,
        }
    }

    fn end<R>(mut self, response: &Response<R>) {
        self.ended = true;
        let took = self.since.elapsed();
        // A handler's error is kept beside the headers; the transport's own errors are not.
        let kept = response.extensions().get::<Status>();
        let read = || Status::from_header_map(response.headers());
        let Some(status) = kept.cloned().or_else(read).filter(|s| s.code() != Code::Ok) else {
            self.record(Code::Ok, "", took);
            tracing::debug!(code = "Ok", ?took, "CRI call completed");
            return;
        };
        self.record(status.code(), status.message(), took);
        let code = status.code();
        let error = status.message();
        if is_expected(&self.method, code) {
            tracing::debug!(?code, error, ?took, "CRI call failed");
        } else {
            tracing::warn!(?code, error, ?took, "CRI call failed");
        }
    }
}

impl Call {
    fn record(&self, code: Code, message: &str, took: Duration) {
        let method = method_name(&self.method).unwrap_or("other");
        self.metrics.requested(method, code_name(code), took);
        if let Some(traces) = &self.traces {
            traces.end(&self.span, code.into(), message);
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.ended {
            let took = self.since.elapsed();
            self.record(Code::Cancelled, "", took);
            tracing::info!(?took, "CRI call cancelled by the client");
        }
    }
}

/// The method's name for logs; the path may be anything.
fn method(path: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or_default();
    let name = name.chars().filter(char::is_ascii_alphanumeric);
    name.take(LONGEST_METHOD).collect()
}

/// Failures of a healthy node: kubelet polls methods that are not there, and things that no longer
/// exist.
fn is_expected(method: &str, code: Code) -> bool {
    let asks = ["Status", "Stats", "Metrics", "Descriptors"];
    match code {
        Code::Unimplemented => true,
        // A probe that failed.
        Code::DeadlineExceeded => method == "ExecSync",
        Code::NotFound => asks.iter().any(|end| method.ends_with(end)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("/runtime.v1.RuntimeService/RunPodSandbox", "RunPodSandbox")]
    #[case("/", "")]
    #[case("no slash\n\u{1b}[31m", "noslash31m")]
    fn method_names_are_safe_to_log(#[case] path: &str, #[case] name: &str) {
        assert_eq!(method(path), name);
        assert!(method(&"x".repeat(1000)).len() <= LONGEST_METHOD);
    }

    #[rstest]
    #[case("ListContainerStats", Code::Unimplemented, true)]
    #[case("ContainerStatus", Code::NotFound, true)]
    #[case("StartContainer", Code::NotFound, false)]
    #[case("ContainerStatus", Code::Internal, false)]
    fn only_failures_that_need_an_operator_are_warnings(
        #[case] method: &str,
        #[case] code: Code,
        #[case] expected: bool,
    ) {
        assert_eq!(is_expected(method, code), expected);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_whose_client_waits_no_longer_ends_as_such() {
        let stuck = tower::service_fn(|_: Request<()>| {
            std::future::pending::<Result<Response<()>, std::convert::Infallible>>()
        });
        let mut service = Calls::new(Arc::default(), None).layer(stuck);
        let request = Request::builder()
            .header("grpc-timeout", "20m")
            .body(())
            .unwrap();
        let since = tokio::time::Instant::now();
        let answer = service.call(request).await.unwrap();
        let status = Status::from_header_map(answer.headers()).unwrap();
        assert_eq!(status.code(), Code::DeadlineExceeded);
        assert_eq!(since.elapsed().as_millis(), 20);
    }

    #[tokio::test]
    async fn a_request_beyond_the_bound_is_refused_and_not_queued() {
        let stuck = tower::service_fn(|_: Request<()>| {
            std::future::pending::<Result<Response<()>, std::convert::Infallible>>()
        });
        let mut service = Observed {
            inner: stuck,
            permits: Arc::new(Semaphore::new(1)),
            metrics: Arc::default(),
            traces: None,
        };
        let held = service.call(Request::new(()));
        let refused = service.call(Request::new(())).await.unwrap();
        let code = refused.extensions().get::<Status>().map(Status::code);
        assert_eq!(code, Some(Code::ResourceExhausted));
        drop(held);
        assert_eq!(service.permits.available_permits(), 1);
    }
}
