//! Puts the services of a node together, and again as after a restart of the daemon.
//!
//! Invariant: the services are joined as `app.rs` joins them, with the same state after a restart.
//! Failure: a panic.

use std::path::Path;
use std::sync::Arc;

use libvirt::{FakeHypervisor, Hypervisor};
use tempfile::TempDir;
use tokio_util::task::AbortOnDropHandle;

use super::web::FakeWeb;
use super::{Containers, FakeNetwork, Node, Sandboxes, settings};
use crate::block::Blocks;
use crate::disk::Disks;
use crate::disk::qemu_img::{Budget, QemuImg};
use crate::images::{self, Images};
use crate::locks::Locks;
use crate::metadata::{Db, Table};
use crate::space::Space;
use crate::tasks::Tasks;
use crate::vm;

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

    pub(super) async fn assemble(
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
        let mut settings = settings::for_scratch(scratch.path());
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
