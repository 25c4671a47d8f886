//! The program as systemd runs it.
//!
//! Invariant: its exit code shows why it ended; a kill at any time costs nothing but a restart.
//! Failure: the assertion shows what it printed.

use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::environment::{FANOUT, TestEnvironment, eventually};

fn command(env: &TestEnvironment, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vmlet-criproxy"));
    command.arg("--config").arg(&env.file).args(arguments);
    command
}

fn run(env: &TestEnvironment, arguments: &[&str]) -> Output {
    command(env, arguments).output().unwrap()
}

/// The program; killed when the test fails.
struct Program(Child);

impl Program {
    fn start(env: &TestEnvironment) -> Self {
        let mut command = command(env, &["serve"]);
        Self(command.stderr(Stdio::null()).spawn().unwrap())
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.0.id()).unwrap());
        kill(pid, signal).unwrap();
    }

    async fn ended(&mut self) -> Option<i32> {
        let mut code = None;
        eventually("the program to end", async || {
            let ended = self.0.try_wait().unwrap();
            code = ended.map(|status| status.code());
            code.is_some()
        })
        .await;
        code.flatten()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn a_killed_program_is_back_at_once_and_knows_everything() {
    let mut env = TestEnvironment::new();
    let mut first = Program::start(&env);
    let mut cri = env.connect().await;
    env.met().await;
    let vm = cri.run("vmlet", "").await.unwrap();
    assert_eq!(cri.sandboxes().await.unwrap(), std::slice::from_ref(&vm));
    let list = env.config.state_dir.join("vmlet/sandboxes.list");
    // Before that the proxy would know that it does not know, and lists would fail.
    eventually("the list to be written", async || {
        let bytes = std::fs::read(&list).unwrap_or_default();
        bytes.windows(vm.len()).any(|part| part == vm.as_bytes())
    })
    .await;
    first.signal(Signal::SIGKILL);
    first.ended().await;
    env.secondary.kill();
    let started = Instant::now();
    let mut second = Program::start(&env);
    let mut cri = env.connect().await;
    assert_eq!(cri.sandboxes().await.unwrap(), [vm]);
    assert!(started.elapsed() < FANOUT, "{:?}", started.elapsed());
    second.signal(Signal::SIGTERM);
    assert_eq!(second.ended().await, Some(0));
    assert!(!env.config.listen.exists());
}

#[tokio::test]
async fn exit_codes_distinguish_configuration_from_runtime_errors() {
    let mut env = TestEnvironment::new();
    let well = run(&env, &["check"]);
    assert_eq!(well.status.code(), Some(0), "{well:?}");
    env.secondary.kill();
    let away = run(&env, &["check"]);
    assert_eq!(away.status.code(), Some(1), "{away:?}");
    let text = std::fs::read_to_string(&env.file).unwrap();
    std::fs::write(&env.file, format!("colour = 1\n{text}")).unwrap();
    let unusable = run(&env, &["serve"]);
    assert_eq!(unusable.status.code(), Some(64), "{unusable:?}");
    let reported = String::from_utf8_lossy(&unusable.stderr).into_owned();
    assert!(
        reported.contains("colour") && reported.lines().count() == 1,
        "{reported}"
    );
}

#[tokio::test]
async fn metrics_are_served_on_loopback() {
    let mut env = TestEnvironment::new();
    // An address of this process alone, where a port that was free a moment ago still is.
    let [.., a, b] = std::process::id().to_be_bytes();
    let address = TcpListener::bind((Ipv4Addr::new(127, 77, a, b), 0))
        .unwrap()
        .local_addr()
        .unwrap();
    env.config.metrics = Some(criproxy::config::Metrics { listen: address });
    let mut cri = env.start_proxy().await;
    cri.run("vmlet", "").await.unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        .await
        .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    let line =
        r#"vmlet_criproxy_requests_total{backend="vmlet",method="RunPodSandbox",code="OK"} 1"#;
    assert!(text.contains(line), "{text}");
}
