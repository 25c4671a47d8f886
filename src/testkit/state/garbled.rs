//! One row of each table that cannot be read: what it accounts for stays, and all others work.
//!
//! Invariant: the rows belong to machines that run, so that there is something to lose.
//! Failure: the case names the table and the column.

use std::time::Duration;

use libvirt::{Hypervisor, State as Power};
use podspec::{ContainerId, SandboxId};
use rstest::rstest;

use super::*;
use crate::block::Held;
use crate::disk::DesiredDisk;
use crate::metadata::RecordStore;
use crate::node::Task;
use crate::testkit::Node;
use crate::vm::state::Phase;

/// A node with three machines that run, one of them on a disk of its own.
struct Machines {
    node: Node,
    /// Its image is its own.
    one: (SandboxId, ContainerId),
    other: (SandboxId, ContainerId),
    on_disk: (SandboxId, ContainerId),
}

impl Machines {
    async fn new() -> Self {
        let node = Node::new().await;
        node.make_disk(vm(RUNNING_VM)).await;
        node.make_disk(vm(OFF_VM)).await;
        let one = start(&node, "one", "other", &[]).await;
        let other = start(&node, "other", "disk", &[]).await;
        let on_disk = start(&node, "on-disk", "disk", &[("vm-disk", RUNNING_VM)]).await;
        let records = RecordStore::<Task>::load(node.db.clone()).await.unwrap();
        for task in tasks() {
            records.insert(task).await.unwrap();
        }
        let records = RecordStore::<Held>::load(node.db.clone()).await.unwrap();
        let mut device = devices().remove(0);
        device.holder = one.1.clone();
        records.insert(device).await.unwrap();
        fs::write(node.scratch.path().join("devices/253-7"), "").unwrap();
        Self {
            node,
            one,
            other,
            on_disk,
        }
    }

    /// The daemon ends, the row becomes what `statement` makes of it, and the daemon starts.
    async fn garbled(self, statement: &str) -> Self {
        let file = self.node.scratch.path().join("vmlet.db");
        let database = rusqlite::Connection::open(file).unwrap();
        database.pragma_update(None, "foreign_keys", false).unwrap();
        let statement = statement
            .replace("ONE", self.one.0.as_str())
            .replace("MACHINE", self.one.1.as_str())
            .replace("VM", RUNNING_VM);
        let changed = database.execute(&statement, []).unwrap();
        assert_eq!(changed, 1, "{statement}");
        drop(database);
        let node = self.node.restarted().await;
        RecordStore::<Task>::load(node.db.clone()).await.unwrap();
        Self { node, ..self }
    }

    async fn reconcile(&self) {
        for _ in 0..2 {
            self.node.sandboxes.reconcile().await.unwrap();
            self.node.containers.reconcile().await.unwrap();
        }
    }

    /// All files but the positions of consoles.
    fn files(&self) -> Vec<PathBuf> {
        let all = tree(self.node.scratch.path())
            .into_iter()
            .map(|(path, _)| path);
        all.filter(|path| !path.to_string_lossy().contains(".pos"))
            .collect()
    }

    async fn running(&self) -> usize {
        let all = self.node.hypervisor.list().await.unwrap();
        all.iter()
            .filter(|domain| domain.state == Power::Active)
            .count()
    }

    /// The rows of a table, as text.
    async fn rows(&self, table: &'static str) -> Vec<String> {
        let read = move |t: &rusqlite::Transaction<'_>| {
            let mut all = t.prepare(&format!("SELECT * FROM {table} ORDER BY 1"))?;
            let columns = all.column_count();
            let text = |row: &rusqlite::Row<'_>| {
                let values = (0..columns).map(|at| Ok(format!("{:?}", row.get_ref(at)?)));
                values
                    .collect::<rusqlite::Result<Vec<_>>>()
                    .map(|all| all.join(" "))
            };
            all.query_map([], text)?.collect()
        };
        self.node.db.write(read).await.unwrap()
    }
}

async fn start(
    node: &Node,
    pod: &str,
    image: &str,
    annotations: &[(&str, &str)],
) -> (SandboxId, ContainerId) {
    let sandbox = node.annotated(pod, annotations).await;
    let id = node
        .containers
        .create(&sandbox, node.machine_of(image, 0))
        .await;
    let id = id.unwrap();
    node.containers.start(&id).await.unwrap();
    (sandbox, id)
}

#[rstest]
#[case::sandbox(
    "sandboxes",
    "UPDATE sandboxes SET config = '{\"metadata\": 7}' WHERE id = 'ONE'"
)]
#[case::sandbox_phase("sandboxes", "UPDATE sandboxes SET phase = 'asleep' WHERE id = 'ONE'")]
#[case::sandbox_network("sandboxes", "UPDATE sandboxes SET network = '{' WHERE id = 'ONE'")]
#[case::sandbox_id("sandboxes", "UPDATE sandboxes SET id = 'lost' WHERE id = 'ONE'")]
#[case::container("containers", "UPDATE containers SET spec = '{}' WHERE id = 'MACHINE'")]
#[case::container_text(
    "containers",
    "UPDATE containers SET spec = CAST(x'ff00' AS TEXT) WHERE id = 'MACHINE'"
)]
#[case::container_phase(
    "containers",
    "UPDATE containers SET phase = 'asleep' WHERE id = 'MACHINE'"
)]
#[case::container_exit("containers", "UPDATE containers SET exit = '7' WHERE id = 'MACHINE'")]
#[case::container_id("containers", "UPDATE containers SET id = 'lost' WHERE id = 'MACHINE'")]
#[case::disk(
    "vm_disks",
    "UPDATE vm_disks SET row = '{\"phase\": \"moved\"}' WHERE key = 'VM'"
)]
#[case::disk_of_another(
    "vm_disks",
    "UPDATE vm_disks SET key = '44444444-4444-4444-8444-444444444444' WHERE key = 'VM'"
)]
#[case::disk_uid("vm_disks", "UPDATE vm_disks SET key = 'lost' WHERE key = 'VM'")]
#[case::task(
    "node_tasks",
    "UPDATE node_tasks SET row = '{' WHERE key LIKE '00000003%'"
)]
#[case::task_uid(
    "node_tasks",
    "UPDATE node_tasks SET key = 'lost' WHERE key LIKE '00000003%'"
)]
#[case::device("block_devices", "UPDATE block_devices SET row = '{}'")]
#[case::device_number("block_devices", "UPDATE block_devices SET key = 'lost'")]
#[case::image(
    "images",
    "UPDATE images SET format = 'stone' WHERE digest = (SELECT digest FROM image_pins WHERE owner = 'ONE')"
)]
#[case::image_size(
    "images",
    "UPDATE images SET size = -1 WHERE digest = (SELECT digest FROM image_pins WHERE owner = 'ONE')"
)]
#[case::image_digest(
    "images",
    "UPDATE images SET digest = 'lost' WHERE digest = (SELECT digest FROM image_pins WHERE owner = 'ONE')"
)]
#[case::pin(
    "image_pins",
    "UPDATE image_pins SET digest = 'lost' WHERE owner = 'ONE'"
)]
#[case::name(
    "image_names",
    "UPDATE image_names SET digest = 'lost' WHERE name LIKE '%/other:latest'"
)]
#[case::source(
    "image_sources",
    "UPDATE image_sources SET digest = 'lost' WHERE digest = (SELECT digest FROM image_pins WHERE owner = 'ONE')"
)]
#[case::access(
    "image_access",
    "UPDATE image_access SET identity = 'lost' WHERE digest = (SELECT digest FROM image_pins WHERE owner = 'ONE')"
)]
#[tokio::test]
async fn a_row_that_cannot_be_read_stops_nothing_and_loses_nothing(
    #[case] table: &'static str,
    #[case] statement: &str,
) {
    let machines = Machines::new().await;
    let files = machines.files();
    let machines = machines.garbled(statement).await;
    let rows = machines.rows(table).await;
    let node = &machines.node;
    assert_eq!(node.db.unreadable()[table], 1);
    machines.reconcile().await;
    assert_eq!(machines.files(), files);
    assert_eq!(machines.running().await, 3);
    assert_eq!(node.network.ids().len(), 3);

    // The name that garbled rows had may be given up by its user; what stands on the image stays.
    node.images.remove(&node.image("other")).await.unwrap();
    assert_eq!(machines.files(), files);
    if !table.starts_with("image") {
        assert_eq!(machines.rows(table).await, rows);
    }

    node.containers
        .stop(&machines.other.1, Duration::ZERO)
        .await
        .unwrap();
    assert_eq!(node.phase(&machines.other.1), Phase::Exited);
    start(node, "new", "disk", &[]).await;
    machines.reconcile().await;
    assert_eq!(machines.running().await, 3);
}

/// The words of a refusal.
fn refusal<T>(result: Result<T, impl std::error::Error + 'static>) -> String {
    crate::one_line(&result.err().expect("it is refused"))
}

/// Requests that would end the machine, or put another in its place.
#[rstest]
#[case::sandbox("sandboxes", "UPDATE sandboxes SET config = '{}' WHERE id = 'ONE'")]
#[case::container("containers", "UPDATE containers SET spec = '{}' WHERE id = 'MACHINE'")]
#[tokio::test]
async fn a_pod_with_an_unreadable_record_is_left_alone(
    #[case] table: &str,
    #[case] statement: &str,
) {
    let machines = Machines::new().await.garbled(statement).await;
    let node = &machines.node;
    let (sandbox, container) = &machines.one;
    let mut refused = vec![
        refusal(node.containers.stop(container, Duration::ZERO).await),
        refusal(node.containers.remove(container).await),
        refusal(node.containers.start(container).await),
        refusal(node.containers.create(sandbox, node.machine(1)).await),
        refusal(node.sandboxes.stop(sandbox).await),
        refusal(node.sandboxes.remove(sandbox).await),
    ];
    let again = node.sandboxes.run(node.pod("one")).await;
    if table == "sandboxes" {
        refused.push(refusal(again));
        refused.push(refusal(node.sandboxes.find(sandbox.as_str())));
    } else {
        assert_eq!(again.unwrap(), *sandbox);
        refused.push(refusal(node.containers.find(container.as_str())));
    }
    for text in refused {
        assert!(
            text.contains(table) && text.contains("left as it is"),
            "{text}"
        );
    }
    assert_eq!(machines.running().await, 3);
}

#[tokio::test]
async fn a_disk_with_an_unreadable_record_is_neither_made_anew_nor_removed() {
    let statement = "UPDATE vm_disks SET row = '{}' WHERE key = 'VM'";
    let machines = Machines::new().await.garbled(statement).await;
    let node = &machines.node;
    let vm = vm(RUNNING_VM);
    let desired = DesiredDisk {
        vm,
        name: "default/vm".to_owned(),
        image: node.image("disk"),
        url: None,
        size: 0,
        linked: true,
    };
    let files = machines.files();
    let refused = [
        refusal(node.disks.delete(vm).await),
        refusal(node.disks.usable(vm, &[&node.image("disk")])),
        refusal(
            node.containers
                .stop(&machines.on_disk.1, Duration::ZERO)
                .await,
        ),
    ];
    for text in refused {
        assert!(
            text.contains("vm_disks") && text.contains(RUNNING_VM),
            "{text}"
        );
    }
    node.disks.make(&desired, |_| {}).await.unwrap_err();
    fs::remove_file(node.disks.file(vm)).unwrap();
    let text = refusal(node.disks.make(&desired, |_| {}).await);
    assert!(text.contains("vm_disks"), "{text}");
    node.disks.collect().await.unwrap();
    assert_eq!(machines.files().len(), files.len() - 1);
    node.disks.delete(super::vm(OFF_VM)).await.unwrap();
}

#[tokio::test]
async fn a_task_with_an_unreadable_record_is_not_begun_again() {
    let statement = "UPDATE node_tasks SET row = '{}' WHERE key LIKE '00000003%'";
    let machines = Machines::new().await.garbled(statement).await;
    let records = RecordStore::<Task>::load(machines.node.db.clone())
        .await
        .unwrap();
    let task = tasks().remove(2);
    let text = refusal(records.insert(task).await);
    assert!(
        text.contains("node_tasks") && text.contains("00000003"),
        "{text}"
    );
    assert_eq!(records.all().len(), tasks().len() - 1);
}

#[tokio::test]
async fn a_size_that_cannot_be_read_is_measured_again() {
    let statement = "UPDATE root_disk_sizes SET row = '{}' WHERE key = 'disks/VM'";
    let machines = Machines::new().await;
    let before = machines.rows("root_disk_sizes").await;
    let machines = machines.garbled(statement).await;
    assert_eq!(machines.node.db.unreadable()["root_disk_sizes"], 1);
    assert_eq!(machines.rows("root_disk_sizes").await, before);
}

#[tokio::test]
async fn an_unreadable_container_keeps_its_user_to_itself() {
    let node = Node::with_settings(Default::default(), |settings| {
        settings.uids = crate::vm::UidRange {
            first: 70_000,
            count: 2,
        };
    });
    let node = node.await;
    let one = start(&node, "one", "disk", &[]).await;
    let statement = "UPDATE containers SET phase = 'asleep' WHERE id = ?1";
    let id = one.1.to_string();
    let garble = move |t: &rusqlite::Transaction<'_>| t.execute(statement, [id]);
    assert_eq!(node.db.write(garble).await.unwrap(), 1);
    let node = node.restarted().await;
    let users = node.rows.aside().rows().iter().map(|row| row.trace.user);
    assert_eq!(users.collect::<Vec<_>>(), [Some(70_000)]);
    for pod in ["two", "three"] {
        let sandbox = node.annotated(pod, &[]).await;
        let made = node.containers.create(&sandbox, node.machine(0)).await;
        match pod {
            "two" => assert_eq!(node.row(&made.unwrap()).spec.user, Some(70_001)),
            _ => assert!(refusal(made).contains("all 2 users")),
        }
    }
}
