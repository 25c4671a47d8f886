//! Servers that end before their machines.
//!
//! Invariant: each server is a real process, which ends when its test says so; time passes only as
//! the test says.
//! Failure: waits have a deadline and panic after it.

use std::fs::{File, OpenOptions, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::mpsc;
use std::time::Instant;

use nix::sys::stat::Mode;

use super::*;
use crate::metrics::Census;
use crate::testkit::{Fake, Node, TIMEOUT};
use crate::vm::{ContainerConfig, Mount};

/// A program in the place of the one that serves shares. It ends with an error when it reads a line.
struct Program {
    scratch: tempfile::TempDir,
    line: File,
}

impl Program {
    fn new() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let pipe = scratch.path().join("pipe");
        nix::unistd::mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        let script = scratch.path().join("serve");
        let end = "echo 'no memory' >&2; exit 1";
        let text = format!("#!/bin/sh\nread -r line <{}\n{end}\n", pipe.display());
        std::fs::write(&script, text).unwrap();
        std::fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
        // Open for both, so that the line waits for its reader.
        let line = OpenOptions::new().read(true).write(true).open(pipe);
        let line = line.unwrap();
        Self { scratch, line }
    }

    fn ends(&self) {
        (&self.line).write_all(b"\n").unwrap();
    }

    /// A node with a running machine that has a share.
    async fn node(&self) -> (Node, ContainerId) {
        let node = Node::new().await;
        let script = self.scratch.path().join("serve");
        node.install_virtiofsd(script.to_str().unwrap());
        let mount = Mount {
            container_path: "/data".to_owned(),
            host_path: self.scratch.path().to_str().unwrap().to_owned(),
            ..Mount::default()
        };
        let config = ContainerConfig {
            mounts: vec![mount],
            ..node.machine(0)
        };
        let sandbox = node.ready().await;
        let id = node.containers.create(&sandbox, config).await.unwrap();
        node.containers.start(&id).await.unwrap();
        (node, id)
    }
}

/// What the guest has lost.
fn lost(node: &Node, id: &ContainerId) -> Vec<String> {
    node.containers.lost_shares(&node.row(id))
}

fn count(node: &Node) -> String {
    let text = node.containers.metrics().text(&Census::default());
    let mut lines = text.lines();
    let line = lines.find(|line| line.starts_with("vmlet_shares_lost_total"));
    line.expect("a metric").to_owned()
}

/// Lets time pass until a guest has lost a share.
async fn until_lost(node: &Node, id: &ContainerId) {
    // No time passes by itself while a thread is busy.
    let (release, held) = mpsc::channel::<()>();
    let busy = tokio::task::spawn_blocking(move || held.recv().unwrap_err());
    tokio::time::pause();
    let deadline = Instant::now() + TIMEOUT;
    while lost(node, id).is_empty() {
        assert!(Instant::now() < deadline, "nothing was lost");
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    tokio::time::resume();
    drop(release);
    busy.await.unwrap();
}

#[tokio::test]
async fn a_share_whose_server_ends_is_lost_until_the_end_of_the_machine() {
    let program = Program::new();
    let (node, id) = program.node().await;
    let mut changes = node.containers.share_changes();
    assert!(lost(&node, &id).is_empty());
    program.ends();
    until_lost(&node, &id).await;
    assert!(changes.has_changed().unwrap());
    changes.mark_unchanged();
    let reported = lost(&node, &id).join("; ");
    assert!(reported.contains("lost its directory /data"), "{reported}");
    assert!(
        reported.contains("has ended (exit status: 1: no memory), and"),
        "{reported}"
    );
    assert_eq!(count(&node), "vmlet_shares_lost_total 1");
    node.containers.stop(&id, Duration::ZERO).await.unwrap();
    node.containers.remove(&id).await.unwrap();
    assert!(changes.has_changed().unwrap());
    assert_eq!(node.containers.share_changes().borrow().to_owned(), 2);
}

#[tokio::test]
async fn a_server_of_an_earlier_daemon_is_watched() {
    let program = Program::new();
    let (node, id) = program.node().await;
    let node = node.restarted().await;
    for _ in 0..2 {
        node.containers.reconcile().await.unwrap();
    }
    assert!(lost(&node, &id).is_empty());
    program.ends();
    until_lost(&node, &id).await;
    assert_eq!(count(&node), "vmlet_shares_lost_total 1");
    let record = node.containers.paths().server_of_tag(&id, "vmlet-0");
    assert!(record.exists());
    node.containers.stop(&id, Duration::ZERO).await.unwrap();
    node.containers.remove(&id).await.unwrap();
    assert!(!record.exists());
}

#[tokio::test]
async fn a_server_that_ended_without_a_daemon_is_lost() {
    let program = Program::new();
    let (node, id) = program.node().await;
    program.ends();
    // It has ended for this daemon, too: the next one finds nothing but the record.
    until_lost(&node, &id).await;
    let node = node.restarted().await;
    assert!(lost(&node, &id).is_empty());
    node.containers.reconcile().await.unwrap();
    until_lost(&node, &id).await;
}

#[tokio::test]
async fn a_machine_that_ends_with_its_servers_has_lost_nothing() {
    let program = Program::new();
    let (node, id) = program.node().await;
    let row = node.row(&id);
    let server = node.containers.recorded_server(&row, &row.spec.shares[0]);
    let server = server.await.unwrap().unwrap();
    let watcher = Watcher::<Fake> {
        table: Arc::clone(&node.rows),
        hypervisor: Arc::new(node.hypervisor.clone()),
        metrics: Arc::clone(node.containers.metrics()),
        servers: Arc::clone(&node.containers.servers),
        id: id.clone(),
        share: row.spec.shares[0].clone(),
        server,
    };
    node.containers.stop(&id, Duration::ZERO).await.unwrap();
    tokio::time::pause();
    watcher.run(std::future::ready(Ok(()))).await;
    assert!(lost(&node, &id).is_empty());
    assert_eq!(count(&node), "vmlet_shares_lost_total 0");
    program.ends();
}

#[test]
fn only_the_server_that_is_watched_is_lost() {
    let servers = Servers::default();
    let id = ContainerId::generate();
    let server = |pid| Server { pid, started: 1 };
    assert!(servers.begin(&id, "a", server(1)));
    assert!(!servers.begin(&id, "a", server(1)), "it has a watcher");
    assert!(servers.begin(&id, "a", server(2)), "of the next start");
    assert!(!servers.lose(&id, "a", server(1)));
    assert!(servers.lose(&id, "a", server(2)));
    assert!(servers.is_lost(&id, "a") && !servers.is_lost(&id, "b"));
    assert!(!servers.begin(&id, "a", server(2)), "it is known");
    servers.forget(&id);
    assert!(!servers.is_known(&id, "a"));
    assert!(!servers.lose(&id, "a", server(2)));
    assert!(servers.begin(&id, "a", server(3)));
    servers.leave(&id, "a");
    assert!(!servers.is_known(&id, "a"));
}

#[test]
fn another_process_with_the_number_is_not_taken_for_the_server() {
    let pid = std::process::id();
    let started = Emulators::started_at(pid).unwrap();
    let found = |started| open(Server { pid, started }).unwrap();
    assert!(found(started).is_some());
    assert!(found(started + 1).is_none());
    assert!(open(Server { pid: 0, started }).unwrap().is_none());
}
