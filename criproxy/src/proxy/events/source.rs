//! The events of one runtime.
//!
//! Invariant: messages come whole and as the runtime sent them; `next` loses none when it is
//! dropped.
//! Failure: [`End`].

use std::pin::Pin;

use bytes::Bytes;
use http::{HeaderMap, Response};
use hyper::body::{Body as _, Incoming};
use tonic::Code;

use super::PAUSE;
use crate::backend::{Backend, Refused};
use crate::metrics::Running;
use crate::proxy::readable::is_readable;
use crate::proxy::{Call, Proxy};
use crate::routes::PRIMARY;
use crate::wire::{Messages, code_of};

const EVENTS: &str = "/runtime.v1.RuntimeService/GetContainerEvents";

/// How a runtime's events ended.
pub(super) enum End {
    /// The client has disconnected.
    Gone,
    /// The runtime refuses to send any.
    Refused(Box<Refused>),
    /// The connection broke, or the stream did.
    Broken,
}

type Opening<'a> = Pin<Box<dyn Future<Output = Result<Response<Incoming>, String>> + Send + 'a>>;

/// A stream of events that may not have begun.
pub(super) struct Source<'a> {
    backend: &'a Backend,
    running: Option<Running>,
    opening: Option<Opening<'a>>,
    stream: Option<(HeaderMap, Messages)>,
}

impl Proxy {
    pub(super) fn source<'a>(
        &self,
        backend: &'a Backend,
        call: &Call,
        message: &Bytes,
    ) -> Source<'a> {
        Source {
            backend,
            running: Some(backend.meter(call.name)),
            opening: Some(Box::pin(backend.send(call.copy(message)))),
            stream: None,
        }
    }
}

impl Source<'_> {
    /// Waits until the runtime has subscribed the client, which the head of the response shows. A
    /// runtime that sends the head with its first event has subscribed the client by the end of
    /// the pause.
    pub(super) async fn open(&mut self) -> Result<(), End> {
        let begun = tokio::time::timeout(PAUSE, self.begin()).await;
        begun.unwrap_or(Ok(()))
    }

    /// The next event.
    pub(super) async fn next(&mut self) -> Result<Bytes, End> {
        self.begin().await?;
        let Some((headers, messages)) = &mut self.stream else {
            return Err(End::Broken);
        };
        match messages.next().await {
            Ok(Some(event)) if self.backend.index == PRIMARY || is_readable(EVENTS, &event) => {
                Ok(event)
            }
            Ok(Some(_)) => Err(self.broken(Code::Internal)),
            Ok(None) => {
                let trailers = messages.trailers();
                match code_of(&trailers).unwrap_or(Code::Unavailable) {
                    // An end without an error is that of a runtime which restarts.
                    code @ (Code::Ok | Code::Cancelled | Code::Unavailable) => {
                        Err(self.broken(code))
                    }
                    code => {
                        let refused = Refused::new(code, headers.clone(), Some(trailers));
                        self.end(code);
                        Err(End::Refused(Box::new(refused)))
                    }
                }
            }
            Err(_) => Err(self.broken(Code::Unavailable)),
        }
    }

    /// Waits for the head of the response.
    async fn begin(&mut self) -> Result<(), End> {
        let Some(opening) = &mut self.opening else {
            return Ok(());
        };
        let response = opening.as_mut().await;
        self.opening = None;
        let Ok(response) = response else {
            return Err(self.broken(Code::Unavailable));
        };
        let (parts, body) = response.into_parts();
        if body.is_end_stream() {
            let code = code_of(&parts.headers).unwrap_or(Code::Unknown);
            self.end(code);
            let refused = Refused::new(code, parts.headers, None);
            return Err(End::Refused(Box::new(refused)));
        }
        self.stream = Some((parts.headers, Messages::new(body)));
        Ok(())
    }

    fn broken(&mut self, code: Code) -> End {
        self.end(code);
        End::Broken
    }

    fn end(&mut self, code: Code) {
        self.stream = None;
        if let Some(running) = self.running.take() {
            running.end(code);
        }
    }
}
