//! What every hypervisor does, the fake as well as the real one: the same tests on both.
//!
//! Each step is a function of a [`Rig`], so that the fake cannot be kinder than libvirt.
//!
//! Invariant: a guest sits in the firmware; it reads no disk, and ignores the power button.
//! Failure: the step.

mod files;
mod life;

use std::path::{Path, PathBuf};
use std::time::Duration;

use libvirt::harness::Libvirtd;
use libvirt::{Event, FakeHypervisor, Hypervisor, Libvirt, Settings};
use tempfile::TempDir;
use tokio::sync::broadcast::Receiver;
use uuid::Uuid;

use super::switch;

/// The machine here may reap a dead QEMU only every two seconds.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A hypervisor, and a directory for the files of its machines.
struct Rig<H> {
    hypervisor: H,
    folder: PathBuf,
    create: fn(&Path, Option<&Path>),
    /// Kept as long as the rig.
    _of: Box<dyn std::any::Any + Send + Sync>,
}

impl Rig<FakeHypervisor> {
    fn fake() -> Self {
        let folder = TempDir::new().unwrap();
        Self {
            hypervisor: FakeHypervisor::default().guest_ignores_shutdown(),
            folder: folder.path().to_owned(),
            create: |file, _| std::fs::write(file, "").unwrap(),
            _of: Box::new(folder),
        }
    }
}

impl Rig<Libvirt> {
    async fn real() -> Self {
        let libvirtd = Libvirtd::start().unwrap();
        let hypervisor = libvirtd.connect(Settings::default()).await.unwrap();
        let folder = switch::disks(&libvirtd);
        Self {
            hypervisor,
            folder,
            create: switch::create,
            _of: Box::new(libvirtd),
        }
    }
}

impl<H: Hypervisor> Rig<H> {
    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The XML of the machine. Its first disk has two files.
    fn xml(&self, id: Uuid) -> String {
        switch::xml(id, &self.folder, &[self.file("base.qcow2")])
    }

    /// A machine that is defined, and its disk.
    async fn defined(&self) -> Uuid {
        let id = Uuid::new_v4();
        let base = self.file("base.qcow2");
        (self.create)(&base, None);
        switch::allow(&base, 0o644);
        (self.create)(&self.file("root.qcow2"), Some(&base));
        self.hypervisor.define(self.xml(id)).await.unwrap();
        id
    }

    async fn running(&self) -> Uuid {
        let id = self.defined().await;
        let mut events = self.hypervisor.events();
        self.hypervisor.start(id).await.unwrap();
        // It comes by another connection than the answer, and so perhaps later.
        while next(&mut events).await != Event::Started(id) {}
        id
    }

    async fn remove(&self, id: Uuid) {
        self.hypervisor.destroy(id).await.unwrap();
        self.hypervisor.undefine(id).await.unwrap();
    }
}

/// The next event; that vCPUs begin to run comes with each start, before or after it.
async fn next(events: &mut Receiver<Event>) -> Event {
    loop {
        let event = tokio::time::timeout(TIMEOUT, events.recv()).await;
        let event = event.expect("an event in time").expect("an open channel");
        if !matches!(event, Event::Power(_)) {
            return event;
        }
    }
}

async fn all<H: Hypervisor>(rig: Rig<H>) {
    life::begins_and_ends(&rig).await;
    life::has_one_name(&rig).await;
    life::is_paused(&rig).await;
    life::is_saved_and_restored(&rig).await;
    files::are_switched(&rig).await;
    files::are_pulled(&rig).await;
}

#[tokio::test]
async fn the_fake_keeps_the_contract() {
    Box::pin(all(Rig::fake())).await;
}

#[tokio::test]
#[ignore = "needs root"]
async fn libvirt_keeps_the_contract() {
    Box::pin(all(Rig::real().await)).await;
}
