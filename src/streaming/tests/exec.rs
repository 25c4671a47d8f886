//! Commands in a guest, for WebSocket clients.
//!
//! Invariant: the real `vmlet-guest` runs them.
//! Failure: the assertion shows what came.

use super::websocket::Client;
use super::*;

fn target(server: &Server, command: &[&str], streams: Wanted) -> Target {
    Target::Exec(ExecTarget {
        container: server.machine.clone(),
        command: command.iter().map(|word| (*word).to_owned()).collect(),
        streams,
    })
}

const PIPES: Wanted = Wanted {
    stdin: true,
    stdout: true,
    stderr: false,
    resize: false,
};

#[tokio::test]
async fn the_newest_version_ends_the_input_of_a_command() {
    let server = Server::start().await;
    server.guest(&server.machine).await;
    let command = target(&server, &["sh", "-c", "cat; exit 3"], PIPES);
    let mut client = Client::start(&server, command, "", "v5.channel.k8s.io")
        .await
        .unwrap();
    assert_eq!(client.bytes().await, [1][..], "the session is up");
    let input = vec![b'x'; 300_000];
    let sent = [&[0], input.as_slice()].concat();
    // The client of this test does not read while it sends: the input is more than what is on the
    // way at most.
    client.send(&sent).await;
    client.send(&[255, 0]).await;
    client.until(1, &input).await;
    let result = client.bytes().await;
    assert_eq!(result[0], 3);
    let result: serde_json::Value = serde_json::from_slice(&result[1..]).unwrap();
    assert_eq!(result["details"]["causes"][0]["message"], "3");
    assert_eq!(u16::from(client.close().await.0), 1000);
}

#[tokio::test]
async fn a_terminal_follows_sizes_without_line_ends() {
    let server = Server::start().await;
    server.guest(&server.machine).await;
    let streams = Wanted {
        resize: true,
        ..PIPES
    };
    let script = "until stty size | grep '50 132'; do sleep 0.05; done";
    let command = target(&server, &["sh", "-c", script], streams);
    let mut client = Client::start(&server, command, "", "channel.k8s.io")
        .await
        .unwrap();
    client.bytes().await;
    client
        .send(b"\x04{\"Width\":80,\"Height\":24}{\"Width\":132,")
        .await;
    client.send(b"\x04\"Height\":50}").await;
    client.until(1, b"50 132\r\n").await;
    assert_eq!(u16::from(client.close().await.0), 1000);
}

#[tokio::test]
async fn a_command_ends_with_the_reset_of_its_machine() {
    let server = Server::start().await;
    server.guest(&server.machine).await;
    let containers = &server.node.containers;
    let agent = containers.guest_agent(&server.machine, SOON).await.unwrap();
    let command = vec!["sleep".to_owned(), "1000".to_owned()];
    let mut command = agent.unwrap().start(command, false, None).await.unwrap();
    // The agent that the test runs does not end with the machine, and so announces nothing.
    let domain = server.machine.domain();
    containers.on_event(libvirt::Event::Reset(domain)).await;
    let ended = soon("the end of the command", command.ended.wait()).await;
    assert_eq!(ended.map(|end| end.code), Err(crate::guest::Error::Lost));
    assert_eq!(server.run(&server.machine, &["true"]).await, Ok(0));
}
