//! The real `vmletctl` against a small CRI runtime on a socket.
//!
//! Invariant: each test has a directory, a socket and a runtime of its own.
//! Failure: a wait that lasts longer than [`DEADLINE`] fails its test.

#![allow(
    clippy::unwrap_used,
    reason = "clippy excuses test functions, not their helpers"
)]

mod complete;
mod fake;
mod images;
mod inspect;
mod run;

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use fake::{Fake, Scenario, Server};

const DEADLINE: Duration = Duration::from_secs(120);

const MANIFEST: &str = "
apiVersion: v1
kind: Pod
metadata:
  name: hello
  labels: {app: web}
  annotations: {vmlet.dev/vcpu-count: '2'}
spec:
  runtimeClassName: vmlet
  terminationGracePeriodSeconds: 7
  containers:
  - name: vm
    image: vmlet.dev/hello
    ports: [{containerPort: 80, hostPort: 8080}]
    resources: {limits: {cpu: 1, memory: 128Mi}}
";

/// A runtime, and the files that a user would have.
struct Node {
    fake: Fake,
    server: Option<Server>,
    dir: TempDir,
}

/// What a finished command printed.
#[derive(Debug)]
struct Finished {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Node {
    fn start(mut scenario: Scenario) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("pod.yaml"), MANIFEST).unwrap();
        scenario.console = Some(dir.path().join("console.sock"));
        let fake = Fake::new(scenario);
        let server = Some(fake.serve(&dir.path().join("vmlet.sock")));
        Self { fake, server, dir }
    }

    /// The daemon ends and restarts with its state.
    fn restart(&mut self) {
        drop(self.server.take());
        std::fs::remove_file(self.path("vmlet.sock")).unwrap();
        self.fake.forget();
        self.server = Some(self.fake.serve(&self.path("vmlet.sock")));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn spawn(&self, args: &[&str]) -> Child {
        command(&self.path("vmlet.sock"), self.dir.path(), args)
            .spawn()
            .unwrap()
    }

    /// `run` with its logs in the node's directory.
    fn spawn_run(&self, flags: &[&str]) -> Child {
        self.spawn(&[&["run", "pod.yaml", "--log-dir", "logs"], flags].concat())
    }

    async fn ctl(&self, args: &[&str]) -> Finished {
        finished(self.spawn(args)).await
    }

    fn log_directories(&self) -> usize {
        std::fs::read_dir(self.path("logs")).unwrap().count()
    }
}

fn command(socket: &Path, dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vmletctl"));
    command
        .args(args)
        .env(
            "CONTAINER_RUNTIME_ENDPOINT",
            format!("unix://{}", socket.display()),
        )
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

async fn finished(child: Child) -> Finished {
    let Output {
        status,
        stdout,
        stderr,
    } = soon(child.wait_with_output()).await.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Finished {
        code: status.code(),
        out: text(stdout),
        err: text(stderr),
    }
}

async fn soon<T>(event: impl Future<Output = T>) -> T {
    timeout(DEADLINE, event).await.unwrap()
}
