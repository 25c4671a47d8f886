//! Conversions of requests for objects of the cluster, and of their answers.
//!
//! Invariant: an answer is bounded; its content shows in no message.
//! Failure: [`Invalid`] names the field.

use nodeapi::v1;
use podspec::{Content, SourceKind};
use service::telemetry::bounded;
use uuid::Uuid;

use super::Invalid;
use crate::node::watch::Change;
use crate::sources::{Answer, MOST_BYTES, Wanted};

/// A change of the open requests, as a message.
pub(in crate::node) fn source_event(change: &Change<'_, Uuid, (Uuid, Wanted)>) -> v1::SourceEvent {
    let none = v1::SourceEvent::default();
    match change {
        Change::Is((id, wanted)) => v1::SourceEvent {
            wanted: Some(question(id, wanted)),
            ..none
        },
        Change::Gone(id) => v1::SourceEvent {
            wanted: Some(v1::WantedSource {
                id: id.to_string(),
                ..v1::WantedSource::default()
            }),
            gone: true,
            ..none
        },
        Change::Synced => v1::SourceEvent {
            synced: true,
            ..none
        },
    }
}

fn question(id: &Uuid, wanted: &Wanted) -> v1::WantedSource {
    use v1::wanted_source::Kind;
    v1::WantedSource {
        id: id.to_string(),
        pod_namespace: wanted.namespace.clone(),
        pod_name: wanted.pod.clone(),
        pod_uid: wanted.pod_uid.clone(),
        kind: match wanted.source.kind {
            SourceKind::ConfigMap => Kind::ConfigMap,
            SourceKind::Secret => Kind::Secret,
        }
        .into(),
        name: wanted.source.name().to_owned(),
        task_uid: wanted.task.clone(),
    }
}

/// The answer of a request, and the question that it is for.
pub(in crate::node) fn answer(
    request: v1::ProvideSourceRequest,
) -> Result<(Uuid, Answer), Invalid> {
    let id = Uuid::try_parse(&request.id).map_err(|_| Invalid {
        field: "id",
        reason: "the id of a question is needed",
    })?;
    let sizes = request.data.iter().map(|(key, v)| key.len() + v.len());
    if sizes.sum::<usize>() > MOST_BYTES {
        return Err(Invalid {
            field: "data",
            reason: "no object of a cluster is larger than 2 MiB",
        });
    }
    let answer = match request.error.as_str() {
        "" => Ok(Content(request.data)),
        error => Err(bounded(error)),
    };
    Ok((id, answer))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(id: &str, bytes: usize, error: &str) -> v1::ProvideSourceRequest {
        v1::ProvideSourceRequest {
            id: id.to_owned(),
            data: [("k".to_owned(), vec![b'x'; bytes])].into(),
            error: error.to_owned(),
        }
    }

    #[test]
    fn an_answer_is_for_one_question_and_bounded() {
        let id = Uuid::new_v4();
        let field = |request| answer(request).unwrap_err().field;
        assert_eq!(field(request("1", 1, "")), "id");
        assert_eq!(field(request(&id.to_string(), MOST_BYTES, "")), "data");
        let (of, held) = answer(request(&id.to_string(), 3, "")).unwrap();
        assert_eq!((of, held.unwrap().0["k"].len()), (id, 3));
        let (_, refused) = answer(request(&id.to_string(), 0, &"x".repeat(100_000))).unwrap();
        assert!(refused.unwrap_err().len() < 10_000);
    }
}
