//! Commands in machines, with an agent that answers what the test specifies.
//!
//! Invariant: time is paused where a test waits for it; the guest's side is proved in the
//! end-to-end tests.
//! Failure: the error or the commands that differ.

use std::time::Duration;

use libvirt::FakeHypervisor;
use serde_json::{Value, json};

use crate::testkit::Node;
use crate::vm::Error;
use crate::vm::exec;

async fn run(node: &Node, timeout: u64) -> Result<exec::Output, Error> {
    let id = node.started().await;
    let command = vec!["probe".to_owned(), "an argument".to_owned()];
    let timeout = Some(Duration::from_secs(timeout));
    node.containers.exec(&id, command, timeout).await
}

async fn answering(answers: impl IntoIterator<Item = Value>) -> Node {
    Node::with(FakeHypervisor::default().agent_answering(answers)).await
}

/// What the agent was requested to run, and what for.
fn scripts(node: &Node) -> Vec<String> {
    let commands = node.hypervisor.agent_commands();
    let runs = commands.iter().filter(|c| c["execute"] == "guest-exec");
    runs.map(|c| c["arguments"]["arg"].to_string()).collect()
}

#[tokio::test]
async fn streams_and_code_come_back_as_they_are() {
    let ended = json!({"exited": true, "exitcode": 3, "out-data": "AP8K", "err-data": "ZQ=="});
    let node = answering([json!({"pid": 7}), json!({"exited": false}), ended]).await;
    let output = run(&node, 60).await.unwrap();
    assert_eq!(
        (output.code, &*output.out, &*output.err),
        (3, b"\0\xff\n".as_slice(), b"e".as_slice())
    );
    let scripts = scripts(&node);
    assert!(
        scripts[0].ends_with("\"probe\",\"an argument\"]"),
        "{scripts:?}"
    );
}

#[tokio::test]
async fn exec_works_without_setsid_and_a_missing_shell_is_an_error() {
    let missing =
        || json!({"error": "Failed to execute child process (No such file or directory)"});
    let ended = json!({"exited": true, "exitcode": 0});
    let node = answering([missing(), json!({"pid": 7}), ended]).await;
    assert_eq!(run(&node, 60).await.unwrap().code, 0);

    let node = answering([missing(), missing()]).await;
    let refused = run(&node, 60).await;
    assert!(
        matches!(refused, Err(Error::Exec(exec::Error::NoShell(_)))),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_command_that_is_not_there_is_an_error_and_a_killed_one_has_a_code() {
    for (signal, code) in [(10, None), (9, Some(137))] {
        let node = answering([json!({"pid": 7}), json!({"exited": true, "signal": signal})]).await;
        match (run(&node, 60).await, code) {
            (Err(Error::Exec(exec::Error::NoCommand(name))), None) => assert_eq!(name, "probe"),
            (Ok(output), Some(code)) => assert_eq!(output.code, code),
            (other, _) => panic!("{signal}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_machine_without_an_agent_gets_an_error_that_names_the_package() {
    let node = Node::new().await;
    let refused = run(&node, 1).await.unwrap_err();
    assert!(
        matches!(refused, Error::Exec(exec::Error::NoAgent(_))),
        "{refused:?}"
    );
    assert!(crate::one_line(&refused).contains("install the package qemu-guest-agent"));
}

#[tokio::test]
async fn an_end_during_the_wait_for_the_agent_is_reported() {
    let node = Node::new().await;
    let id = node.started().await;
    let command = node.containers.exec(&id, vec!["x".to_owned()], None);
    let end = async {
        while node.hypervisor.agent_commands().is_empty() {
            tokio::task::yield_now().await;
        }
        node.hypervisor.power_off(id.domain());
    };
    let (refused, ()) = tokio::join!(command, end);
    assert!(
        matches!(refused, Err(Error::Exec(exec::Error::Ended))),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_machine_that_does_not_run_takes_no_command() {
    let node = Node::new().await;
    let id = node.created().await;
    let refused = node.containers.exec(&id, vec!["x".to_owned()], None).await;
    assert!(matches!(refused, Err(Error::Phase { .. })), "{refused:?}");
    assert!(node.hypervisor.agent_commands().is_empty());
}

#[tokio::test]
async fn a_command_that_takes_too_long_is_killed_by_its_pid() {
    let running = std::iter::repeat_n(json!({"exited": false}), 10_000);
    let node = answering(std::iter::once(json!({"pid": 4711})).chain(running)).await;
    let late = run(&node, 1).await;
    assert!(
        matches!(late, Err(Error::Exec(exec::Error::Timeout(_)))),
        "{late:?}"
    );
    let scripts = scripts(&node);
    assert_eq!(scripts.len(), 2, "{scripts:?}");
    assert!(
        scripts[1].contains("\"4711\",\"/tmp/.vmlet-exec-"),
        "{}",
        scripts[1]
    );
}

#[tokio::test]
async fn the_wait_for_commands_of_other_machines_is_no_time_of_a_command() {
    let second = Some(Duration::from_secs(1));
    let ended = json!({"exited": true, "exitcode": 0});
    let node = answering([json!({"pid": 7}), ended]).await;
    let id = node.started().await;
    let command = || vec!["probe".to_owned()];
    let full = node.containers.exec_slots.fill("default").await;
    tokio::time::pause();
    let refused = node.containers.exec(&id, command(), second).await;
    assert!(
        matches!(refused, Err(Error::Exec(exec::Error::Crowded))),
        "{refused:?}"
    );
    let room = async {
        tokio::time::advance(Duration::from_secs(10)).await;
        drop(full);
    };
    let (ran, ()) = tokio::join!(node.containers.exec(&id, command(), second), room);
    assert_eq!(ran.unwrap().code, 0);
}

#[tokio::test]
async fn a_command_without_a_time_out_is_refused_in_a_machine_that_stays_full() {
    let node = answering([]).await;
    let id = node.started().await;
    let _full = node.containers.exec_slots.fill_machine(&id).await;
    tokio::time::pause();
    let refused = node
        .containers
        .exec(&id, vec!["probe".to_owned()], None)
        .await;
    assert!(
        matches!(refused, Err(Error::Exec(exec::Error::MachineCrowded))),
        "{refused:?}"
    );
    assert!(node.hypervisor.agent_commands().is_empty());
}

#[tokio::test]
async fn a_command_of_vmlet_guest_runs_while_no_place_of_the_node_is_free() {
    let node = answering([]).await;
    let id = node.started().await;
    let socket = node.containers.paths().guest_socket(&id);
    std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
    let listener = std::os::unix::net::UnixListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        let connection = listener.accept().unwrap().0;
        let port = ::guest::Port::of_socket(connection).unwrap();
        // It serves until the daemon disconnects.
        let _ = ::guest::serve(&port, &crate::testkit::no_places());
    });
    let minute = Duration::from_secs(60);
    let agent = node.containers.guest_agent(&id, minute).await;
    assert!(agent.unwrap().is_some());
    let _full = node.containers.exec_slots.fill("default").await;
    let command = ["echo", "here"].map(str::to_owned).into();
    let output = node.containers.exec(&id, command, Some(minute)).await;
    assert_eq!(&*output.unwrap().out, b"here\n");
    assert!(scripts(&node).is_empty());
}
