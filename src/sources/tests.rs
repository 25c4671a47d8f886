//! Questions and answers without an agent.
//!
//! Invariant: time stands still but for the waits themselves.
//! Failure: a message with the outcome.

use std::sync::Arc;

use podspec::SourceKind;

use super::*;

fn wanted(name: &str) -> Wanted {
    Wanted {
        namespace: "default".to_owned(),
        pod: "web".to_owned(),
        pod_uid: "u".to_owned(),
        source: Source::new(SourceKind::Secret, name).unwrap(),
    }
}

fn content(value: &str) -> Content {
    Content([("k".to_owned(), value.as_bytes().to_vec())].into())
}

/// Asks in the background and returns the question's id.
async fn asked(
    sources: &Arc<Sources>,
    name: &str,
) -> (Uuid, tokio::task::JoinHandle<Result<Content, Error>>) {
    let (asking, wanted) = (Arc::clone(sources), wanted(name));
    let mut changes = sources.changes();
    let wish = wanted.clone();
    let task = tokio::spawn(async move { asking.ask(wish).await });
    loop {
        let open = sources.wanted();
        if let Some((id, _)) = open.iter().find(|(_, open)| **open == wanted) {
            return (*id, task);
        }
        changes.changed().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_goes_to_its_question_only() {
    let sources = Arc::new(Sources::default());
    let (one, first) = asked(&sources, "one").await;
    let (two, second) = asked(&sources, "two").await;
    sources.answer(two, Ok(content("2")));
    sources.answer(Uuid::new_v4(), Ok(content("x")));
    assert_eq!(second.await.unwrap(), Ok(content("2")));
    assert_eq!(sources.wanted().len(), 1);
    sources.answer(one, Ok(content("1")));
    assert_eq!(first.await.unwrap(), Ok(content("1")));
    assert!(sources.wanted().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_refusal_names_the_object_and_says_why() {
    let sources = Arc::new(Sources::default());
    let (id, asking) = asked(&sources, "seed").await;
    sources.answer(id, Err("it does not exist: create it".to_owned()));
    let error = asking.await.unwrap().unwrap_err().to_string();
    assert_eq!(
        error,
        "guest data from secret default/seed: it does not exist: create it"
    );
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_longer_than_its_patience() {
    let sources = Sources::default();
    let error = sources.ask(wanted("seed")).await.unwrap_err();
    assert!(error.to_string().contains("vmlet-agent"), "{error}");
    assert!(sources.wanted().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_question_is_forgotten_with_whoever_asked() {
    let sources = Arc::new(Sources::default());
    let (id, asking) = asked(&sources, "seed").await;
    asking.abort();
    asking.await.unwrap_err();
    assert!(sources.wanted().is_empty());
    sources.answer(id, Ok(content("late")));
}
