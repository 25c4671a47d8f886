//! Calls about the node: version, status, configuration, file systems.
//!
//! Invariant: what kubelet decides by is the primary's alone. A secondary adds conditions and
//! handlers of its own and cannot make the node unready.
//! Failure: the primary's; a secondary's becomes a condition.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use cri_proto::v1::StatusRequest;
use futures_util::future::{join, join_all};
use http::Response;
use prost::Message;
use tokio::time::Instant;

use super::answer::{merge, pass};
use super::{Call, Proxy, Secondary};
use crate::backend::{Answer, Failure};
use crate::wire::{Body, FirstId, fields, tagged};

mod conditions;

/// Wait between attempts to reach the primary for the first time.
const PAUSE: Duration = Duration::from_millis(50);

/// Longest wait for the primary's first answer when the caller sets no limit: kubelet's own.
const LONGEST_HOLD: Duration = Duration::from_secs(120);

/// Fields of `StatusResponse`.
const STATUS_STATUS: u32 = 1;
const STATUS_INFO: u32 = 2;
const STATUS_HANDLERS: u32 = 3;

/// Key of the proxy's own version in the verbose status.
pub(super) const OWN_VERSION: &str = "vmlet-criproxy/version";

impl Proxy {
    /// Answers with the version of the primary runtime.
    pub(super) async fn version(&self, call: &Call, message: &Bytes) -> Response<Body> {
        match self.first_of_primary(call, message).await {
            Ok(answer) => pass(answer),
            Err(failure) => failure.into_response(&self.primary),
        }
    }

    /// Answers with the file systems of the primary runtime, then those of the others that answer.
    pub(super) async fn image_fs_info(&self, call: &Call, message: &Bytes) -> Response<Body> {
        let others = self.secondaries.iter();
        let others =
            join_all(others.map(|s| s.query(call.name, call.copy(message), &self.metrics)));
        match join(self.first_of_primary(call, message), others).await {
            (Ok(answer), others) => {
                let others = others.into_iter().flatten();
                merge(answer, others.map(|other| other.message))
            }
            (Err(failure), _) => failure.into_response(&self.primary),
        }
    }

    /// The primary's, with conditions and handlers of the others.
    pub(super) async fn node_status(&self, call: &Call, message: &Bytes) -> Response<Body> {
        let others = self.status_of_others(call, message);
        let (mut primary, others) = match join(self.first_of_primary(call, message), others).await {
            (Ok(answer), others) => (answer, others),
            (Err(failure), _) => return failure.into_response(&self.primary),
        };
        let more: Vec<Bytes> = (others.into_iter())
            .flat_map(|(secondary, answer)| self.contribution(secondary, &answer, &primary))
            .collect();
        // What a handler may do is said by the runtime that it leads to.
        let kept = crate::wire::keep_fields(&primary.message, |field| {
            field.number != STATUS_HANDLERS
                || self
                    .routes
                    .of_handler(&handler_name(field.content))
                    .is_none()
        });
        if let Ok(kept) = kept {
            primary.message = kept;
        }
        let is_verbose =
            StatusRequest::decode(message.as_ref()).is_ok_and(|request| request.verbose);
        merge(
            primary,
            more.into_iter().chain(is_verbose.then(own_version)),
        )
    }

    /// What each secondary answers.
    pub(super) async fn status_of_others(
        &self,
        call: &Call,
        message: &Bytes,
    ) -> Vec<(&Secondary, Result<Answer, Failure>)> {
        join_all(self.secondaries.iter().map(|secondary| async move {
            let request = call.copy(message);
            let answer = secondary.query(call.name, request, &self.metrics).await;
            (secondary, answer)
        }))
        .await
    }

    /// Passes the call to all runtimes; the primary's answer counts. A secondary that is away gets it when it returns.
    pub(super) async fn update_runtime_config(
        &self,
        call: &Call,
        message: &Bytes,
    ) -> Response<Body> {
        let remembered = &self.runtime_config;
        *remembered.lock().unwrap_or_else(PoisonError::into_inner) = Some(message.clone());
        let others = self.secondaries.iter();
        let others =
            join_all(others.map(|s| s.query(call.name, call.copy(message), &self.metrics)));
        let primary = self.primary.unary(call.name, call.copy(message));
        match join(primary, others).await.0 {
            Ok(answer) => pass(answer),
            Err(failure) => failure.into_response(&self.primary),
        }
    }

    /// The primary's answer. Until it has answered for the first time, waits for that as long as
    /// the caller does.
    async fn first_of_primary(&self, call: &Call, message: &Bytes) -> Result<Answer, Failure> {
        let hold = call.timeout().unwrap_or(LONGEST_HOLD).min(LONGEST_HOLD);
        let until = Instant::now() + hold;
        loop {
            let answer = self.primary.unary(call.name, call.copy(message)).await;
            if !answer.as_ref().is_err_and(Failure::is_away) {
                self.answered.store(true, Ordering::Relaxed);
                return answer;
            }
            if self.answered.load(Ordering::Relaxed) || Instant::now() + PAUSE >= until {
                return answer;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// What a secondary adds to the status.
    pub(super) fn contribution(
        &self,
        secondary: &Secondary,
        answer: &Result<Answer, Failure>,
        primary: &Answer,
    ) -> Vec<Bytes> {
        let mut remembered = (secondary.node_status.lock()).unwrap_or_else(PoisonError::into_inner);
        let (conditions, info) = match answer {
            Ok(answer) => {
                *remembered = Some(answer.message.clone());
                let conditions = conditions::reported_by(secondary, &answer.message);
                (conditions, info(secondary, &answer.message))
            }
            Err(failure) => {
                let known = self
                    .memory
                    .last_list(secondary.backend.index, crate::state::Kind::Sandbox);
                let never = matches!(known, crate::state::LastKnown::NeverConnected);
                (conditions::away(secondary, failure, never), Vec::new())
            }
        };
        let mut more = vec![tagged(STATUS_STATUS, &conditions.encode_to_vec())];
        more.extend(info);
        // Handlers do not come and go with a restart of their runtime.
        let reported = remembered.as_deref().unwrap_or_default();
        let index = secondary.backend.index;
        more.extend(handlers(reported).filter_map(|(name, raw)| {
            let taken = || handlers(&primary.message).any(|(other, _)| other == name);
            let ours = match self.routes.of_handler(&name) {
                Some(owner) => owner == index,
                None => !name.is_empty() && !taken(),
            };
            ours.then(|| Bytes::copy_from_slice(raw))
        }));
        more
    }
}

/// Information about the proxy itself, for verbose status requests.
fn own_version() -> Bytes {
    let version = env!("CARGO_PKG_VERSION").as_bytes();
    let entry = [tagged(1, OWN_VERSION.as_bytes()), tagged(2, version)].concat();
    tagged(STATUS_INFO, &entry)
}

fn handlers(status: &[u8]) -> impl Iterator<Item = (String, &[u8])> {
    fields(status)
        .map_while(Result::ok)
        .filter(|field| field.number == STATUS_HANDLERS)
        .map(|field| (handler_name(field.content), field.raw))
}

fn handler_name(content: Option<&[u8]>) -> String {
    let handler = FirstId::decode(content.unwrap_or_default());
    handler.map_or_else(|_| String::new(), |handler| handler.id)
}

/// Its verbose information, each key behind its name.
fn info(secondary: &Secondary, status: &[u8]) -> Vec<Bytes> {
    let entries = fields(status)
        .map_while(Result::ok)
        .filter(|field| field.number == STATUS_INFO);
    let renamed = entries.filter_map(|field| {
        let key = FirstId::decode(field.content?).ok()?.id;
        let key = format!("{}/{key}", secondary.backend.name);
        // The last of equal fields counts.
        let entry = [field.content?, &tagged(1, key.as_bytes())].concat();
        Some(tagged(STATUS_INFO, &entry))
    });
    renamed.collect()
}
