//! Sends requests, again where the server may answer soon.
//!
//! Invariant: an attempt has a deadline; which answers are repeated, and what an operator has to correct, is decided here.
//! Failure: [`Error::Bucket`] with the words of the server, or [`Error::Hung`].

use std::sync::Arc;

use reqwest::{Response, StatusCode, header};
use rusty_s3::Method;

use super::call::{Answer, Call, TEXT};
use super::connection::Connection;
use super::{Client, Error, Result, answers, credentials};

/// How often a request is sent.
const TRIES: u32 = 4;

/// Why an attempt has no answer.
#[derive(Debug)]
enum Failed {
    /// The server may answer the same request soon.
    Busy(String),
    /// It does not answer.
    Hung,
    /// Something has to be changed before.
    Refused(String),
}

impl Client {
    /// Sends a request until it is answered; none: there is no such object or upload.
    pub(super) async fn call(&self, call: &Call<'_>) -> Result<Option<Answer>> {
        if !call.key.is_empty() && !call.has_plain_key() {
            let reason = "its name would be read as another one".to_owned();
            return Err(self.failed(call, reason));
        }
        let mut pause = self.settings.pause;
        let mut tries = 1;
        loop {
            // Files of the node may hang as well.
            let attempt = tokio::time::timeout(self.settings.deadline, self.attempt(call));
            match attempt.await.unwrap_or(Err(Failed::Hung)) {
                Ok(answer) => return Ok(answer),
                Err(Failed::Hung) => return Err(Error::Hung(self.target.clone())),
                Err(Failed::Busy(reason) | Failed::Refused(reason)) if tries == TRIES => {
                    return Err(self.failed(call, reason));
                }
                Err(Failed::Refused(reason)) => return Err(self.failed(call, reason)),
                Err(Failed::Busy(reason)) => {
                    tracing::debug!(
                        store = self.target,
                        step = call.step,
                        reason,
                        tries,
                        "request to a backup target sent again"
                    );
                }
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
            tries += 1;
        }
    }

    async fn attempt(&self, call: &Call<'_>) -> Result<Option<Answer>, Failed> {
        let connection = self.connection().await?;
        let file = &self.settings.credentials;
        let path = file.clone();
        let credentials = self.read(move || credentials::read(&path)).await;
        let credentials = credentials.map_err(|reason| {
            Failed::Refused(format!("credentials file {}: {reason}", file.display()))
        })?;
        let url = connection.signed(call, &credentials);
        drop(credentials);
        let mut request = match call.method {
            Method::Head => connection.http.head(url),
            Method::Get => connection.http.get(url),
            Method::Post => connection.http.post(url).body(call.body.clone()),
            Method::Put => connection.http.put(url).body(call.body.clone()),
            Method::Delete => connection.http.delete(url),
        };
        if let Some((first, last)) = call.range {
            request = request.header(header::RANGE, format!("bytes={first}-{last}"));
        }
        let response = request.send().await.map_err(Failed::new)?;
        let status = response.status();
        if status.is_success() {
            let headers = response.headers().clone();
            let body = bounded(response, call.most).await?;
            // A server may find out that it fails after it has begun to answer.
            if call.is_document() && answers::Refusal::within(&body) {
                return self.refusal(status, &body);
            }
            return Ok(Some(Answer { headers, body }));
        }
        let body = bounded(response, TEXT).await?;
        self.refusal(status, &body)
    }

    /// What an answer means that is no success.
    fn refusal(&self, status: StatusCode, body: &[u8]) -> Result<Option<Answer>, Failed> {
        let said = answers::Refusal::read(body);
        let bucket = &self.settings.bucket;
        let words = format!("the server answered {} {said}", status.as_u16());
        let refused = |what: String| Err(Failed::Refused(format!("{what}; {words}")));
        match said.code() {
            "NoSuchKey" | "NoSuchUpload" => return Ok(None),
            "NoSuchBucket" => {
                return refused(format!(
                    "bucket {bucket} does not exist: make it, or correct backup.targets"
                ));
            }
            "AccessDenied" if said.message().contains("expired") => return Self::late(&words),
            "AccessDenied" if said.message().contains("not yet valid") => {
                return Self::late(&words);
            }
            "AccessDenied" if said.message().contains("not valid yet") => {
                return Self::late(&words);
            }
            "AccessDenied" | "InvalidAccessKeyId" | "SignatureDoesNotMatch" => {
                return refused(format!(
                    "the credentials in {} are refused: correct them, or what they may do in bucket {bucket}",
                    self.settings.credentials.display()
                ));
            }
            "RequestTimeTooSkewed" => return Self::late(&words),
            "SlowDown" | "RequestTimeout" | "InternalError" => return Err(Failed::Busy(words)),
            _ => {}
        }
        if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
            return Err(Failed::Busy(words));
        }
        if status.is_redirection() {
            return refused("correct the region or the endpoint in backup.targets".to_owned());
        }
        Err(Failed::Refused(words))
    }

    async fn connection(&self) -> Result<&Connection, Failed> {
        let made = self.connection.get_or_try_init(|| async {
            let settings = self.settings.clone();
            self.read(move || Connection::new(&settings)).await
        });
        made.await.map_err(Failed::Refused)
    }

    /// Reads files of the node.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce() -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        let permit = Arc::clone(&self.files).acquire_owned().await;
        let permit = permit.map_err(|error| error.to_string())?;
        let read = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            read()
        });
        read.await.unwrap_or_else(|error| Err(error.to_string()))
    }

    fn late(words: &str) -> Result<Option<Answer>, Failed> {
        let what = "correct the clock of the node, or of the server";
        Err(Failed::Refused(format!("{what}; {words}")))
    }

    /// The error of a request.
    pub(super) fn failed(&self, call: &Call<'_>, reason: String) -> Error {
        let object = match call.key {
            "" => format!("bucket {}", self.settings.bucket),
            key => key.to_owned(),
        };
        Error::Bucket {
            target: self.target.clone(),
            step: call.step,
            object,
            reason,
        }
    }
}

impl Failed {
    fn new(error: reqwest::Error) -> Self {
        // The URL has a signature.
        let error = error.without_url();
        if error.is_timeout() && !error.is_connect() {
            return Self::Hung;
        }
        Self::Busy(crate::one_line(&error))
    }
}

/// The first bytes of an answer.
async fn bounded(mut response: Response, most: usize) -> Result<Vec<u8>, Failed> {
    let mut body = Vec::new();
    while body.len() < most {
        let Some(piece) = response.chunk().await.map_err(Failed::new)? else {
            break;
        };
        let rest = most - body.len();
        body.extend_from_slice(&piece[..piece.len().min(rest)]);
    }
    Ok(body)
}
