//! Backups of machines that are about to start, and of those that are suspended.
//!
//! Invariant: neither fails a backup for good: the first has its disk as it is, the second waits.
//! Failure: a test prints the task that did not end as it should.

use podspec::names::VM_UID_LABEL;

use super::*;

#[tokio::test]
async fn a_machine_with_a_placeholder_is_backed_up_as_one_that_is_off() {
    let mut backups = Backups::of_disk(true).await;
    let node = &backups.node;
    let mut pod = node.pod("place");
    let role = ("vmlet.dev/role".to_owned(), "provision".to_owned());
    pod.annotations.extend([role]);
    let label = (VM_UID_LABEL.to_owned(), uid(VM).to_string());
    pod.labels.extend([label]);
    let sandbox = node.sandboxes.run(pod).await.unwrap();
    let id = node.containers.create(&sandbox, node.machine(0)).await;
    node.containers.start(&id.unwrap()).await.unwrap();
    backups.write(4, 1);
    let expected = backups.content(VM);
    backups.done(1).await;
    backups.restores(1, &expected).await;
}

#[tokio::test]
async fn a_backup_of_a_suspended_machine_is_repeated_until_it_runs() {
    let node = Node::new().await;
    make_disk(&node, true).await;
    let vm = uid(VM).to_string();
    let sandbox = node.annotated("pod", &[("vm-disk", &vm)]).await;
    let id = node.containers.create(&sandbox, node.machine(0)).await;
    node.containers.start(&id.unwrap()).await.unwrap();
    let mut backups = Backups::on(node, tempfile::tempdir().unwrap(), 0).await;
    let saved = backups.run(Work::Save).await;
    assert_eq!(saved.state, State::Success, "{saved:?}");
    let failed = backups.failure(backup(1)).await;
    assert!(
        failed.transient && failed.message.contains("is suspended"),
        "{failed:?}"
    );
    let discarded = backups.run(Work::Restore { discard: true }).await;
    assert_eq!(discarded.state, State::Success, "{discarded:?}");
    backups.done(1).await;
}
