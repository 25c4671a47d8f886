//! What survives the program, and what a restart does.
//!
//! Invariant: the program is killed by SIGKILL at exact points, not at some time.
//! Failure: the point at which it went wrong is in the panic.

use netns::Namespace;
use tapmanager::FAULT_POINTS;
use tapmanager::client::Error;
use tapmanager::wire::{ErrorCode, HandoffReply, StartRequest};

use crate::network::boot;
use crate::node::{Node, pod};

#[tokio::test]
#[ignore = "needs root"]
async fn a_running_guest_keeps_its_network_through_a_crash_and_can_start_again_after_it() {
    let mut node = Node::start().await;
    let network = node.client().add(pod("one")).await.unwrap();
    let guest = boot(&node, &network, "before").await;
    guest.lease("").await;
    node.kill().await;
    guest.run("busybox ping -c 1 -W 15 10.88.7.1").await;
    node.launch().await;
    assert_eq!(node.client().get("one").await.unwrap(), network);
    node.client().check("one").await.unwrap();
    guest.lease("").await;

    // The guest powers off and is started again.
    drop(guest);
    let guest = boot(&node, &network, "after").await;
    let lease = guest.lease("").await;
    assert_eq!(lease["ip"], network.ips().next().unwrap().to_string());
    guest.run("busybox ping -c 1 -W 15 10.88.7.1").await;
    node.client().del("one").await.unwrap();
    assert_eq!(node.leftovers().await, Vec::<String>::new());
}

#[tokio::test]
#[ignore = "needs root"]
async fn termination_leaves_networks_up() {
    let mut node = Node::start().await;
    let network = node.client().add(pod("one")).await.unwrap();
    let guest = boot(&node, &network, "guest").await;
    guest.lease("").await;
    let status = node.terminate().await;
    assert!(status.success(), "{status}");
    guest.run("busybox ping -c 1 -W 15 10.88.7.1").await;
    node.launch().await;
    node.client().del("one").await.unwrap();
    assert_eq!(node.leftovers().await, Vec::<String>::new());
}

#[tokio::test]
#[ignore = "needs root"]
async fn after_a_reboot_every_network_is_detached_and_its_address_is_free_whatever_is_mounted() {
    let mut node = Node::start_in_boot("one").await;
    let network = node.client().add(pod("one")).await.unwrap();
    let token = node.token("one").await;
    node.kill().await;
    node.boot("two");
    node.launch().await;
    // The journal is worked off before the first request for the sandbox is.
    node.client().del("one").await.unwrap();
    assert!(matches!(
        node.redeem(&token).await.0,
        HandoffReply::Error(e) if e.code == ErrorCode::NotFound
    ));
    assert_eq!(node.leftovers().await, Vec::<String>::new());
    assert!(
        node.log().contains("network of an earlier boot"),
        "{}",
        node.log()
    );
    let again = node.client().add(pod("one")).await.unwrap();
    assert_eq!(again.nics.len(), network.nics.len());
    node.kill().await;
    node.launch().await;
    assert_eq!(node.client().get("one").await.unwrap(), again);
    node.client().del("one").await.unwrap();
    assert_eq!(node.leftovers().await, Vec::<String>::new());
}

#[tokio::test]
#[ignore = "needs root"]
async fn networks_without_their_namespace_are_detached_at_start() {
    let mut node = Node::start().await;
    let network = node.client().add(pod("one")).await.unwrap();
    node.kill().await;
    // A reboot takes the mount and, as it is on a tmpfs, the file.
    Namespace::delete(&network.netns).await.unwrap();
    node.launch().await;
    node.logged("leftover network removed").await;
    assert_eq!(node.client().list().await.unwrap(), Vec::<String>::new());
    node.becomes_clean().await;
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_journal_that_cannot_be_read_keeps_the_network_until_del() {
    let mut node = Node::start().await;
    let network = node.client().add(pod("one")).await.unwrap();
    node.kill().await;
    std::fs::write(node.scratch.path().join("journal/one.json"), "{}").unwrap();
    node.launch().await;
    assert_eq!(node.client().list().await.unwrap(), ["one"]);
    assert!(Namespace::open(&network.netns).unwrap().is_some());
    node.client().del("one").await.unwrap();
    assert_eq!(
        node.leftovers().await,
        Vec::<String>::new(),
        "{}",
        node.log()
    );
}

/// Runs into the armed point; the call must die with the program.
async fn die(node: &mut Node, point: &str) {
    let client = node.client();
    let outcome: Result<(), Error> = match point.split('.').nth(1).unwrap() {
        "add" => client.add(pod("one")).await.map(drop),
        "del" => client.del("one").await,
        "start" => {
            let start = StartRequest {
                memory_bytes: 0,
                uid: None,
                id: "one".to_owned(),
                cgroup_parent: String::new(),
            };
            client.prepare_start(start).await.map(drop)
        }
        _ => {
            let token = node.token("one").await;
            let request = format!("{{\"version\":1,\"token\":\"{token}\"}}");
            let answer = crate::node::exchange(&node.handoff(), request.as_bytes()).await;
            assert!(answer.is_none(), "{point}");
            Err(Error::Protocol(String::new()))
        }
    };
    assert!(
        matches!(outcome, Err(Error::Protocol(_))),
        "{point}: {outcome:?}"
    );
    node.ended().await;
    assert!(node.has_fired(point), "{point}");
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_crash_at_any_point_is_repaired_by_repeating_the_request() {
    let mut node = Node::start().await;
    for point in FAULT_POINTS {
        if !point.starts_with("tap.add.") {
            node.client().add(pod("one")).await.unwrap();
        }
        node.arm(point);
        die(&mut node, point).await;
        node.launch().await;
        if point.starts_with("tap.del.") {
            node.client().del("one").await.unwrap();
            assert_eq!(node.leftovers().await, Vec::<String>::new(), "{point}");
        }
        let network = node.client().add(pod("one")).await.unwrap();
        node.client()
            .check("one")
            .await
            .unwrap_or_else(|e| panic!("{point}: {e:?}"));
        let (reply, taps) = node.redeem(&node.token("one").await).await;
        assert!(
            matches!(reply, HandoffReply::Ok { .. }),
            "{point}: {reply:?}"
        );
        assert_eq!(taps.len(), network.nics.len(), "{point}");
        node.client().del("one").await.unwrap();
        assert_eq!(node.leftovers().await, Vec::<String>::new(), "{point}");
    }
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_crash_without_a_retry_is_undone_or_complete() {
    let mut node = Node::start().await;
    for point in FAULT_POINTS {
        if !point.starts_with("tap.add.") {
            node.client().add(pod("one")).await.unwrap();
        }
        node.arm(point);
        die(&mut node, point).await;
        node.launch().await;
        // A request for the sandbox waits for what the start does with it.
        match node.client().get("one").await {
            Ok(_) => node
                .client()
                .check("one")
                .await
                .unwrap_or_else(|e| panic!("{point}: {e:?}")),
            Err(Error::Refused(e)) if e.code == ErrorCode::NotFound => {
                assert_eq!(node.leftovers().await, Vec::<String>::new(), "{point}");
            }
            Err(other) => panic!("{point}: {other:?}"),
        }
        let kept = matches!(
            point,
            "tap.add.up" | "tap.start.token" | "tap.handoff.consumed"
        );
        let expected: &[&str] = if kept { &["one"] } else { &[] };
        assert_eq!(node.client().list().await.unwrap(), expected, "{point}");
        node.client().del("one").await.unwrap();
        assert_eq!(node.leftovers().await, Vec::<String>::new(), "{point}");
    }
}

/// An `nft` that waits for a line on a pipe where its namespace is that of the file `slow`.
async fn slow_filter(node: &Node, netns: &std::path::Path) {
    use std::os::unix::fs::MetadataExt as _;
    let dir = node.scratch.path().join("programs");
    std::fs::create_dir(&dir).unwrap();
    let slow = dir.join("slow");
    let gate = dir.join("gate");
    std::fs::write(&slow, std::fs::metadata(netns).unwrap().ino().to_string()).unwrap();
    nix::unistd::mkfifo(&gate, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let script = format!(
        "#!/bin/sh\nPATH=/usr/sbin:/usr/bin:/sbin:/bin\n\
         if [ $(stat -Lc %i /proc/self/ns/net) = $(cat {slow}) ]; then read line < {gate}; fi\n\
         exec nft \"$@\"\n",
        slow = slow.display(),
        gate = gate.display(),
    );
    crate::guest::write_program(&node.ns, &dir.join("nft"), &script).await;
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_sandbox_that_is_slow_to_recover_keeps_only_its_own_requests_waiting() {
    let mut node = Node::start().await;
    let slow = node.client().add(pod("a-slow")).await.unwrap();
    let fast = node.client().add(pod("b-fast")).await.unwrap();
    let token = node.token("b-fast").await;
    let late = node.token("a-slow").await;
    slow_filter(&node, &slow.netns).await;
    node.kill().await;
    node.programs("programs");
    node.launch().await;

    // The whole picture is there, although one part of it is not ready.
    assert_eq!(node.client().list().await.unwrap(), ["a-slow", "b-fast"]);
    assert_eq!(node.client().get("b-fast").await.unwrap(), fast);
    let (reply, taps) = node.redeem(&token).await;
    assert!(matches!(reply, HandoffReply::Ok { .. }), "{reply:?}");
    assert_eq!(taps.len(), 1);
    let status = node.client().status().await.unwrap();
    assert!(status.ready, "{status:?}");
    assert_eq!(status.details["networks"], "2");
    assert_eq!(status.details["recovering"], "1");
    node.client().del("b-fast").await.unwrap();

    // A token of the slow one waits for it and is not refused.
    let gate = node.scratch.path().join("programs/gate");
    let open = tokio::task::spawn_blocking(move || std::fs::write(gate, "on\n"));
    let ((reply, taps), opened) = tokio::join!(node.redeem(&late), open);
    opened.unwrap().unwrap();
    assert!(matches!(reply, HandoffReply::Ok { .. }), "{reply:?}");
    assert_eq!(taps.len(), 1);
    node.client().check("a-slow").await.unwrap();
    node.logged("recovery from the journal completed").await;
    let status = node.client().status().await.unwrap();
    assert!(!status.details.contains_key("recovering"), "{status:?}");
    std::fs::remove_file(node.scratch.path().join("programs/nft")).unwrap();
    node.client().del("a-slow").await.unwrap();
    assert_eq!(node.leftovers().await, Vec::<String>::new());
}
