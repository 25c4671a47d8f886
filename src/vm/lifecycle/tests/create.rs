//! Creation: the image, its pin and the disk.
//!
//! Invariant: what is refused leaves no container; a pin ends with its sandbox at the latest.
//! Failure: the rule that was broken.

use std::os::unix::fs::MetadataExt;

use podspec::ContainerId;

use crate::foreign::DEADLINE;
use crate::sandbox::Sandbox;
use crate::testkit::{Node, TIMEOUT};
use crate::vm::lifecycle::Conflict;
use crate::vm::shares::Supplies;
use crate::vm::state::Phase;
use crate::vm::{ContainerConfig, Device, Error, Mount};
use crate::{block, images};

#[tokio::test]
async fn an_image_that_is_not_here_is_refused_and_nothing_is_left() {
    let node = Node::new().await;
    let sandbox = node.ready().await;
    let refused = node
        .containers
        .create(&sandbox, node.machine_of("nowhere", 0))
        .await;
    assert!(
        matches!(refused, Err(Error::Image(images::Error::Absent { .. }))),
        "{refused:?}"
    );
    assert!(node.rows.all().is_empty() && node.images.owners().is_empty());
    assert!(node.files().is_empty());
}

#[tokio::test]
async fn what_a_guest_does_not_get_is_refused_or_kept_for_the_pods_events() {
    let node = Node::new().await;
    let sandbox = node.annotated("pod", &[("shares", "off")]).await;
    let mut config = node.machine(0);
    config.mounts = vec![Mount {
        container_path: "/data".to_owned(),
        host_path: "/srv".to_owned(),
        ..Mount::default()
    }];
    let refused = node.containers.create(&sandbox, config.clone()).await;
    assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
    assert!(node.rows.all().is_empty());
    config.mounts[0].readonly = true;
    node.containers.secrets_unused("uid of pod");
    let id = node.containers.create(&sandbox, config).await.unwrap();
    let reported = node.row(&id).spec.unsupported.clone();
    for words in ["/data", "pull secrets"] {
        assert!(
            reported.iter().any(|text| text.contains(words)),
            "{reported:?}"
        );
    }
}

#[tokio::test]
async fn a_board_that_the_emulator_does_not_have_is_refused() {
    let node = Node::new().await;
    let sandbox = node.ready().await;
    let with = |board: &str, attempt| {
        let mut config = node.machine(attempt);
        let pair = ("vmlet.dev/machine-type".to_owned(), board.to_owned());
        config.annotations.extend([pair]);
        config
    };
    let refused = node
        .containers
        .create(&sandbox, with("pc-q35-99.0", 0))
        .await;
    let text = refused.unwrap_err().to_string();
    assert!(
        text.contains("pc-q35-99.0") && text.contains("ask for pc-q35-7.2"),
        "{text}"
    );
    assert!(node.rows.all().is_empty());
    let id = node
        .containers
        .create(&sandbox, with("pc-q35-7.1", 0))
        .await
        .unwrap();
    assert_eq!(
        node.row(&id).spec.machine.machine_type.as_str(),
        "pc-q35-7.1"
    );
}

#[tokio::test]
async fn a_name_that_means_nothing_boots_no_disk_but_its_own() {
    let node = Node::new().await;
    let first = node.created().await;
    let row = node.row(&first);
    let disk = node.containers.paths().root_disk(&row.sandbox);
    let inode = disk.metadata().unwrap().ino();
    node.containers.remove(&first).await.unwrap();
    node.images.remove(&node.image("disk")).await.unwrap();

    let config = node.machine_of("nowhere", 1);
    let refused = node.containers.create(&row.sandbox, config).await;
    assert!(
        matches!(refused, Err(Error::Image(images::Error::Absent { .. }))),
        "{refused:?}"
    );
    assert!(disk.exists(), "a refusal costs the guest nothing");

    let mut same = node.machine(2);
    same.image.image.clone_from(&row.spec.image_digest);
    for config in [node.machine(1), same] {
        let id = node.containers.create(&row.sandbox, config).await.unwrap();
        assert_eq!(disk.metadata().unwrap().ino(), inode);
        node.containers.remove(&id).await.unwrap();
    }
}

/// As kubelet requests it: the image `disk` of the pod, which means `image` today.
fn of_tag(node: &Node, image: &str, attempt: u32) -> ContainerConfig {
    let mut config = node.machine(attempt);
    config.image.user_specified_image = node.image("disk");
    let today = node.images.find(&node.image(image)).unwrap();
    config.image.image = today.digest.to_string();
    config
}

/// What a client sees of a container's image, and the inode of its root disk.
pub(super) fn root_of(node: &Node, id: &ContainerId) -> (String, u64) {
    let row = node.row(id);
    let disk = node.containers.paths().root_disk(&row.sandbox);
    let inode = disk.metadata().unwrap().ino();
    (row.spec.image_digest.clone(), inode)
}

/// Whether an event says that the name of the image means another one today.
fn says_kept(node: &Node, id: &ContainerId) -> bool {
    let row = node.row(id);
    let words = format!("keeps its root disk of {}", row.spec.image_digest);
    let mut found = row.spec.unsupported.iter();
    found.any(|text| text.contains(&words))
}

#[tokio::test]
async fn a_tag_that_moved_keeps_the_disk_and_is_an_event() {
    let node = Node::new().await;
    let sandbox = node.ready().await;
    let create = |config| node.containers.create(&sandbox, config);
    let first = create(of_tag(&node, "disk", 0)).await.unwrap();
    assert!(!says_kept(&node, &first));
    let before = root_of(&node, &first);
    node.containers.remove(&first).await.unwrap();

    let second = create(of_tag(&node, "other", 1)).await.unwrap();
    assert_eq!(root_of(&node, &second), before);
    assert!(says_kept(&node, &second));
    node.containers.remove(&second).await.unwrap();

    // The pod names another image now.
    let third = create(node.machine_of("other", 2)).await.unwrap();
    assert_ne!(root_of(&node, &third).0, before.0);
    assert!(!says_kept(&node, &third));
    assert_eq!(node.images.owners(), [sandbox.to_string()]);
}

#[tokio::test]
async fn the_disk_of_an_earlier_daemon_follows_the_name_in_its_container() {
    for (is_named, is_kept) in [(true, false), (false, true)] {
        let node = Node::new().await;
        let first = node.created().await;
        let sandbox = node.row(&first).sandbox.clone();
        let before = root_of(&node, &first);
        let forget = |t: &rusqlite::Transaction<'_>| {
            t.execute("UPDATE image_pins SET text = NULL", []).map(drop)
        };
        node.db.write(forget).await.unwrap();
        let node = node.restarted().await;
        node.containers.start(&first).await.unwrap();
        node.hypervisor.power_off(node.row(&first).domain());
        node.until(&first, |row| row.phase == Phase::Exited).await;
        if !is_named {
            node.containers.remove(&first).await.unwrap();
        }
        let again = node.containers.create(&sandbox, node.machine(1)).await;
        let again = again.unwrap();
        assert_eq!(root_of(&node, &again), before);
        node.containers.remove(&again).await.unwrap();
        node.db.write(forget).await.unwrap();
        let node = node.restarted().await;
        let other = node
            .containers
            .create(&sandbox, node.machine_of("other", 2));
        let other = other.await.unwrap();
        assert_eq!(root_of(&node, &other) == before, is_kept);
    }
}

#[tokio::test]
async fn the_stop_of_a_pod_ends_the_look_at_a_device_that_hangs() {
    let node = Node::new().await;
    let sandbox = node.ready().await;
    let path = "/dev/hung";
    let _hung = node.containers.parts.blocks.hold(path.as_ref());
    let mut config = node.machine(0);
    config.devices = vec![Device {
        container_path: "/dev/data".to_owned(),
        host_path: path.to_owned(),
        permissions: "rw".to_owned(),
    }];
    let containers = node.containers.clone();
    let own = sandbox.clone();
    let supplies = Supplies::default();
    let creating =
        tokio::spawn(async move { containers.create_to_end(&own, config, supplies).await });
    while !node.containers.stops.is_watched(&sandbox) && !creating.is_finished() {
        tokio::task::yield_now().await;
    }
    let stopped = tokio::time::timeout(DEADLINE / 2, node.sandboxes.stop(&sandbox)).await;
    stopped.expect("the stop waits for the device").unwrap();
    let ended = creating.await.unwrap();
    assert!(
        matches!(ended, Err(Error::Block(block::Error::Stopped(_)))),
        "{ended:?}"
    );
}

#[tokio::test]
async fn content_that_nothing_replaces_is_an_event_and_other_words_are_refused() {
    let node = Node::new().await;
    for (name, value, is_reported) in [("a", "replace", true), ("b", "keep", false)] {
        let sandbox = node.annotated(name, &[("root-content", value)]).await;
        let id = node.containers.create(&sandbox, node.machine(0)).await;
        let found = node.row(&id.unwrap()).spec.unsupported.clone();
        let words = "vmlet.dev/root-content has no effect";
        let is_there = found.iter().any(|text| text.contains(words));
        assert_eq!(is_there, is_reported, "{found:?}");
    }
    let sandbox = node.annotated("c", &[("root-content", "overwrite")]).await;
    let refused = node.containers.create(&sandbox, node.machine(0)).await;
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("\"keep\" or \"replace\""), "{text}");
}

#[tokio::test]
async fn a_disk_that_cannot_be_made_leaves_no_container_and_its_pin_goes_with_the_sandbox() {
    let node = Node::new().await;
    let sandbox = node.ready().await;
    let obstacle = node.containers.paths().pod(&sandbox);
    std::fs::write(&obstacle, "").unwrap();
    let refused = node.containers.create(&sandbox, node.machine(0)).await;
    assert!(matches!(refused, Err(Error::Files(_))), "{refused:?}");
    assert!(node.rows.all().is_empty());
    std::fs::remove_file(&obstacle).unwrap();
    node.sandboxes.remove(&sandbox).await.unwrap();
    assert!(node.images.owners().is_empty());
}

#[tokio::test]
async fn an_equal_request_is_answered_again_only_after_a_restart_and_only_once() {
    let node = Node::new().await;
    let first = node.created().await;
    let sandbox = node.row(&first).sandbox.clone();
    let again = node.containers.create(&sandbox, node.machine(0)).await;
    assert!(
        matches!(again, Err(Error::Conflict(Conflict::Live { .. }))),
        "{again:?}"
    );

    let node = node.restarted().await;
    let mut other = node.machine(1);
    other.metadata.name = "other".to_owned();
    let other = node.containers.create(&sandbox, other).await;
    assert!(
        matches!(other, Err(Error::Conflict(Conflict::Live { .. }))),
        "{other:?}"
    );
    let again = node.containers.create(&sandbox, node.machine(0)).await;
    assert_eq!(again.unwrap(), first);
    let again = node.containers.create(&sandbox, node.machine(0)).await;
    assert!(
        matches!(again, Err(Error::Conflict(Conflict::Live { .. }))),
        "{again:?}"
    );
}

#[tokio::test]
async fn a_client_that_gave_up_gets_the_container_that_was_made_meanwhile() {
    let node = Node::new().await;
    let sandbox = node.ready().await;
    let mut changes = node.rows.changes();
    let begun = async {
        while node.rows.all().is_empty() {
            changes.changed().await.unwrap();
        }
    };
    tokio::select! {
        biased;
        () = begun => {}
        made = node.containers.create(&sandbox, node.machine(0)) => panic!("{made:?}"),
    }
    let id = node.rows.all()[0].id.clone();
    node.until(&id, |row| row.phase == Phase::Created).await;
    // kubelet would take it for a container that never started, and make another attempt.
    assert!(node.containers.list().is_empty());
    assert_eq!(node.containers.find(id.as_str()).unwrap().id, id);

    let again = node.containers.create(&sandbox, node.machine(0)).await;
    assert_eq!(again.unwrap(), id);
    assert_eq!(node.containers.list().len(), 1);
    let again = node.containers.create(&sandbox, node.machine(0)).await;
    assert!(
        matches!(again, Err(Error::Conflict(Conflict::Live { .. }))),
        "{again:?}"
    );
}

#[tokio::test]
async fn a_container_whose_client_never_comes_back_is_shown_after_a_while() {
    let node = Node::new().await;
    let id = node.created().await;
    node.containers.answer_is_due(&id);
    assert!(node.containers.list().is_empty());
    tokio::time::pause();
    tokio::time::advance(std::time::Duration::from_secs(10 * 60)).await;
    assert_eq!(node.containers.list().len(), 1);
}

#[tokio::test]
async fn a_container_that_was_never_started_gives_way_to_a_later_attempt_and_to_no_other() {
    let node = Node::new().await;
    let sandbox = node.ready().await;
    let second = node.containers.create(&sandbox, node.machine(1)).await;
    let second = second.unwrap();
    let earlier = node.containers.create(&sandbox, node.machine(0)).await;
    assert!(
        matches!(earlier, Err(Error::Conflict(Conflict::Live { .. }))),
        "{earlier:?}"
    );

    let third = node.containers.create(&sandbox, node.machine(2)).await;
    let third = third.unwrap();
    assert_eq!(node.exit(&second), (128, "StartError".to_owned()));
    let row = node.row(&second);
    assert!(row.started_at == 0 && row.finished_at >= row.created_at);
    assert!(row.exit.as_ref().unwrap().message.contains("attempt 2"));
    let refused = node.containers.start(&second).await;
    assert!(matches!(refused, Err(Error::Phase { .. })), "{refused:?}");

    node.containers.start(&third).await.unwrap();
    let fourth = node.containers.create(&sandbox, node.machine(3)).await;
    assert!(
        matches!(fourth, Err(Error::Conflict(Conflict::Live { .. }))),
        "{fourth:?}"
    );
    node.containers.remove(&second).await.unwrap();
    assert_eq!(node.phase(&third), Phase::Running);
}

#[tokio::test]
async fn an_id_of_another_runtime_is_answered_by_the_name_in_the_pod() {
    let node = Node::new().await;
    let sandbox = node.ready().await;
    let disk = node.images.find(&node.image("disk")).unwrap();
    node.images.remove(&node.image("disk")).await.unwrap();
    let mut config = node.machine(0);
    config.image.image = format!("sha256:{}", "ab".repeat(32));
    let refused = node.containers.create(&sandbox, config.clone()).await;
    assert!(matches!(
        refused,
        Err(Error::Image(images::Error::Absent { .. }))
    ));

    config.image.user_specified_image = node.image("disk");
    let made = node.containers.create(&sandbox, config).await.unwrap();
    assert_eq!(node.row(&made).spec.image_digest, disk.digest.to_string());
    assert!(node.images.find(&node.image("disk")).is_some(), "pulled");
}

#[tokio::test]
async fn the_url_that_a_name_stands_for_is_in_the_pod() {
    let node = Node::new().await;
    let url = format!("http://{}", node.image("disk"));
    let name = podspec::url_image_name(&url);
    let mut config = node.machine(0);
    config.image.image = format!("sha256:{}", "ab".repeat(32));
    config.image.user_specified_image.clone_from(&name);
    let plain = node.ready().await;
    let refused = node.containers.create(&plain, config.clone()).await;
    assert!(matches!(
        refused,
        Err(Error::Image(images::Error::InvalidName { .. }))
    ));
    let sandbox = node.annotated("by-url", &[("image-url", &url)]).await;
    node.containers.create(&sandbox, config).await.unwrap();
    assert!(node.images.find(&name).is_some(), "pulled");
}

#[tokio::test]
async fn a_creation_that_was_cut_short_does_not_take_the_place() {
    let node = Node::new().await;
    let cut = node.created().await;
    node.force(&cut, |row| row.phase = Phase::Creating).await;
    assert!(node.containers.list().is_empty());
    let sandbox = node.row(&cut).sandbox.clone();
    let made = node.containers.create(&sandbox, node.machine(0)).await;
    assert_ne!(made.unwrap(), cut);
    assert!(node.rows.get(&cut).is_none());
}

/// Pod Security requires the pod of a VirtualMachine to state a user that nothing runs as.
#[tokio::test]
async fn the_user_of_a_virtual_machines_pod_is_not_that_of_its_shares() {
    let node = Node::new().await;
    let label = podspec::names::VM_UID_LABEL;
    for (name, labels, wanted) in [
        ("a", vec![label], None),
        ("b", vec![], Some(podspec::names::MACHINE_USER)),
    ] {
        let mut pod = node.pod(name);
        let uid = "0d1f4ad2-3c0e-4d53-9a8b-1f3e5d7c9b1a".to_owned();
        let labels = labels.into_iter();
        pod.labels
            .extend(labels.map(|label| (label.to_owned(), uid.clone())));
        let sandbox = node.sandboxes.run(pod).await.unwrap();
        let mut config = node.machine(0);
        config.share_user.uid = Some(podspec::names::MACHINE_USER);
        let id = node.containers.create(&sandbox, config).await.unwrap();
        assert_eq!(node.row(&id).spec.config.share_user.uid, wanted, "{name}");
    }
}

#[tokio::test]
async fn the_stop_of_a_pod_ends_the_copy_of_its_image() {
    let node = Node::new().await;
    let first = node.created().await;
    let sandbox = node.row(&first).sandbox.clone();
    node.containers.remove(&first).await.unwrap();
    // The disk is to be made again, as a copy of an image whose bytes do not come.
    std::fs::remove_file(node.containers.paths().root_disk(&sandbox)).unwrap();
    let direct = ("vmlet.dev/fast-deploy".to_owned(), "direct".to_owned());
    let annotate = |row: &mut Sandbox| row.config.annotations.extend([direct]);
    let ready = crate::sandbox::state::Phase::Ready;
    let changed = node.sandbox_rows.change(&sandbox, ready, annotate);
    changed.await.unwrap();
    let image = node.images.pinned(sandbox.as_str()).unwrap().path;
    node.images.remove(&node.image("disk")).await.unwrap();
    std::fs::remove_file(&image).unwrap();
    nix::unistd::mkfifo(&image, nix::sys::stat::Mode::S_IRWXU).unwrap();

    let containers = node.containers.clone();
    let config = node.machine(1);
    let of = sandbox.clone();
    let creating = tokio::spawn(async move { containers.create(&of, config).await });
    let mut changes = node.rows.changes();
    while node.rows.all().is_empty() {
        changes.changed().await.unwrap();
    }
    let stopped = tokio::time::timeout(TIMEOUT, node.sandboxes.stop(&sandbox)).await;
    // The thread that opens the image returns: the runtime waits for it.
    let mut both = std::fs::OpenOptions::new();
    let _writer = both.read(true).write(true).open(&image).unwrap();
    stopped.expect("the stop waits for the copy").unwrap();
    let ended = creating.await.unwrap();
    assert!(matches!(ended, Err(Error::CopyCancelled(_))), "{ended:?}");
    assert!(node.rows.all().is_empty());
}

#[tokio::test]
async fn nothing_is_created_or_started_in_a_sandbox_whose_stop_waits_for_its_lock() {
    let node = Node::new().await;
    let created = node.created().await;
    let sandbox = node.row(&created).sandbox.clone();
    let stop = node.containers.request_stop(&sandbox);
    let refused = node.containers.create(&sandbox, node.machine(1)).await;
    assert!(matches!(refused, Err(Error::SandboxNotReady(_))));
    let refused = node.containers.start(&created).await;
    assert!(matches!(refused, Err(Error::SandboxNotReady(_))));
    drop(stop);
    node.containers.start(&created).await.unwrap();
}

#[tokio::test]
async fn a_stopped_sandbox_takes_no_machine() {
    let node = Node::new().await;
    let created = node.created().await;
    let sandbox = node.row(&created).sandbox.clone();
    node.sandboxes.stop(&sandbox).await.unwrap();
    let refused = node.containers.start(&created).await;
    assert!(
        matches!(refused, Err(Error::SandboxNotReady(_))),
        "{refused:?}"
    );
    node.containers.remove(&created).await.unwrap();
    let refused = node.containers.create(&sandbox, node.machine(1)).await;
    assert!(
        matches!(refused, Err(Error::SandboxNotReady(_))),
        "{refused:?}"
    );
}
