//! Peers that do not keep to the protocol.
//!
//! Invariant: messages come from a fixed seed, so that a failure repeats.
//! Failure: a program that dies or hangs fails the request at the end.

use std::time::Duration;

use fdpass::AsyncConnection;
use tapmanager::wire::{ErrorCode, HandoffReply, MAX_MESSAGE, Reply};

use crate::node::{Node, exchange, pod};

/// Nonsense of every kind, from `seed`.
fn nonsense(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let samples: [&[u8]; 6] = [
        b"{\"op\":\"hello\",\"version\":1}",
        b"{\"op\":\"add\",\"id\":\"x\",\"pod_name\":\"p\",\"port_mappings\":[{}]}",
        b"{\"op\":\"del\",\"id\":\"../../etc/passwd\"}",
        b"{\"op\":\"gc\",\"keep\":[[[[[[[[]]]]]]]]}",
        b"{\"version\":1,\"token\":\"0000\"}",
        b"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
    ];
    let mut bytes = samples[usize::try_from(seed % 6).unwrap()].to_vec();
    for _ in 0..1 + next() % 8 {
        let at = usize::try_from(next()).unwrap() % bytes.len();
        match next() % 4 {
            0 => bytes[at] = next().to_le_bytes()[0],
            1 => bytes.truncate(at.max(1)),
            2 => bytes.extend(next().to_le_bytes()),
            _ => bytes.extend(std::iter::repeat_n(b'[', at * 40)),
        }
    }
    // Longer ones are refused by the kernel on the sending side.
    bytes.truncate(MAX_MESSAGE + 50);
    bytes
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_thousand_malformed_messages_on_each_socket_have_no_effect() {
    let node = Node::start().await;
    node.client().add(pod("one")).await.unwrap();
    let token = node.token("one").await;
    for seed in 0..1000 {
        let bytes = nonsense(seed);
        for socket in [node.control(), node.handoff()] {
            if let Some(answer) = exchange(&socket, &bytes).await {
                assert!(
                    answer.fds.is_empty(),
                    "{:?}",
                    String::from_utf8_lossy(&bytes)
                );
            }
        }
    }
    assert_eq!(node.client().list().await.unwrap(), ["one"]);
    assert!(matches!(
        node.redeem(&token).await.0,
        HandoffReply::Ok { .. }
    ));
    node.client().del("one").await.unwrap();
}

fn code(message: Option<fdpass::Message>) -> Option<ErrorCode> {
    match serde_json::from_slice(&message?.bytes).unwrap() {
        Reply::Error(error) => Some(error.code),
        Reply::Ok(_) => None,
    }
}

#[tokio::test]
#[ignore = "needs root"]
async fn the_first_request_is_a_hello_of_our_version() {
    let node = Node::start().await;
    let early = exchange(&node.control(), b"{\"op\":\"list\"}").await;
    assert_eq!(code(early), Some(ErrorCode::Invalid));
    let other = exchange(&node.control(), b"{\"op\":\"hello\",\"version\":99}").await;
    assert_eq!(code(other), Some(ErrorCode::Version));
    let other = exchange(&node.handoff(), b"{\"version\":99,\"token\":\"\"}")
        .await
        .unwrap();
    let reply: HandoffReply = serde_json::from_slice(&other.bytes).unwrap();
    assert!(matches!(reply, HandoffReply::Error(e) if e.code == ErrorCode::Version));
    let long = exchange(&node.control(), &vec![b' '; MAX_MESSAGE + 1]).await;
    assert!(long.is_none());
}

#[tokio::test]
#[ignore = "needs root"]
async fn silent_peers_do_not_keep_others_out() {
    let node = Node::start().await;
    let silent: Vec<_> = (0..200)
        .map_while(|_| AsyncConnection::connect(&node.control()).ok())
        .collect();
    assert!(silent.len() > 100, "{}", silent.len());
    // They are hung up on after five seconds; the call waits in the queue until then.
    let call = node.client();
    let list = tokio::time::timeout(Duration::from_secs(90), async move {
        loop {
            match call.list().await {
                Err(tapmanager::client::Error::Unreachable { .. }) => {
                    tokio::task::yield_now().await
                }
                other => return other,
            }
        }
    });
    assert!(list.await.unwrap().is_ok());
}
