//! A node in a namespace of its own, with the real program and the real plugins.
//!
//! Invariant: everything the program touches is below one temporary directory or inside the node's
//! namespace; the program is stopped by its process handle.
//! Failure: every wait has a deadline and panics with the program's log.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fdpass::AsyncConnection;
use netns::Namespace;
use serde_json::{Value, json};
use tapmanager::client::Client;
use tapmanager::wire::{
    AddRequest, HandoffReply, HandoffRequest, MAX_MESSAGE, PROTOCOL_VERSION, Permit, StartRequest,
};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::Notify;

use crate::guest::{Scratch, run, write_program};

pub(crate) const DEADLINE: Duration = Duration::from_secs(120);

/// A node.
pub(crate) struct Node {
    pub(crate) scratch: Scratch,
    pub(crate) ns: Namespace,
    child: Option<Child>,
    log: Arc<Log>,
    flags: Vec<String>,
    log_level: &'static str,
    path: Option<std::ffi::OsString>,
}

#[derive(Default)]
struct Log {
    lines: Mutex<Vec<String>>,
    grown: Notify,
}

/// A chain of real plugins: bridge with host-local addresses and masquerading, and portmap.
pub(crate) fn real_plugins(node: &Path) -> Value {
    json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [
            {
                "type": "bridge", "bridge": "cbr0", "isDefaultGateway": true, "ipMasq": true,
                "mtu": 1400,
                "ipam": {
                    "type": "host-local", "dataDir": node.join("leases"),
                    "ranges": [[{"subnet": "10.88.7.0/24"}]],
                    "routes": [{"dst": "10.99.0.0/16", "gw": "10.88.7.1"}]
                },
                "dns": {"nameservers": ["10.96.0.10"], "search": ["svc.cluster.local", "cluster.local"]}
            },
            {"type": "portmap", "capabilities": {"portMappings": true}}
        ]
    })
}

/// What a pod requests.
pub(crate) fn pod(id: &str) -> AddRequest {
    AddRequest {
        id: id.to_owned(),
        pod_name: format!("pod-{id}"),
        pod_namespace: "default".to_owned(),
        pod_uid: format!("uid-{id}"),
        hostname: format!("host-{id}"),
        ..AddRequest::default()
    }
}

impl Node {
    /// A node with the real plugins and the program running.
    pub(crate) async fn start() -> Self {
        Self::start_with_log("debug").await
    }

    /// The same, with another log level than that of tests.
    pub(crate) async fn start_with_log(level: &'static str) -> Self {
        let mut node = Self::new().await;
        node.configure(&real_plugins(node.scratch.path())).await;
        node.log_level = level;
        node.launch().await;
        node
    }

    /// The program's process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id().unwrap()
    }

    /// As [`Self::start`], with a file of its own that states which boot this is.
    pub(crate) async fn start_in_boot(id: &str) -> Self {
        let mut node = Self::new().await;
        node.configure(&real_plugins(node.scratch.path())).await;
        node.boot(id);
        let file = node.scratch.path().join("boot");
        node.flag("--boot-id-file", file.to_str().unwrap());
        node.launch().await;
        node
    }

    /// From now on this is another boot.
    pub(crate) fn boot(&self, id: &str) {
        std::fs::write(self.scratch.path().join("boot"), id).unwrap();
    }

    /// A node without network configuration and with the program not running.
    pub(crate) async fn new() -> Self {
        let scratch = Scratch::new();
        for dir in ["conf", "bin", "cgroup", "fault"] {
            tokio::fs::create_dir(scratch.path().join(dir))
                .await
                .unwrap();
        }
        let ns = Namespace::create(scratch.path(), "node").await.unwrap();
        // Addresses that are being probed for duplicates do not answer for two seconds.
        run(
            &ns,
            "ip link set lo up; echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad",
        )
        .await;
        Self {
            scratch,
            ns,
            child: None,
            log: Arc::default(),
            flags: Vec::new(),
            log_level: "debug",
            path: None,
        }
    }

    /// Later launches look for programs in this directory of the node first.
    pub(crate) fn programs(&mut self, dir: &str) {
        let first = self.scratch.path().join(dir);
        let usual = std::env::var_os("PATH").unwrap_or_default();
        let all = std::iter::once(first).chain(std::env::split_paths(&usual));
        self.path = Some(std::env::join_paths(all).unwrap());
    }

    /// Adds a flag for later launches.
    pub(crate) fn flag(&mut self, name: &str, value: &str) {
        self.flags.extend([name.to_owned(), value.to_owned()]);
    }

    /// Makes `network` the node's only one.
    pub(crate) async fn configure(&self, network: &Value) {
        let file = self.scratch.path().join("conf/10-pods.conflist");
        tokio::fs::write(file, network.to_string()).await.unwrap();
    }

    /// Installs a plugin that is a shell script.
    pub(crate) async fn plugin(&self, name: &str, script: &str) {
        let file = self.scratch.path().join("bin").join(name);
        write_program(&self.ns, &file, &format!("#!/bin/sh\n{script}\n")).await;
    }

    /// Starts the program and waits until it serves.
    pub(crate) async fn launch(&mut self) {
        let at = |name: &str| self.scratch.path().join(name);
        let mut command = Command::new(env!("CARGO_BIN_EXE_vmlet-tapmanager"));
        for (flag, name) in [
            ("--control-socket", "control.sock"),
            ("--handoff-socket", "handoff.sock"),
            ("--state-dir", "journal"),
            ("--netns-dir", "pods"),
            ("--cni-conf-dir", "conf"),
            ("--cni-bin-dir", "bin"),
            ("--cni-cache-dir", "cache"),
            ("--cgroup-root", "cgroup"),
            ("--console-dir", "console"),
        ] {
            command.arg(flag).arg(at(name));
        }
        command
            .args([
                "--cni-bin-dir",
                "/usr/lib/cni",
                "--cni-bin-dir",
                "/opt/cni/bin",
            ])
            .args(["--qemu-user", "nobody", "--log-level", self.log_level])
            .args(&self.flags)
            .env("VMLET_FAULT_DIR", at("fault"))
            .envs(self.path.as_ref().map(|path| ("PATH", path)))
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let runtime = tokio::runtime::Handle::current();
        let spawn = move || {
            let _guard = runtime.enter();
            command.spawn()
        };
        let mut child = self.ns.run(spawn).await.unwrap().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        self.log = Arc::default();
        let log = Arc::clone(&self.log);
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                log.lines.lock().unwrap().push(line);
                log.grown.notify_waiters();
            }
        });
        self.child = Some(child);
        self.logged("tapmanager started").await;
    }

    /// Waits for a line of the log that holds `text`.
    pub(crate) async fn logged(&self, text: &str) -> String {
        self.logged_times(text, 1).await
    }

    /// Waits until `times` lines of the log hold `text`; returns the last of them.
    pub(crate) async fn logged_times(&self, text: &str, times: usize) -> String {
        let wait = async {
            loop {
                let grown = self.log.grown.notified();
                let found = self
                    .log
                    .lines
                    .lock()
                    .unwrap()
                    .iter()
                    .filter(|l| l.contains(text))
                    .nth(times - 1)
                    .cloned();
                match found {
                    Some(line) => return line,
                    None => grown.await,
                }
            }
        };
        match tokio::time::timeout(DEADLINE, wait).await {
            Ok(line) => line,
            Err(_) => panic!("no {text:?} in the log:\n{}", self.log()),
        }
    }

    /// The log so far.
    pub(crate) fn log(&self) -> String {
        self.log.lines.lock().unwrap().join("\n")
    }

    /// Ends the program as a crash would.
    pub(crate) async fn kill(&mut self) {
        self.child.as_mut().unwrap().start_kill().unwrap();
        self.ended().await;
    }

    /// Requests the program to end.
    pub(crate) async fn terminate(&mut self) -> ExitStatus {
        let pid = i32::try_from(self.pid()).unwrap();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::SIGTERM).unwrap();
        self.ended().await
    }

    /// Waits until the program has ended.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        let mut child = self.child.take().unwrap();
        let wait = tokio::time::timeout(DEADLINE, child.wait());
        wait.await
            .unwrap_or_else(|_| panic!("still running:\n{}", self.log()))
            .unwrap()
    }

    /// Makes the program die at a point, once.
    pub(crate) fn arm(&self, point: &str) {
        std::fs::write(self.scratch.path().join("fault").join(point), "").unwrap();
    }

    /// Whether the program ended at the point.
    pub(crate) fn has_fired(&self, point: &str) -> bool {
        !self.scratch.path().join("fault").join(point).exists()
    }

    /// A client with deadlines that are long for this machine.
    pub(crate) fn client(&self) -> Client {
        Client::new(self.control(), DEADLINE).with_plugin_deadline(DEADLINE)
    }

    /// The daemon's socket.
    pub(crate) fn control(&self) -> PathBuf {
        self.scratch.path().join("control.sock")
    }

    /// The socket of vmwrapper.
    pub(crate) fn handoff(&self) -> PathBuf {
        self.scratch.path().join("handoff.sock")
    }

    /// Prepares a start without a cgroup.
    pub(crate) async fn permit(&self, id: &str) -> Permit {
        let start = StartRequest {
            memory_bytes: 0,
            uid: None,
            id: id.to_owned(),
            cgroup_parent: String::new(),
        };
        self.client().prepare_start(start).await.unwrap()
    }

    /// The token of such a start.
    pub(crate) async fn token(&self, id: &str) -> String {
        self.permit(id).await.token
    }

    /// Does what vmwrapper does.
    pub(crate) async fn redeem(&self, token: &str) -> (HandoffReply, Vec<OwnedFd>) {
        self.redeem_at(&self.handoff(), token).await
    }

    /// The same at the socket of a start.
    pub(crate) async fn redeem_at(
        &self,
        socket: &Path,
        token: &str,
    ) -> (HandoffReply, Vec<OwnedFd>) {
        let request = HandoffRequest {
            version: PROTOCOL_VERSION,
            token: token.to_owned(),
        };
        let message = exchange(socket, &serde_json::to_vec(&request).unwrap()).await;
        let message = message.expect("the connection was closed");
        (serde_json::from_slice(&message.bytes).unwrap(), message.fds)
    }

    /// Waits until nothing is left. For namespaces that went before their network did: the kernel
    /// takes them apart in its own time, and the node's end of the pair with them.
    pub(crate) async fn becomes_clean(&self) {
        let clean = async { while !self.leftovers().await.is_empty() {} };
        if tokio::time::timeout(DEADLINE, clean).await.is_err() {
            panic!("{:?}\n{}", self.leftovers().await, self.log());
        }
    }

    /// What of sandboxes is left on the node, as text; empty when there is none.
    pub(crate) async fn leftovers(&self) -> Vec<String> {
        let mut left: Vec<String> = Vec::new();
        for dir in ["journal", "pods", "cache", "leases/pods"] {
            let mut dirs = vec![self.scratch.path().join(dir)];
            while let Some(dir) = dirs.pop() {
                for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
                    let name = entry.file_name().to_string_lossy().into_owned();
                    if entry.path().is_dir() {
                        dirs.push(entry.path());
                    } else if name != "lock" && !name.starts_with("last_reserved_ip") {
                        left.push(entry.path().display().to_string());
                    }
                }
            }
        }
        let pods = self.scratch.path().join("pods");
        let mounts = self
            .scratch
            .mounts()
            .into_iter()
            .filter(|mount| mount.starts_with(&pods));
        left.extend(mounts.map(|mount| format!("mount {}", mount.display())));
        let links = run(&self.ns, "ip -o link show type veth").await;
        left.extend(links.lines().map(str::to_owned));
        let rules = run(&self.ns, "iptables -w 5 -t nat -S || true").await;
        let per_pod =
            |rule: &&str| rule.contains("name: \"pods\" id:") || rule.contains("dnat name");
        left.extend(rules.lines().filter(per_pod).map(str::to_owned));
        left
    }
}

/// Sends one message on a connection of its own and returns the answer, if there is one.
pub(crate) async fn exchange(socket: &Path, bytes: &[u8]) -> Option<fdpass::Message> {
    let connection = AsyncConnection::connect(socket).unwrap();
    // The peer may hang up before it has read anything; then there is no answer either.
    let _ = connection.send(bytes, &[]).await;
    let answer = tokio::time::timeout(DEADLINE, connection.recv(MAX_MESSAGE)).await;
    answer
        .expect("neither an answer nor the end")
        .unwrap_or(None)
}
