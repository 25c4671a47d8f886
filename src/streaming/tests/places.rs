//! Connections and sessions beyond the bounds, from one client.
//!
//! Invariant: sockets are real, and so are the bounds.
//! Failure: the session that did not start, or ended.

use tokio::io::AsyncWriteExt;
use tokio::task::yield_now;

use super::super::places::OF_POD;
use super::super::server::REQUESTS;
use super::*;

/// A session over SPDY that serves connections, and has none.
async fn session(server: &Server, machine: &ContainerId) -> Result<TcpStream, String> {
    let target = Target::PortForward(PortForwardTarget {
        addresses: Vec::new(),
        ports: Vec::new(),
    });
    let url = server.url(machine, target);
    let path = url.splitn(4, '/').nth(3).unwrap();
    let head = format!(
        "POST /{path} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
         X-Stream-Protocol-Version: portforward.k8s.io\r\n\r\n"
    );
    let mut client = server.connect().await;
    client.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.extend(exactly(&mut client, 1).await);
    }
    let answer = String::from_utf8(answer).unwrap();
    let status = answer.lines().next().unwrap_or_default();
    if status.starts_with("HTTP/1.1 101 ") {
        Ok(client)
    } else {
        Err(status.to_owned())
    }
}

/// A session answers a ping of SPDY.
async fn answers(session: &mut TcpStream) {
    let ping = [0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 1];
    session.write_all(&ping).await.unwrap();
    assert_eq!(exactly(session, ping.len()).await, ping);
}

#[tokio::test]
async fn connections_without_a_session_keep_no_client_out_and_end_no_session() {
    service::open_files::raise().unwrap();
    let server = Server::start().await;
    let mut early = session(&server, &server.machine).await.unwrap();
    let mut silent = Vec::new();
    for _ in 0..=REQUESTS {
        silent.push(server.connect().await);
    }
    let mut late = session(&server, &server.machine).await.unwrap();
    answers(&mut early).await;
    answers(&mut late).await;
    // The oldest of them made room, and the newest has its place.
    let read = soon("the end of the oldest", silent[0].read(&mut [0])).await;
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    let newest = silent.last_mut().unwrap();
    newest
        .write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        .await
        .unwrap();
    assert_eq!(exactly(newest, 12).await, b"HTTP/1.1 404");
}

#[tokio::test]
async fn a_pod_with_all_its_sessions_gets_no_more_and_another_pod_does() {
    let server = Server::start().await;
    let other = server.another("other").await;
    let mut held = Vec::new();
    for _ in 0..OF_POD {
        held.push(session(&server, &server.machine).await.unwrap());
    }
    let refused = session(&server, &server.machine).await.unwrap_err();
    assert!(refused.starts_with("HTTP/1.1 429 "), "{refused}");
    session(&server, &other).await.unwrap();
    // A session that ends leaves its place.
    held.pop();
    let again = async {
        while session(&server, &server.machine).await.is_err() {
            yield_now().await;
        }
    };
    soon("a place", again).await;
}
