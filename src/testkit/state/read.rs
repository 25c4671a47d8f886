//! The start of this version on the state of other ones.
//!
//! Invariant: the fixture is copied before anything is opened.
//! Failure: the record or file that is not as it was written.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use libvirt::FakeHypervisor;
use podspec::{Id, Kind};

use super::*;
use crate::block::Held;
use crate::disk::Disk;
use crate::images::Format;
use crate::metadata::{Record, RecordStore, node};
use crate::node::Task;
use crate::testkit::web::FakeWeb;
use crate::testkit::{FakeNetwork, Node};
use crate::vm::state::Phase;

/// A node that starts on a copy of a version's state.
pub(super) async fn opened(version: &Path) -> Node {
    let scratch = tempfile::tempdir().unwrap();
    copy(version, scratch.path());
    let hypervisor = FakeHypervisor::default();
    let network = FakeNetwork::default();
    let web = FakeWeb::start().await;
    let space = crate::space::Space::default();
    Node::assemble(hypervisor, network, web, scratch, |_| {}, space).await
}

async fn records<R: Record>(node: &Node) -> Vec<R> {
    let all = RecordStore::<R>::load(node.db.clone()).await.unwrap().all();
    all.into_iter().map(Arc::unwrap_or_clone).collect()
}

fn by_id<T, K: Kind>(mut all: Vec<T>, id: impl Fn(&T) -> &Id<K>) -> Vec<T> {
    all.sort_by(|a, b| id(a).as_str().cmp(id(b).as_str()));
    all
}

#[tokio::test]
async fn a_start_on_the_state_of_another_version_finds_every_record_and_keeps_every_file() {
    for version in versions() {
        let mut node = opened(&version).await;
        let files: Vec<_> = tree(&version).into_iter().map(|(path, _)| path).collect();
        for start in ["first", "second"] {
            is_as_written(&node).await;
            let lost = |path: &&PathBuf| {
                let path = path.strip_prefix(&version).unwrap();
                !node.scratch.path().join(path).exists()
            };
            let lost: Vec<_> = files.iter().filter(lost).collect();
            assert!(lost.is_empty(), "{start} start: {lost:?}");
            node = node.restarted().await;
        }
    }
}

/// Has every record of the fixtures, with its values.
pub(super) async fn is_as_written(node: &Node) {
    let sandboxes_read: Vec<_> = node
        .sandbox_rows
        .all()
        .iter()
        .map(|row| (**row).clone())
        .collect();
    assert_eq!(sandboxes_read, by_id(sandboxes(), |row| &row.id));

    let mut read: Vec<_> = node.rows.all().iter().map(|row| (**row).clone()).collect();
    for row in &mut read {
        let kill_at = row.kill_at.take();
        assert_eq!(
            kill_at.is_some(),
            row.phase == Phase::Stopping,
            "{}",
            row.id
        );
        assert!(!row.held);
    }
    assert_eq!(read, by_id(containers(), |row| &row.id));

    assert_eq!(records::<Disk>(node).await, disks());
    assert_eq!(records::<Held>(node).await, devices());
    assert_eq!(records::<Task>(node).await, tasks());
    images_are_as_written(node);

    let mut sizes: BTreeMap<String, i64> = BTreeMap::new();
    sizes.extend(
        disks()
            .iter()
            .map(|disk| (format!("disks/{}", disk.vm), 1 << 20)),
    );
    let place = |row: &crate::sandbox::Sandbox| format!("pods/{}", &row.id.as_str()[..20]);
    sizes.extend(sandboxes().iter().map(|row| (place(row), 2 << 20)));
    assert_eq!(counted(node).await, sizes);

    let boot = node::boot(&node.db).await.unwrap();
    assert_eq!(
        boot.as_deref(),
        Some("0a1b2c3d-0000-4000-8000-000000000001")
    );
    let installation = node::installation(&node.db).await.unwrap();
    assert!(uuid::Uuid::try_parse(&installation).is_ok());
    let unreadable = node.db.unreadable();
    assert!(unreadable.len() >= 10, "{unreadable:?}");
    assert!(
        unreadable.values().all(|count| *count == 0),
        "{unreadable:?}"
    );
}

/// The disks that the budget of the node counts, with their sizes.
async fn counted(node: &Node) -> BTreeMap<String, i64> {
    let read = |t: &rusqlite::Transaction<'_>| {
        let size = "SELECT key, json_extract(row, '$.virtual_bytes') FROM root_disk_sizes";
        let mut all = t.prepare(size)?;
        let all = all.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        all.collect()
    };
    node.db.write(read).await.unwrap()
}

fn images_are_as_written(node: &Node) {
    let images = node.images.list();
    let names = |image: &crate::images::Image| [&image.tags[..], &image.digests].concat().join(" ");
    let all: Vec<_> = images.iter().map(names).collect();
    assert_eq!(images.len(), 3, "{all:?}");
    let disk = images
        .iter()
        .find(|image| image.digest.to_string() == DISK)
        .unwrap();
    assert_eq!(
        (disk.size, disk.virtual_size, disk.format),
        (4096, 4096, Format::Raw)
    );
    assert!(disk.tags[0].ends_with("/disk:latest"), "{all:?}");
    let registry = images
        .iter()
        .find(|image| image.user == "1000:1000")
        .unwrap();
    assert_eq!(
        (registry.virtual_size, registry.format),
        (1 << 20, Format::Qcow2)
    );
    assert_eq!(registry.tags, ["registry.example/machines/web:1"]);
    let mut owners = node.images.owners();
    owners.sort();
    let mut expected: Vec<_> = sandboxes().iter().map(|row| row.id.to_string()).collect();
    expected.extend(disks().iter().map(|disk| format!("vm-{}", disk.vm)));
    expected.sort();
    assert_eq!(owners, expected);
    for owner in &owners {
        assert_eq!(node.images.pinned(owner).unwrap().digest.to_string(), DISK);
    }
}

#[tokio::test]
async fn a_database_of_a_later_version_is_refused_before_anything_changes() {
    for version in versions() {
        let scratch = tempfile::tempdir().unwrap();
        copy(&version, scratch.path());
        let file = scratch.path().join("vmlet.db");
        let later = rusqlite::Connection::open(&file).unwrap();
        later.pragma_update(None, "user_version", 1000).unwrap();
        drop(later);
        let before = fs::read(&file).unwrap();
        let refused = crate::metadata::Db::open(&file).unwrap_err().to_string();
        assert!(
            refused.contains("schema 1000, and this one knows"),
            "{refused}"
        );
        assert!(refused.contains("start that version again"), "{refused}");
        let config = crate::config::Config {
            state_dir: scratch.path().to_str().unwrap().parse().unwrap(),
            ..crate::config::Config::default()
        };
        let error = crate::app::App::start(&config).await.unwrap_err();
        assert!(error.to_string().contains("schema 1000"), "{error}");
        assert_eq!(fs::read(&file).unwrap(), before);
        assert!(!scratch.path().join("lock").exists());
    }
}
