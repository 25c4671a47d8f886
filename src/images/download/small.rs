//! Calls whose replies are short: manifests, configurations and tokens of registries.
//!
//! Invariant: at most the limit of the call is kept of a body; the reply is complete, whatever its
//! status, unless the server has troubles.
//! Failure: as of a download; a body above the limit is unusable.

use http::HeaderMap;
use reqwest::{Response, StatusCode};

use super::super::error::Result;
use super::reply;
use super::request::Request;

/// What is sent.
#[derive(Debug, Default)]
pub(in crate::images) struct Call<'a> {
    /// Headers in addition to those of the target.
    pub(in crate::images) headers: HeaderMap,
    /// The body of a POST, as a form; `None`: a GET.
    pub(in crate::images) form: Option<&'a str>,
    /// Most bytes of the reply's body.
    pub(in crate::images) limit: usize,
}

/// A complete reply.
#[derive(Debug)]
pub(in crate::images) struct Small {
    pub(in crate::images) status: StatusCode,
    pub(in crate::images) headers: HeaderMap,
    pub(in crate::images) body: Vec<u8>,
}

impl Request<'_> {
    /// Sends the call once.
    pub(super) async fn small(&self, call: &Call<'_>) -> Result<Small> {
        let url = self.target.source.url().clone();
        let request = match call.form {
            None => self.client().get(url),
            Some(form) => self
                .client()
                .post(url)
                .header(http::header::CONTENT_TYPE, FORM)
                .body(form.to_owned()),
        };
        let response = self.answer(request.headers(call.headers.clone())).await?;
        if response.status().is_server_error() {
            return Err(self.refusal(&response));
        }
        self.plain(response.headers())?;
        let status = response.status();
        let headers = response.headers().clone();
        let body = self.body(response, call.limit).await?;
        Ok(Small {
            status,
            headers,
            body,
        })
    }

    async fn body(&self, mut response: Response, limit: usize) -> Result<Vec<u8>> {
        let total = reply::length(response.headers());
        let mut body = Vec::new();
        loop {
            match self.in_time(response.chunk()).await? {
                Ok(None) => return Ok(body),
                Ok(Some(chunk)) if body.len() + chunk.len() <= limit => {
                    body.extend_from_slice(&chunk);
                }
                Ok(Some(_)) => return Err(self.unusable("it is longer than such a reply may be")),
                Err(error) => return Err(self.cut(error, body.len() as u64, total)),
            }
        }
    }
}

const FORM: &str = "application/x-www-form-urlencoded";
