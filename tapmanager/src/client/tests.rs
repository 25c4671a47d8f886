//! Calls to servers that are not there, silent, or strange.
//!
//! Invariant: servers are sockets of the test's own.
//! Failure: a call without an end would hang the test; deadlines are short.

use fdpass::AsyncListener;

use super::*;
use crate::wire::ErrorCode;

const SHORT: Duration = Duration::from_millis(200);

fn hello() -> Reply {
    Reply::Ok(Answer::Hello {
        version: PROTOCOL_VERSION,
        server: String::new(),
    })
}

/// The result of a call that gets these answers, in order, and then the end of the connection.
async fn list(answers: Vec<Vec<u8>>) -> Result<Vec<String>, Error> {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let listener = AsyncListener::bind(&socket, 0o600).unwrap();
    let serve = async {
        let connection = listener.accept().await.unwrap();
        for answer in answers {
            connection.recv(MAX_MESSAGE).await.unwrap();
            connection.send(&answer, &[]).await.unwrap();
        }
        connection.recv(MAX_MESSAGE).await.unwrap();
    };
    let client = Client::new(&socket, Duration::from_secs(60));
    let (outcome, ()) = tokio::join!(client.list(), serve);
    outcome
}

fn bytes(reply: &Reply) -> Vec<u8> {
    serde_json::to_vec(reply).unwrap()
}

#[tokio::test]
async fn a_call_returns_the_reply_of_the_server() {
    let ids = Reply::Ok(Answer::Ids {
        ids: vec!["a".to_owned()],
    });
    assert_eq!(
        list(vec![bytes(&hello()), bytes(&ids)]).await.unwrap(),
        ["a"]
    );
    let error = WireError {
        code: ErrorCode::System,
        message: "full".to_owned(),
    };
    let refused = list(vec![bytes(&hello()), bytes(&Reply::Error(error.clone()))]).await;
    assert!(matches!(refused, Err(Error::Refused(e)) if e == error));
}

#[tokio::test]
async fn a_call_waits_for_a_server_that_is_being_started() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let client = Client::new(&socket, Duration::from_secs(60));
    // Polled after the call, whose first look finds no socket.
    let serve = async {
        let listener = AsyncListener::bind(&socket, 0o600).unwrap();
        let connection = listener.accept().await.unwrap();
        for answer in [hello(), Reply::Ok(Answer::Ids { ids: Vec::new() })] {
            connection.recv(MAX_MESSAGE).await.unwrap();
            connection.send(&bytes(&answer), &[]).await.unwrap();
        }
    };
    let (outcome, ()) = tokio::join!(client.list(), serve);
    assert_eq!(outcome.unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn what_is_not_the_protocol_is_an_error() {
    let other = Reply::Ok(Answer::Hello {
        version: 99,
        server: String::new(),
    });
    for answers in [
        vec![bytes(&other)],
        vec![b"nonsense".to_vec()],
        vec![bytes(&hello()), bytes(&Reply::Ok(Answer::Done))],
        vec![bytes(&hello())],
    ] {
        let outcome = list(answers).await;
        assert!(matches!(outcome, Err(Error::Protocol(_))), "{outcome:?}");
    }
}

#[tokio::test]
async fn an_absent_server_differs_from_an_unresponsive_one() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let client = Client::new(&socket, SHORT);
    assert!(matches!(
        client.list().await,
        Err(Error::Unreachable { .. })
    ));
    let _silent = AsyncListener::bind(&socket, 0o600).unwrap();
    assert!(matches!(client.list().await, Err(Error::Deadline(SHORT))));
}
