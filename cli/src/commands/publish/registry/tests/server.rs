//! A registry on the loopback device that takes uploads in pieces.
//!
//! Invariant: a piece is taken where the upload ends alone; a blob and a manifest have the digests that they are
//! put with. A fault is shown once, unless its name says otherwise.
//! Failure: the status that a real registry answers with.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::commands::publish::registry::digest;

/// What the registry does to an upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// It takes nothing of a piece, and says so.
    Busy,
    /// It takes so many bytes of a piece, and breaks the connection.
    Takes(usize),
    /// It takes a piece, and its answer is lost.
    TakesAll,
    /// It breaks the connection.
    Breaks,
    ForgetsUpload,
    /// Every time.
    ForgetsAll,
    /// The answer to the end of an upload is lost.
    FailsAtEnd,
    /// Tokens and passwords of before are refused once, and the service of tokens is busy then.
    ExpiresTokens,
    /// Pieces are refused every time, one request for all of a blob is not.
    TakesNoPieces,
    /// Pieces of less than 64 MiB are refused every time.
    DemandsLargePieces,
    /// Every upload, with this status.
    Refuses(u16),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Login {
    None,
    Password,
    Token,
}

pub(super) struct Server {
    pub(super) authority: String,
    state: Arc<Mutex<State>>,
    serving: JoinHandle<()>,
}

struct State {
    login: Login,
    authority: String,
    fault: Option<Fault>,
    has_shown_fault: bool,
    token: u32,
    /// The service of tokens gives none the next time.
    is_busy: bool,
    has_been_busy: bool,
    next: u32,
    uploads: BTreeMap<u32, Vec<u8>>,
    blobs: BTreeMap<String, Vec<u8>>,
    manifests: BTreeMap<String, Vec<u8>>,
    small: usize,
}

/// An answer, or a connection that breaks.
type Answer = Option<Response<Full<Bytes>>>;

#[derive(Debug, thiserror::Error)]
#[error("the connection breaks")]
struct Broken;

impl Server {
    pub(super) async fn start(login: Login) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let authority = listener.local_addr().unwrap().to_string();
        let state = Arc::new(Mutex::new(State {
            login,
            authority: authority.clone(),
            fault: None,
            has_shown_fault: false,
            token: 0,
            is_busy: false,
            has_been_busy: false,
            next: 0,
            uploads: BTreeMap::new(),
            blobs: BTreeMap::new(),
            manifests: BTreeMap::new(),
            small: 0,
        }));
        let served = Arc::clone(&state);
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let state = Arc::clone(&served);
                let service = service_fn(move |request| answer(Arc::clone(&state), request));
                let serving = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                tokio::spawn(serving);
            }
        });
        Self {
            authority,
            state,
            serving,
        }
    }

    pub(super) fn set(&self, fault: Fault) {
        self.state().fault = Some(fault);
    }

    pub(super) fn has_shown_fault(&self) -> bool {
        self.state().has_shown_fault
    }

    pub(super) fn has_been_busy(&self) -> bool {
        self.state().has_been_busy
    }

    pub(super) fn blob(&self, digest: &str) -> Option<Vec<u8>> {
        self.state().blobs.get(digest).cloned()
    }

    pub(super) fn manifest(&self, tag: &str) -> Option<Vec<u8>> {
        self.state().manifests.get(tag).cloned()
    }

    /// Blobs that are no disks.
    pub(super) fn uploads_of_configurations(&self) -> usize {
        self.state().small
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn answer(
    state: Arc<Mutex<State>>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Broken> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| Broken)?.to_bytes();
    let answer = state.lock().unwrap().answer(&head, &body);
    answer.ok_or(Broken)
}

fn reply(status: u16, headers: &[(&str, &str)], body: &str) -> Answer {
    let mut response = Response::new(Full::new(Bytes::from(body.to_owned())));
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    for (name, value) in headers {
        let name: header::HeaderName = name.parse().unwrap();
        response.headers_mut().insert(name, value.parse().unwrap());
    }
    Some(response)
}

fn plain(status: u16) -> Answer {
    reply(status, &[], "")
}

impl State {
    /// Whether this fault is to be shown now.
    fn shows(&mut self, fault: Fault) -> bool {
        let shown = self.fault == Some(fault);
        if shown {
            self.has_shown_fault = true;
            self.fault = None;
        }
        shown
    }

    fn answer(&mut self, head: &http::request::Parts, body: &Bytes) -> Answer {
        let given = head.headers.get(header::AUTHORIZATION);
        let given = given.map_or("", |value| value.to_str().unwrap()).to_owned();
        let password = format!("Basic {}", STANDARD.encode("me:hush"));
        let path = head.uri.path().to_owned();
        if path == "/token" {
            if std::mem::take(&mut self.is_busy) {
                self.has_been_busy = true;
                return plain(503);
            }
            let form = String::from_utf8_lossy(body);
            let asked = format!("{}{form}", head.uri.query().unwrap_or_default());
            assert!(
                asked.contains("scope=repository%3Ateam%2Fweb%3Apull%2Cpush"),
                "{asked}"
            );
            let is_known = given == password || form.contains("refresh_token=identity");
            if is_known {
                return reply(200, &[], &format!("{{\"token\":\"t{}\"}}", self.token));
            }
            return plain(401);
        }
        let is_expired = head.method == Method::PATCH && self.shows(Fault::ExpiresTokens);
        if is_expired {
            self.token += 1;
            self.is_busy = true;
        }
        let realm = format!(
            "Bearer realm=\"http://{}/token\",service=\"s\"",
            self.authority
        );
        let demand = match self.login {
            Login::None => None,
            Login::Password => {
                (given != password || is_expired).then(|| "Basic realm=\"r\"".to_owned())
            }
            Login::Token => (given != format!("Bearer t{}", self.token)).then_some(realm),
        };
        if let Some(demand) = demand {
            return reply(401, &[("www-authenticate", &demand)], "");
        }
        let Some(path) = path.strip_prefix("/v2/team/web/") else {
            return plain(404);
        };
        if let Some(number) = path.strip_prefix("blobs/uploads/") {
            return self.upload(head, number, body);
        }
        if let Some(wanted) = path.strip_prefix("blobs/") {
            return plain(if self.blobs.contains_key(wanted) {
                200
            } else {
                404
            });
        }
        let Some(tag) = path.strip_prefix("manifests/") else {
            return plain(404);
        };
        if head.method == Method::GET {
            let found = self.manifests.get(tag).cloned();
            let found = found.map(|manifest| Response::new(Full::new(Bytes::from(manifest))));
            return found.or_else(|| plain(404));
        }
        self.manifests.insert(tag.to_owned(), body.to_vec());
        plain(201)
    }

    fn upload(&mut self, head: &http::request::Parts, number: &str, body: &Bytes) -> Answer {
        if head.method == Method::POST {
            if let Some(Fault::Refuses(status)) = self.fault {
                let words = "{\"errors\":[{\"code\":\"DENIED\",\"message\":\"no\"}]}";
                return reply(status, &[], words);
            }
            self.next += 1;
            self.uploads.insert(self.next, Vec::new());
            let mut accepted = self.accepted(202, self.next);
            if let Some(accepted) = accepted.as_mut()
                && self.fault == Some(Fault::DemandsLargePieces)
            {
                self.has_shown_fault = true;
                let least = "67108864".parse().unwrap();
                accepted.headers_mut().insert("oci-chunk-min-length", least);
            }
            return accepted;
        }
        let number: u32 = number.parse().unwrap();
        let is_piece = head.method == Method::PATCH;
        let is_forgotten = is_piece && self.shows(Fault::ForgetsUpload);
        let is_every = is_piece && self.fault == Some(Fault::ForgetsAll);
        if is_forgotten || is_every {
            self.uploads.clear();
        }
        if !self.uploads.contains_key(&number) {
            return plain(404);
        }
        match head.method {
            Method::GET => self.accepted(204, number),
            Method::DELETE => {
                self.uploads.remove(&number);
                plain(204)
            }
            Method::PATCH => self.piece(head, number, body),
            _ => self.end(head, number),
        }
    }

    fn piece(&mut self, head: &http::request::Parts, number: u32, body: &Bytes) -> Answer {
        let range = head.headers.get(header::CONTENT_RANGE);
        let range = range.map(|range| range.to_str().unwrap().to_owned());
        if self.fault == Some(Fault::DemandsLargePieces) && range.is_some() {
            return plain(413);
        }
        if self.fault == Some(Fault::TakesNoPieces) && range.is_some() {
            self.has_shown_fault = true;
            return plain(400);
        }
        let begin = self.uploads[&number].len();
        let expected = format!("{begin}-{}", (begin + body.len()).saturating_sub(1));
        if range.is_some_and(|range| range != expected) {
            return plain(416);
        }
        if self.shows(Fault::Busy) {
            return plain(503);
        }
        if self.shows(Fault::Breaks) {
            return None;
        }
        let part = match self.fault {
            Some(Fault::Takes(part)) => Some(part),
            Some(Fault::TakesAll) => Some(body.len()),
            _ => None,
        };
        let taken = part.unwrap_or(body.len());
        let upload = self.uploads.get_mut(&number).unwrap();
        upload.extend_from_slice(&body[..taken]);
        if part.is_some() {
            self.has_shown_fault = true;
            self.fault = None;
            return None;
        }
        self.accepted(202, number)
    }

    fn end(&mut self, head: &http::request::Parts, number: u32) -> Answer {
        let query = head.uri.query().unwrap_or_default();
        let wanted = query.split("digest=").nth(1).unwrap().replace("%3A", ":");
        let blob = self.uploads.remove(&number).unwrap();
        if digest(&blob) != wanted {
            return plain(400);
        }
        self.small += usize::from(blob.len() < 1024);
        self.blobs.insert(wanted, blob);
        if self.shows(Fault::FailsAtEnd) {
            return None;
        }
        plain(201)
    }

    /// How far an upload is.
    fn accepted(&self, status: u16, number: u32) -> Answer {
        let location = format!("/v2/team/web/blobs/uploads/{number}?state=s");
        let last = self.uploads[&number].len().saturating_sub(1);
        let range = format!("0-{last}");
        reply(status, &[("location", &location), ("range", &range)], "")
    }
}
