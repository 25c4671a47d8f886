//! The client of the API server.
//!
//! Invariant: every request is counted; what a pass writes goes through the fence.
//! Failure: [`Error`] names the step; a connection that cannot be made in time is an error of the
//! request.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::TryFutureExt;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use kube::client::{Body, ClientBuilder};
use kube::config::{InferConfigError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use tower::{BoxError, Layer, Service};

use crate::lease::{Fence, FenceLayer};
use crate::metrics::Metrics;

/// Longest time until a connection is there.
const CONNECT: Duration = Duration::from_secs(5);
/// Longest silence of a connection that something is expected from. Watches are ended by the server
/// before that.
const SILENCE: Duration = Duration::from_mins(6);

/// The API server cannot be reached with this configuration.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file is no kubeconfig.
    #[error("read {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: Box<KubeconfigError>,
    },
    /// Neither a kubeconfig nor a pod's own account was found.
    #[error("find out how the API server is reached")]
    Infer(#[source] Box<InferConfigError>),
    /// Its certificates or keys cannot be used.
    #[error("make a client")]
    Client(#[source] Box<kube::Error>),
}

/// Says how the API server is reached.
///
/// # Errors
///
/// [`Error`] when nothing names it.
pub async fn config(kubeconfig: Option<&Path>) -> Result<Config, Error> {
    let mut config = match kubeconfig {
        None => Config::infer()
            .await
            .map_err(|e| Error::Infer(Box::new(e)))?,
        Some(path) => {
            let refuse = |source| Error::File {
                path: path.into(),
                source: Box::new(source),
            };
            let file = Kubeconfig::read_from(path).map_err(refuse)?;
            let options = KubeConfigOptions::default();
            Config::from_custom_kubeconfig(file, &options)
                .await
                .map_err(refuse)?
        }
    };
    config.connect_timeout = Some(CONNECT);
    config.read_timeout = Some(SILENCE);
    config.reset_reader_on_write = true;
    Ok(config)
}

/// A client that counts its requests and writes only while the fence is open.
///
/// # Errors
///
/// [`Error::Client`].
pub fn client(config: &Config, fence: Fence, metrics: &Arc<Metrics>) -> Result<Client, Error> {
    let builder =
        ClientBuilder::try_from(config.clone()).map_err(|e| Error::Client(Box::new(e)))?;
    let count = CountLayer(Arc::clone(metrics));
    Ok(builder
        .with_layer(&count)
        .with_layer(&FenceLayer(fence))
        .build())
}

/// Counts the requests of a client.
#[derive(Debug, Clone)]
struct CountLayer(Arc<Metrics>);

/// A client whose requests are counted.
#[derive(Debug, Clone)]
struct Counted<S> {
    inner: S,
    metrics: Arc<Metrics>,
}

impl<S> Layer<S> for CountLayer {
    type Service = Counted<S>;

    fn layer(&self, inner: S) -> Counted<S> {
        let metrics = Arc::clone(&self.0);
        Counted { inner, metrics }
    }
}

impl<S, B> Service<Request<Body>> for Counted<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Error: Into<BoxError> + 'static,
    S::Future: Send + 'static,
    B: 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<S::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let metrics = Arc::clone(&self.metrics);
        let method = request.method().clone();
        let answer = self.inner.call(request).map_err(Into::into);
        Box::pin(async move {
            let answer = answer.await;
            let code = answer.as_ref().map_or(0, |a| a.status().as_u16());
            metrics.request(&method, code);
            answer
        })
    }
}
