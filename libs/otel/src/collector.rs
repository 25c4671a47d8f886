//! A collector of traces, for tests.
//!
//! Invariant: it counts an export before it answers it.
//! Failure: waits have a deadline and panic after it.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

mod traced;

pub use traced::Traced;

/// Longer than anything that is waited for takes.
const DEADLINE: Duration = Duration::from_secs(90);

/// A collector on a free port of the loopback device.
#[derive(Debug)]
pub struct Collector {
    address: SocketAddr,
    received: Received,
    server: tokio::task::JoinHandle<()>,
}

/// A span as it arrived.
#[derive(Debug, Clone)]
pub struct Arrived {
    /// The span.
    pub span: Span,
    /// Who it is from.
    pub resource: Resource,
}

#[derive(Debug, Clone)]
struct Received {
    spans: Arc<Mutex<Vec<Arrived>>>,
    exports: watch::Sender<usize>,
    answers: watch::Sender<bool>,
}

impl Collector {
    /// One that answers.
    ///
    /// # Panics
    /// When there is no port.
    pub async fn start() -> Self {
        Self::serve(Self::bind().await, true).await
    }

    /// One that receives spans and answers no export before [`Collector::release`].
    ///
    /// # Panics
    /// When there is no port.
    pub async fn held() -> Self {
        Self::serve(Self::bind().await, false).await
    }

    /// One that answers, at a listener, which may be of another network namespace.
    ///
    /// # Panics
    /// When the listener is of no use to this runtime.
    #[allow(clippy::expect_used)]
    pub async fn at(listener: std::net::TcpListener) -> Self {
        listener.set_nonblocking(true).expect("a listener");
        let listener = TcpListener::from_std(listener);
        Self::serve(listener.expect("a runtime"), true).await
    }

    #[allow(clippy::expect_used)]
    async fn bind() -> TcpListener {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await;
        listener.expect("a port")
    }

    #[allow(clippy::expect_used)]
    async fn serve(listener: TcpListener, answers: bool) -> Self {
        let address = listener.local_addr().expect("an address");
        let received = Received {
            spans: Arc::default(),
            exports: watch::Sender::new(0),
            answers: watch::Sender::new(answers),
        };
        let service = TraceServiceServer::new(received.clone());
        let server = Server::builder()
            .add_service(service)
            .serve_with_incoming(TcpListenerStream::new(listener));
        let server = tokio::spawn(async move {
            server.await.expect("the collector serves");
        });
        Self {
            address,
            received,
            server,
        }
    }

    /// Its URL.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Answers all exports from now on.
    pub fn release(&self) {
        self.received.answers.send_replace(true);
    }

    /// All spans that have arrived.
    pub fn spans(&self) -> Vec<Arrived> {
        let spans = self.received.spans.lock();
        spans.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until so many exports have arrived.
    ///
    /// # Panics
    /// When they do not arrive in time.
    #[allow(clippy::expect_used)]
    pub async fn exports(&self, count: usize) {
        let mut exports = self.received.exports.subscribe();
        let arrived = exports.wait_for(|arrived| *arrived >= count);
        let arrived = tokio::time::timeout(DEADLINE, arrived).await;
        let _ = arrived.expect("an export in time").expect("a sender");
    }
}

/// The span of this name.
///
/// # Panics
/// When there is none.
#[allow(clippy::panic)]
pub fn named<'a>(spans: &'a [Arrived], name: &str) -> &'a Arrived {
    let found = spans.iter().find(|arrived| arrived.span.name == name);
    found.unwrap_or_else(|| panic!("no span {name}: {spans:?}"))
}

impl Arrived {
    /// The `traceparent` of its parent, without flags.
    pub fn parent(&self) -> String {
        let hex = |id: &[u8]| id.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let span = &self.span;
        format!("00-{}-{}", hex(&span.trace_id), hex(&span.parent_span_id))
    }

    /// An attribute of the span, if it is a text.
    pub fn text(&self, key: &str) -> Option<&str> {
        match self.value(key)? {
            Value::StringValue(text) => Some(text),
            _ => None,
        }
    }

    /// An attribute of the span, if it is a number.
    pub fn number(&self, key: &str) -> Option<i64> {
        match self.value(key)? {
            Value::IntValue(number) => Some(*number),
            _ => None,
        }
    }

    /// An attribute of the program that sent the span, if it is a text.
    pub fn of_resource(&self, key: &str) -> Option<&str> {
        match value(&self.resource.attributes, key)? {
            Value::StringValue(text) => Some(text),
            _ => None,
        }
    }

    fn value(&self, key: &str) -> Option<&Value> {
        value(&self.span.attributes, key)
    }
}

fn value<'a>(attributes: &'a [KeyValue], key: &str) -> Option<&'a Value> {
    let found = attributes.iter().find(|a| a.key == key)?;
    found.value.as_ref()?.value.as_ref()
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.server.abort();
    }
}

#[tonic::async_trait]
impl TraceService for Received {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        for from in request.into_inner().resource_spans {
            let resource = from.resource.unwrap_or_default();
            let spans = from.scope_spans.into_iter().flat_map(|scope| scope.spans);
            let arrived = spans.map(|span| Arrived {
                span,
                resource: resource.clone(),
            });
            let mut all = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
            all.extend(arrived);
        }
        self.exports.send_modify(|exports| *exports += 1);
        let mut answers = self.answers.subscribe();
        // Fails only when the collector no longer exists.
        let _ = answers.wait_for(|answers| *answers).await;
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}
