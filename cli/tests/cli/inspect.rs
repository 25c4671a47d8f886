//! The commands that look at pods and end them, and the doctor.
//!
//! Invariant: each works on the one pod that is named.
//! Failure: none.

use nix::pty::openpty;
use nix::sys::termios::{LocalFlags, tcgetattr};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;

use super::*;

async fn with_pod(scenario: Scenario) -> Node {
    let node = Node::start(scenario);
    assert_eq!(finished(node.spawn_run(&["--detach"])).await.code, Some(0));
    node
}

#[tokio::test]
async fn a_pod_is_listed_read_stopped_and_removed_by_name() {
    let node = with_pod(Scenario::default()).await;
    let listed = node.ctl(&["ps", "-o", "json"]).await;
    let pods: serde_json::Value = serde_json::from_str(&listed.out).unwrap();
    assert_eq!(
        (&pods[0]["name"], &pods[0]["state"]),
        (&"hello".into(), &"Running".into())
    );
    assert_eq!(
        (&pods[0]["ip"], &pods[0]["image"]),
        (&"10.88.0.7".into(), &"vmlet.dev/hello".into())
    );

    assert_eq!(
        node.ctl(&["node", "logs", "hello"]).await.out,
        "guest: hello\n"
    );
    let refused = node.ctl(&["rm", "hello"]).await;
    assert!(
        refused.err.contains("pod hello is running: stop it first"),
        "{}",
        refused.err
    );

    assert_eq!(node.ctl(&["node", "stop", "hello"]).await.code, Some(0));
    assert!(
        node.fake
            .changes()
            .ends_with(&["StopContainer 7".into(), "StopPodSandbox".into()])
    );
    assert_eq!(
        node.ctl(&["node", "logs", "-f", "hello"]).await.out,
        "guest: hello\nguest: bye\n"
    );
    assert_eq!(node.ctl(&["rm", "hello"]).await.code, Some(0));
    assert!(node.fake.sandbox_configs().is_empty());
    assert_eq!(node.log_directories(), 0);
}

#[tokio::test]
async fn an_unknown_pod_is_an_error_of_every_command() {
    let node = Node::start(Scenario::default());
    for command in ["stop", "rm", "logs", "console"] {
        let output = node.ctl(&["node", command, "other"]).await;
        assert_eq!(output.code, Some(1), "{command}");
        assert!(
            output
                .err
                .contains("no pod \"other\" in namespace \"default\""),
            "{}",
            output.err
        );
    }
}

#[tokio::test]
async fn a_stop_may_be_given_its_own_time() {
    let node = with_pod(Scenario::default()).await;
    assert_eq!(
        node.ctl(&["node", "stop", "-t", "2", "hello"]).await.code,
        Some(0)
    );
    assert!(node.fake.changes().contains(&"StopContainer 2".to_owned()));
}

#[tokio::test]
async fn piped_input_reaches_the_console_and_its_answer_is_printed() {
    let node = with_pod(Scenario::default()).await;
    let console = UnixListener::bind(node.path("console.sock")).unwrap();
    let mut command = command(
        &node.path("vmlet.sock"),
        node.dir.path(),
        &["node", "console", "hello"],
    );
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let (mut guest, _) = soon(console.accept()).await.unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"uptime\n").await.unwrap();
    let mut received = [0; 7];
    soon(guest.read_exact(&mut received)).await.unwrap();
    assert_eq!(&received, b"uptime\n");
    guest.write_all(b"up 5 days\r\n").await.unwrap();
    drop(stdin);
    let output = finished(child).await;
    assert_eq!(
        (output.code, output.out.as_str()),
        (Some(0), "up 5 days\r\n"),
        "{output:?}"
    );
}

#[tokio::test]
async fn a_terminal_session_passes_ctrl_c_ends_by_the_escape_key_and_restores_the_terminal() {
    let node = with_pod(Scenario::default()).await;
    let console = UnixListener::bind(node.path("console.sock")).unwrap();
    let pty = openpty(None, None).unwrap();
    let is_cooked = || {
        let flags = tcgetattr(&pty.slave).unwrap().local_flags;
        flags.contains(LocalFlags::ICANON | LocalFlags::ISIG | LocalFlags::ECHO)
    };
    let mut command = command(
        &node.path("vmlet.sock"),
        node.dir.path(),
        &["node", "console", "hello"],
    );
    let mut child = command
        .stdin(pty.slave.try_clone().unwrap())
        .spawn()
        .unwrap();
    let (mut guest, _) = soon(console.accept()).await.unwrap();
    // The greeting comes when the terminal is raw.
    let mut greeting = [0; 34];
    soon(child.stderr.as_mut().unwrap().read_exact(&mut greeting))
        .await
        .unwrap();
    assert!(!is_cooked());
    let mut keyboard = std::fs::File::from(pty.master);
    std::io::Write::write_all(&mut keyboard, b"ls\r\x03\x1d").unwrap();
    let mut received = Vec::new();
    soon(guest.read_to_end(&mut received)).await.unwrap();
    let output = finished(child).await;
    assert_eq!(
        (output.code, received.as_slice()),
        (Some(0), b"ls\r\x03".as_slice()),
        "{output:?}"
    );
    assert!(is_cooked());
}

#[tokio::test]
async fn the_console_of_a_stopped_vm_is_refused() {
    let node = with_pod(Scenario {
        ends_with: Some(0),
        ..Default::default()
    })
    .await;
    let output = node.ctl(&["node", "console", "hello"]).await;
    assert_eq!(output.code, Some(1));
    assert!(
        output
            .err
            .contains("the VM of pod hello is not running (it is Exited)"),
        "{}",
        output.err
    );
}

#[tokio::test]
async fn without_a_daemon_every_command_names_the_socket_and_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("pod.yaml"), MANIFEST).unwrap();
    let socket = dir.path().join("absent.sock");
    for args in [
        vec!["ps"],
        vec!["node", "stop", "x"],
        vec!["run", "pod.yaml"],
    ] {
        let output = finished(command(&socket, dir.path(), &args).spawn().unwrap()).await;
        assert_eq!(output.code, Some(1), "{args:?}");
        let expected = format!("error: no daemon at {}", socket.display());
        assert!(output.err.starts_with(&expected), "{}", output.err);
        assert!(
            output
                .err
                .contains("start the daemon (systemctl start vmlet)"),
            "{}",
            output.err
        );
    }
    let output = finished(
        command(&socket, dir.path(), &["doctor", "--json"])
            .spawn()
            .unwrap(),
    )
    .await;
    let report: serde_json::Value = serde_json::from_str(&output.out).unwrap();
    let first = &report["findings"][0];
    assert_eq!((output.code, &first["check"]), (Some(1), &"daemon".into()));
    assert_eq!(
        (&first["level"], &report["passed"]),
        (&"fail".into(), &false.into())
    );
}

#[tokio::test]
async fn the_doctor_calls_the_daemon() {
    let node = Node::start(Scenario::default());
    let output = node.ctl(&["doctor"]).await;
    assert!(
        output.out.starts_with("ok    daemon       fake 1.2.3\n"),
        "{}",
        output.out
    );
    assert!(output.out.contains("a probe failed"), "{}", output.out);
}
