//! A server on loopback that speaks as much S3 as backups use, or misbehaves as rules say.
//!
//! Invariant: an object is there when all of it was received; the parts of an upload are none before it is completed.
//! Requests without a signature of the one key are refused; that the signature is right is checked by a real server.
//! Failure: a request that backups do not send panics, which ends its connection.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use reqwest::Url;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

/// The bucket that there is.
pub(super) const BUCKET: &str = "backups";
/// The key that it is for.
pub(super) const KEY: &str = "key-of-the-node";

/// What happens to a request in place of a proper answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Status, and code of the error.
    Refuse(u16, &'static str),
    /// A success whose body is an error.
    RefuseLate(&'static str),
    /// It is done, and the connection ends before the answer.
    Lose,
    /// No answer.
    Hang,
    /// The answer has one byte less.
    Cut,
    /// A list that goes on and on.
    Endless,
    /// A list without manifests.
    Blind,
    /// A list that is cut short, and does not say where it goes on.
    CutList,
    /// The page of a proxy.
    Page,
    /// It is done, and then undone by a request that was given up before.
    Undo,
}

/// Requests of a method whose URL has this part, so many of them.
#[derive(Debug)]
struct Rule {
    method: Method,
    part: &'static str,
    step: Step,
    times: usize,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) objects: BTreeMap<String, Bytes>,
    /// Key and parts of each upload.
    pub(super) uploads: BTreeMap<String, (String, BTreeMap<u32, Bytes>)>,
    rules: Vec<Rule>,
    last: u32,
    /// Uploads are listed by whole keys alone, as some servers do.
    pub(super) lists_by_key: bool,
}

pub(super) struct Server {
    pub(super) endpoint: Url,
    state: Arc<Mutex<State>>,
    _accepting: AbortOnDropHandle<()>,
}

impl Server {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let state: Arc<Mutex<State>> = Arc::default();
        let accepting = {
            let state = Arc::clone(&state);
            tokio::spawn(async move {
                while let Ok((socket, _)) = listener.accept().await {
                    let state = Arc::clone(&state);
                    let answer = service_fn(move |request| answer(Arc::clone(&state), request));
                    let conversation = http1::Builder::new();
                    // A client that leaves is no failure.
                    tokio::spawn(conversation.serve_connection(TokioIo::new(socket), answer));
                }
            })
        };
        Self {
            endpoint: format!("http://{address}").parse().unwrap(),
            state,
            _accepting: AbortOnDropHandle::new(accepting),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(super) fn rule(&self, method: Method, part: &'static str, step: Step, times: usize) {
        let rule = Rule {
            method,
            part,
            step,
            times,
        };
        self.state().rules.push(rule);
    }

    /// The names of all objects.
    pub(super) fn keys(&self) -> Vec<String> {
        self.state().objects.keys().cloned().collect()
    }
}

type Answer = Result<Response<Full<Bytes>>, std::io::Error>;

async fn answer(state: Arc<Mutex<State>>, request: Request<Incoming>) -> Answer {
    let url: Url = format!("http://server{}", request.uri()).parse().unwrap();
    let method = request.method().clone();
    let range = range(request.headers());
    let body = request.into_body().collect().await;
    let body = body.map_err(std::io::Error::other)?.to_bytes();
    let asked = Asked {
        query: url.query_pairs().into_owned().collect(),
        path: url.path().to_owned(),
        method,
        range,
        body,
    };
    let step = state.lock().unwrap().step(&asked.method, url.as_str());
    match step {
        Some(Step::Refuse(status, code)) => return Ok(refusal(status, code)),
        Some(Step::RefuseLate(code)) => return Ok(refusal(200, code)),
        Some(Step::Page) => return Ok(plain("<html><body>Sign in</body></html>".to_owned())),
        Some(Step::Hang) => std::future::pending().await,
        _ => {}
    }
    let done = state.lock().unwrap().serve(asked, step);
    if step == Some(Step::Lose) {
        return Err(std::io::Error::other("the connection ends"));
    }
    Ok(done)
}

/// A request.
struct Asked {
    method: Method,
    path: String,
    query: BTreeMap<String, String>,
    range: Option<std::ops::RangeInclusive<usize>>,
    body: Bytes,
}

impl State {
    fn step(&mut self, method: &Method, url: &str) -> Option<Step> {
        let mut rules = self.rules.iter_mut();
        let rule = rules
            .find(|rule| rule.times > 0 && rule.method == *method && url.contains(rule.part))?;
        rule.times -= 1;
        Some(rule.step)
    }

    fn serve(&mut self, asked: Asked, step: Option<Step>) -> Response<Full<Bytes>> {
        let value = |name: &str| asked.query.get(name).cloned();
        let signer = value("X-Amz-Credential").unwrap_or_default();
        if value("X-Amz-Signature").is_none() || !signer.starts_with(KEY) {
            return refusal(403, "InvalidAccessKeyId");
        }
        let place = asked.path.strip_prefix('/').unwrap();
        let (bucket, key) = place.split_once('/').unwrap();
        if bucket != BUCKET {
            return refusal(404, "NoSuchBucket");
        }
        let key = key.to_owned();
        match (asked.method.as_str(), value("uploadId")) {
            ("GET", None) if key.is_empty() && value("uploads").is_some() => {
                self.list_uploads(&value("prefix").unwrap())
            }
            ("GET", None) if key.is_empty() => {
                let most = value("max-keys").map_or(1000, |most| most.parse().unwrap());
                self.list(
                    &value("prefix").unwrap(),
                    value("continuation-token").as_deref(),
                    most,
                    step,
                )
            }
            ("GET", None) => self.get(&key, asked.range, step),
            ("PUT", None) => {
                if step != Some(Step::Undo) {
                    self.objects.insert(key, asked.body);
                }
                plain(String::new())
            }
            ("DELETE", None) => {
                self.objects.remove(&key);
                plain(String::new())
            }
            ("POST", None) => {
                self.last += 1;
                let id = format!("upload {}", self.last);
                self.uploads.insert(id.clone(), (key, BTreeMap::new()));
                plain(format!(
                    "<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
                ))
            }
            ("PUT", Some(id)) => {
                let Some((_, parts)) = self.uploads.get_mut(&id) else {
                    return refusal(404, "NoSuchUpload");
                };
                let number = value("partNumber").unwrap().parse().unwrap();
                parts.insert(number, asked.body);
                let mut answer = plain(String::new());
                let tag = format!("\"{number}\"").parse().unwrap();
                answer.headers_mut().insert(header::ETAG, tag);
                answer
            }
            ("POST", Some(id)) => {
                let Some((key, parts)) = self.uploads.remove(&id) else {
                    return refusal(404, "NoSuchUpload");
                };
                let text = String::from_utf8(asked.body.to_vec()).unwrap();
                assert_eq!(text.matches("<Part>").count(), parts.len());
                let whole: Vec<u8> = parts.into_values().flatten().collect();
                self.objects.insert(key, whole.into());
                plain("<CompleteMultipartUploadResult/>".to_owned())
            }
            ("DELETE", Some(id)) => match self.uploads.remove(&id) {
                Some(_) => plain(String::new()),
                None => refusal(404, "NoSuchUpload"),
            },
            odd => panic!("{odd:?}"),
        }
    }

    fn get(
        &self,
        key: &str,
        range: Option<std::ops::RangeInclusive<usize>>,
        step: Option<Step>,
    ) -> Response<Full<Bytes>> {
        let Some(whole) = self.objects.get(key) else {
            return refusal(404, "NoSuchKey");
        };
        let mut piece = match range {
            Some(range) => whole.slice(*range.start()..whole.len().min(range.end() + 1)),
            None => whole.clone(),
        };
        if step == Some(Step::Cut) {
            piece.truncate(piece.len() - 1);
        }
        Response::new(Full::new(piece))
    }

    /// In pages of at most so many; the token is the last key of the page before.
    fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        most: usize,
        step: Option<Step>,
    ) -> Response<Full<Bytes>> {
        let all = self
            .objects
            .iter()
            .filter(|(key, _)| key.starts_with(prefix));
        let all = all.filter(|(key, _)| step != Some(Step::Blind) || !key.ends_with(".json"));
        let rest: Vec<_> = all.filter(|(key, _)| Some(key.as_str()) > after).collect();
        // So that lists have pages.
        let page = &rest[..rest.len().min(most).min(3)];
        let mut text = "<ListBucketResult>".to_owned();
        for (key, bytes) in page {
            let size = bytes.len();
            let _ = write!(
                text,
                "<Contents><Key>{key}</Key><Size>{size}</Size></Contents>"
            );
        }
        let last = page.last().filter(|_| page.len() < rest.len());
        let next = last.map(|(key, _)| (*key).clone());
        let next = next.or_else(|| {
            (step == Some(Step::Endless)).then(|| format!("{}+", after.unwrap_or_default()))
        });
        if let Some(next) = next {
            let _ = write!(
                text,
                "<IsTruncated>true</IsTruncated><NextContinuationToken>{next}</NextContinuationToken>"
            );
        }
        if step == Some(Step::CutList) {
            text = text.replace("NextContinuationToken", "NextMarker");
            text = text.replace("<IsTruncated>true</IsTruncated>", "");
            text += "<IsTruncated>true</IsTruncated>";
        }
        plain(text + "</ListBucketResult>")
    }

    fn list_uploads(&self, prefix: &str) -> Response<Full<Bytes>> {
        let mut text = "<ListMultipartUploadsResult>".to_owned();
        for (id, (key, _)) in &self.uploads {
            if self.lists_by_key && key != prefix {
                continue;
            }
            let _ = write!(
                text,
                "<Upload><Key>{key}</Key><UploadId>{id}</UploadId></Upload>"
            );
        }
        plain(text + "</ListMultipartUploadsResult>")
    }
}

fn range(headers: &HeaderMap) -> Option<std::ops::RangeInclusive<usize>> {
    let range = headers.get(header::RANGE)?.to_str().unwrap();
    let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    Some(first.parse().unwrap()..=last.parse().unwrap())
}

fn plain(text: String) -> Response<Full<Bytes>> {
    Response::new(Full::new(text.into()))
}

fn refusal(status: u16, code: &str) -> Response<Full<Bytes>> {
    let text = format!("<Error><Code>{code}</Code><Message>words of the server</Message></Error>");
    let mut answer = plain(text);
    *answer.status_mut() = StatusCode::from_u16(status).unwrap();
    answer
}
