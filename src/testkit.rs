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
use podspec::{ContainerId, SandboxId, VmUid};
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;

use crate::block::Blocks;
use crate::disk::qemu_img::{Budget, QemuImg};
use crate::disk::{DesiredDisk, Disks};
use crate::images::{self, Images};
use crate::locks::Locks;
use crate::metadata::{Db, Table};
use crate::platform::Platform;
use crate::pods;
use crate::sandbox::{self, PodMetadata, Sandbox, SandboxConfig};
use crate::space::Space;
use crate::tasks::Tasks;
use crate::vm::{self, Container, ContainerConfig, ContainerMetadata, ImageSpec};

mod mounted;
mod network;
mod power_cut;
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
    pub(crate) async fn new() -> Self {
        Self::with(FakeHypervisor::default()).await
    }

    /// A node with two images, `disk` and `other`.
    pub(crate) async fn with(hypervisor: FakeHypervisor) -> Self {
        Self::with_settings(hypervisor, |_| {}).await
    }

    /// The same with its files below a directory.
    pub(crate) async fn below(directory: &Path) -> Self {
        let scratch = tempfile::tempdir_in(directory).unwrap();
        Self::in_scratch(FakeHypervisor::default(), |_| {}, scratch).await
    }

    /// The same with other settings of machines.
    pub(crate) async fn with_settings(
        hypervisor: FakeHypervisor,
        setting: fn(&mut vm::Settings),
    ) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        Self::in_scratch(hypervisor, setting, scratch).await
    }

    async fn in_scratch(
        hypervisor: FakeHypervisor,
        setting: fn(&mut vm::Settings),
        scratch: TempDir,
    ) -> Self {
        let web = FakeWeb::start().await;
        let network = FakeNetwork::default();
        let space = Space::default();
        let node = Self::assemble(hypervisor, network, web, scratch, setting, space).await;
        for image in ["disk", "other"] {
            node.images.pull(&node.image(image)).await.unwrap();
        }
        node
    }

    async fn assemble(
        hypervisor: FakeHypervisor,
        network: FakeNetwork,
        web: FakeWeb,
        scratch: TempDir,
        setting: fn(&mut vm::Settings),
        space: Space,
    ) -> Self {
        let db = Db::open(&scratch.path().join("vmlet.db")).unwrap();
        let settings = images::Settings {
            protocol: images::Protocol::Http,
            proxy: images::Proxy::Direct,
            allowed_addresses: vec!["127.0.0.1/32".parse().unwrap()],
            raw_data: images::RawData::Allow,
            ..images::Settings::new(scratch.path().join("images"))
        };
        let images = Arc::new(Images::open(db.clone(), settings).await.unwrap());
        let root = Disks::directory_of(scratch.path());
        std::fs::create_dir_all(&root).unwrap();
        let uid = nix::unistd::geteuid();
        let gid = nix::unistd::getegid();
        let roots = vec![vm::Paths::new(scratch.path()).pods(), root.clone()];
        let budget = Budget::open(None, space, db.clone(), roots).await;
        let qemu_img = QemuImg::as_user(uid.as_raw(), gid.as_raw()).within(budget.unwrap());
        let disks = Disks::open(db.clone(), Arc::clone(&images), qemu_img, root).await;
        let disks = Arc::new(disks.unwrap());
        let root = Blocks::directory_of(scratch.path());
        std::fs::create_dir_all(&root).unwrap();
        let qemu_img = QemuImg::as_user(uid.as_raw(), gid.as_raw());
        let blocks = Blocks::open(db.clone(), root, qemu_img).await;
        let sandbox_rows = Arc::new(Table::load(db.clone()).await.unwrap());
        let rows = Arc::new(Table::load(db.clone()).await.unwrap());
        let locks = Locks::default();
        let tasks = Tasks::default();
        let parts = vm::Parts {
            table: Arc::clone(&rows),
            sandboxes: Arc::clone(&sandbox_rows),
            hypervisor: Arc::new(hypervisor.clone()),
            network: Arc::new(network.clone()),
            images: Arc::clone(&images),
            disks: Arc::clone(&disks),
            blocks: Arc::new(blocks.unwrap()),
            locks: locks.clone(),
            tasks: tasks.clone(),
            metrics: Arc::default(),
        };
        let mut settings = settings::of(scratch.path());
        setting(&mut settings);
        let containers = Arc::new(Containers::new(parts, settings));
        let paths = containers.paths();
        let seeds = paths.seeds();
        let processes = paths.processes();
        for directory in [paths.pods(), paths.consoles(), seeds, processes] {
            std::fs::create_dir_all(directory).unwrap();
        }
        let sandboxes = Sandboxes::new(
            Arc::clone(&sandbox_rows),
            Arc::new(network.clone()),
            Arc::clone(&containers),
            locks.clone(),
            tasks,
        );
        let events = listen(&hypervisor, &containers);
        Self {
            hypervisor,
            network,
            images,
            containers,
            disks,
            sandboxes: Arc::new(sandboxes),
            rows,
            sandbox_rows,
            locks,
            db,
            events: Some(events),
            web,
            scratch,
            setting,
        }
    }

    /// New services over the same state, as after a restart of the daemon.
    pub(crate) async fn restarted(self) -> Self {
        self.restarted_with(Space::default()).await
    }

    /// The same with other limits of the space for disks.
    pub(crate) async fn restarted_with(mut self, space: Space) -> Self {
        self.events = None;
        self.containers.release_consoles().await;
        self.images.settle().await;
        let Self {
            hypervisor,
            network,
            web,
            scratch,
            setting,
            ..
        } = self;
        Self::assemble(hypervisor, network, web, scratch, setting, space).await
    }

    /// Events do not arrive any more.
    pub(crate) fn lose_events(&mut self) {
        self.events = None;
    }

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

    pub(crate) fn image(&self, name: &str) -> String {
        format!("{}/{name}", self.web.authority)
    }

    /// Number of requests that the web server received.
    pub(crate) fn requests(&self) -> usize {
        self.web.requests()
    }

    pub(crate) fn pod(&self, name: &str) -> SandboxConfig {
        SandboxConfig {
            metadata: PodMetadata {
                name: name.to_owned(),
                uid: format!("uid of {name}"),
                namespace: "default".to_owned(),
                attempt: 0,
            },
            log_directory: self.scratch.path().join("logs").display().to_string(),
            ..SandboxConfig::default()
        }
    }

    pub(crate) fn machine(&self, attempt: u32) -> ContainerConfig {
        self.machine_of("disk", attempt)
    }

    pub(crate) fn machine_of(&self, image: &str, attempt: u32) -> ContainerConfig {
        ContainerConfig {
            metadata: ContainerMetadata {
                name: "vm".to_owned(),
                attempt,
            },
            image: ImageSpec {
                image: self.image(image),
                ..ImageSpec::default()
            },
            log_path: format!("vm/{attempt}.log"),
            ..ContainerConfig::default()
        }
    }

    pub(crate) async fn ready(&self) -> SandboxId {
        self.sandboxes.run(self.pod("pod")).await.unwrap()
    }

    /// A sandbox with annotations of ours.
    pub(crate) async fn annotated(&self, name: &str, all: &[(&str, &str)]) -> SandboxId {
        let mut pod = self.pod(name);
        let named = all
            .iter()
            .map(|(k, v)| (format!("vmlet.dev/{k}"), (*v).to_owned()));
        pod.annotations.extend(named);
        self.sandboxes.run(pod).await.unwrap()
    }

    /// The disk of a virtual machine.
    pub(crate) async fn make_disk(&self, vm: VmUid) {
        let desired = DesiredDisk {
            vm,
            name: "default/vm".to_owned(),
            image: self.image("disk"),
            url: None,
            size: 0,
            linked: true,
        };
        self.disks.make(&desired, |_| {}).await.unwrap();
    }

    pub(crate) async fn created(&self) -> ContainerId {
        let sandbox = self.ready().await;
        let created = self.containers.create(&sandbox, self.machine(0));
        created.await.unwrap()
    }

    pub(crate) async fn started(&self) -> ContainerId {
        let id = self.created().await;
        self.containers.start(&id).await.unwrap();
        id
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

fn listen(hypervisor: &FakeHypervisor, containers: &Arc<Containers>) -> AbortOnDropHandle<()> {
    let mut events = hypervisor.events();
    let containers = Arc::clone(containers);
    AbortOnDropHandle::new(tokio::spawn(async move {
        while let Ok(event) = events.recv().await {
            let containers = Arc::clone(&containers);
            tokio::spawn(async move { containers.on_event(event).await });
        }
    }))
}
