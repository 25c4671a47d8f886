//! What agents answer, valid and otherwise.
//!
//! Invariant: no libvirt; the fake passes answers on as they are.
//! Failure: the answer that was read differently.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use serde_json::Value;

use super::*;
use crate::FakeHypervisor;

const ID: Uuid = Uuid::from_u128(7);
const SOON: Duration = Duration::from_secs(1);

async fn guest(answers: impl IntoIterator<Item = Value>) -> FakeHypervisor {
    let hv = FakeHypervisor::default().agent_answering(answers);
    let xml = format!("<domain><name>a</name><uuid>{ID}</uuid></domain>");
    hv.define(xml).await.unwrap();
    hv.start(ID).await.unwrap();
    hv
}

#[tokio::test]
async fn a_program_runs_and_its_bytes_come_back_as_they_were() {
    let running = json!({"exited": false});
    let ended = json!({"exited": true, "exitcode": 3, "out-data": "AP8NCg==", "err-data": ""});
    let hv = guest([json!({"pid": 12}), running, ended]).await;
    let program = Program {
        path: "/bin/sh".to_owned(),
        arguments: vec!["-c".to_owned(), "true".to_owned()],
        input: b"in".to_vec(),
        capture: true,
    };
    let process = exec(&hv, ID, &program, SOON).await.unwrap();
    assert_eq!(exec_status(&hv, ID, process, SOON).await.unwrap(), None);
    let ended = exec_status(&hv, ID, process, SOON).await.unwrap().unwrap();
    assert_eq!(
        (ended.how, ended.out.as_slice()),
        (How::Code(3), b"\0\xff\r\n".as_slice())
    );
    let commands = hv.agent_commands();
    assert_eq!(
        commands[0],
        json!({"execute": "guest-exec", "arguments": {
            "path": "/bin/sh", "arg": ["-c", "true"], "input-data": "aW4=", "capture-output": true,
        }})
    );
    assert_eq!(commands[2]["arguments"]["pid"], 12);
}

#[tokio::test]
async fn a_signal_is_no_exit_code() {
    let hv = guest([json!({"exited": true, "signal": 9, "out-truncated": true})]).await;
    let ended = exec_status(&hv, ID, Process { pid: 1 }, SOON).await;
    let ended = ended.unwrap().unwrap();
    assert_eq!((ended.how, ended.truncated), (How::Signal(9), true));
}

#[tokio::test]
async fn answers_that_make_no_sense_are_the_agents_fault() {
    let answers = [
        json!({"exited": true, "signal": 0}),
        json!({"exited": true, "signal": 65}),
        json!({"exited": true, "signal": -9}),
        json!({"exited": true, "signal": i32::MAX}),
        json!({}),
        json!([]),
        json!({"exited": true}),
        json!({"exited": true, "exitcode": 1_i64 << 40}),
        json!({"exited": true, "exitcode": 0, "out-data": "no base64!"}),
        json!({"exited": "yes"}),
    ];
    let count = answers.len();
    let hv = guest(answers).await;
    for _ in 0..count {
        let answer = exec_status(&hv, ID, Process { pid: 1 }, SOON).await;
        assert!(matches!(answer, Err(Error::Agent { .. })), "{answer:?}");
    }
}

#[tokio::test]
async fn a_program_that_cannot_be_started_is_a_refusal() {
    let hv = guest([json!({"error": "Failed to execute child process"})]).await;
    let answer = exec(&hv, ID, &Program::default(), SOON).await;
    assert!(matches!(answer, Err(Error::Refused { .. })), "{answer:?}");
}

#[tokio::test]
async fn a_file_is_read_up_to_the_requested_length_and_closed() {
    let close = json!({});
    let hv = guest([
        json!(1000),
        json!({"count": 3, "buf-b64": "YT1i", "eof": true}),
        close.clone(),
        json!(1001),
        json!({"count": 9, "buf-b64": "YWJjZGVmZ2hp", "eof": false}),
        close.clone(),
        json!(1002),
        json!({"error": "an error of input"}),
        close,
        json!("no handle"),
        json!(1003),
        json!({"count": 3, "buf-b64": "no base64!", "eof": true}),
        json!({}),
        json!(1004),
        json!({"count": 3, "buf-b64": "YT1i", "eof": true}),
    ])
    .await;
    let read = async || read_file(&hv, ID, "/f", 4, SOON).await;
    assert_eq!(read().await.unwrap().unwrap(), b"a=b");
    assert_eq!(read().await.unwrap().unwrap(), b"abcd");
    assert!(matches!(read().await, Err(Error::Refused { .. })));
    assert_eq!(read().await.unwrap(), None);
    assert_eq!(read().await.unwrap(), None);
    // The close has no answer.
    assert_eq!(read().await.unwrap().unwrap(), b"a=b");
    assert!(matches!(read().await, Err(Error::Agent { .. })));
    let commands = hv.agent_commands();
    let arguments = |n: usize| commands[n]["arguments"].clone();
    assert_eq!(arguments(0), json!({"path": "/f", "mode": "r"}));
    assert_eq!(arguments(1), json!({"handle": 1000, "count": 4}));
    assert_eq!(commands[8]["execute"], "guest-file-close");
    assert_eq!(arguments(8), json!({"handle": 1002}));
}
