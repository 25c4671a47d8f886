//! A node for the tests of services: real rows, images, disks and consoles; a hypervisor and
//! networks that only keep state.
//!
//! Invariant: everything is in a scratch directory that is removed with the node; libvirt's events
//! arrive as they do in the daemon.
//! Failure: waits have a deadline and panic after it.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use libvirt::{FakeHypervisor, Hypervisor, State};
use podspec::{ContainerId, SandboxId};
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;

use crate::disk::Disks;
use crate::images::Images;
use crate::locks::Locks;
use crate::metadata::{Db, Table};
use crate::platform::Platform;
use crate::pods;
use crate::sandbox::{self, Sandbox};
use crate::vm::{self, Container};

mod assembly;
mod mounted;
mod network;
mod power_cut;
mod requests;
mod settings;
mod state;
mod web;

pub(crate) use mounted::Mounted;
pub(crate) use network::FakeNetwork;
pub(crate) use power_cut::PowerCut;
use web::FakeWeb;

/// A hypervisor and networks that only keep state.
#[derive(Debug)]
pub(crate) enum Fake {}

impl Platform for Fake {
    type Hypervisor = FakeHypervisor;
    type Network = FakeNetwork;
}

pub(crate) type Containers = vm::Containers<Fake>;
pub(crate) type Sandboxes = pods::Sandboxes<Fake>;

/// Longer than anything that is waited for takes.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(90);

/// The places of an agent whose sessions have no cgroups.
pub(crate) fn no_places() -> ::guest::Places {
    ::guest::Places::below(Path::new("/nonexistent"), None).unwrap()
}

pub(crate) struct Node {
    pub(crate) hypervisor: FakeHypervisor,
    pub(crate) network: FakeNetwork,
    pub(crate) images: Arc<Images>,
    pub(crate) containers: Arc<Containers>,
    pub(crate) disks: Arc<Disks>,
    pub(crate) sandboxes: Arc<Sandboxes>,
    pub(crate) rows: Arc<Table<Container>>,
    pub(crate) sandbox_rows: Arc<Table<Sandbox>>,
    pub(crate) locks: Locks,
    pub(crate) db: Db,
    events: Option<AbortOnDropHandle<()>>,
    web: FakeWeb,
    scratch: TempDir,
    /// What differs from the usual settings of machines.
    setting: fn(&mut vm::Settings),
}

impl Node {
    /// Nothing is written to the database until what this returns is dropped.
    pub(crate) async fn hold_writes(&self) -> mpsc::Sender<()> {
        let (release, held) = mpsc::channel();
        let (holding, begun) = oneshot::channel();
        let db = self.db.clone();
        let hold = move |_: &rusqlite::Transaction<'_>| {
            holding.send(()).unwrap();
            // An error is what it waits for: the other end no longer exists.
            let _ = held.recv();
            Ok(())
        };
        tokio::spawn(async move { db.write(hold).await });
        begun.await.unwrap();
        release
    }

    /// The database fails as on a read-only file system, or no longer.
    pub(crate) async fn refuse_writes(&self, refuses: bool) {
        let set = move |t: &rusqlite::Transaction<'_>| t.pragma_update(None, "query_only", refuses);
        self.db.write(set).await.unwrap();
    }

    pub(crate) fn row(&self, id: &ContainerId) -> Arc<Container> {
        self.rows.get(id).expect("a row")
    }

    pub(crate) fn phase(&self, id: &ContainerId) -> vm::state::Phase {
        self.row(id).phase
    }

    /// Exit code and reason.
    pub(crate) fn exit(&self, id: &ContainerId) -> (i32, String) {
        let exit = self.row(id).exit.clone().expect("an exit");
        (exit.code, exit.reason)
    }

    /// Makes a row what no request would make of it.
    pub(crate) async fn force(&self, id: &ContainerId, change: impl FnOnce(&mut Container) + Send) {
        let phase = self.phase(id);
        self.rows.change(id, phase, change).await.unwrap();
    }

    pub(crate) async fn force_sandbox(&self, id: &SandboxId, phase: sandbox::state::Phase) {
        let now = self.sandbox_rows.get(id).unwrap().phase;
        let change = |row: &mut Sandbox| row.phase = phase;
        self.sandbox_rows.change(id, now, change).await.unwrap();
    }

    /// Waits until `reached` holds for the row.
    pub(crate) async fn until(&self, id: &ContainerId, reached: impl Fn(&Container) -> bool) {
        let mut changes = self.rows.changes();
        let waiting = async {
            while !reached(&self.row(id)) {
                changes.changed().await.unwrap();
            }
        };
        let in_time = tokio::time::timeout(TIMEOUT, waiting).await;
        in_time.unwrap_or_else(|_| panic!("not in time: {:?}", self.row(id)));
    }

    /// The guest prints something.
    pub(crate) fn prints(&self, id: &ContainerId, text: &str) {
        let mut console = OpenOptions::new();
        let console = console
            .append(true)
            .open(self.containers.paths().console_file(id));
        console.unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// Waits until the log of a container has this text.
    pub(crate) async fn logged(&self, id: &ContainerId, text: &str) {
        let log = self.row(id).spec.log_path.clone();
        let waiting = async {
            while !std::fs::read_to_string(&log).is_ok_and(|log| log.contains(text)) {
                tokio::task::yield_now().await;
            }
        };
        let in_time = tokio::time::timeout(TIMEOUT, waiting).await;
        in_time.expect("the text is in the log");
    }

    pub(crate) async fn domain(&self, id: &ContainerId) -> Option<State> {
        let row = self.rows.get(id);
        let domain = row.map_or(id.domain(), |row| row.domain());
        self.hypervisor.state(domain).await.unwrap()
    }

    /// Puts a program in the place of the one that serves shares.
    pub(crate) fn install_virtiofsd(&self, program: &str) {
        let place = self.scratch.path().join("virtiofsd");
        std::os::unix::fs::symlink(program, place).unwrap();
    }

    /// What the daemon takes for the mount of cgroups.
    pub(crate) fn cgroup_root(&self) -> PathBuf {
        self.scratch.path().join("cgroup")
    }

    /// The disks that the budget of the node counts.
    pub(crate) async fn counted(&self) -> Vec<String> {
        let read = |t: &rusqlite::Transaction<'_>| {
            let mut all = t.prepare("SELECT key FROM root_disk_sizes")?;
            let all = all.query_map([], |row| row.get(0))?;
            all.collect()
        };
        self.db.write(read).await.unwrap()
    }

    /// Names of everything below the directories of disks, of consoles and of seeds.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let paths = self.containers.paths();
        let seeds = paths.seeds();
        let processes = paths.processes();
        [paths.pods(), paths.consoles(), seeds, processes]
            .iter()
            .flat_map(|directory| std::fs::read_dir(directory).unwrap())
            .map(|entry| entry.unwrap().path())
            .collect()
    }
}
