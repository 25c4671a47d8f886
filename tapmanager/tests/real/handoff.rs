//! Tokens, and the processes that show them.
//!
//! Invariant: the cgroup root is a directory that looks like version 1, so that placement shows as
//! text.
//! Failure: a token that works twice, or a descriptor without one, fails a test.

use std::os::unix::process::CommandExt;

use fdpass::AsyncConnection;
use tapmanager::client::Error;
use tapmanager::wire::{ErrorCode, HandoffReply, Permit, StartRequest, start_socket};

use crate::guest::Scratch;
use crate::node::{Node, exchange, pod};

/// With it the test about other users is not the test, but the process that it starts: which socket
/// to try.
const SOCKET_VARIABLE: &str = "VMLET_TEST_SOCKET";
/// What to send there.
const REQUEST_VARIABLE: &str = "VMLET_TEST_REQUEST";
const HELLO: &str = r#"{"op":"hello","version":1}"#;

fn refusal(reply: &HandoffReply) -> Option<ErrorCode> {
    match reply {
        HandoffReply::Error(error) => Some(error.code),
        HandoffReply::Ok { .. } => None,
    }
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_token_is_good_for_one_hand_off_of_its_own_sandbox() {
    let mut node = Node::start().await;
    for id in ["one", "two"] {
        node.client().add(pod(id)).await.unwrap();
    }
    let earlier = node.token("one").await;
    let token = node.token("one").await;
    assert_ne!(earlier, token);
    let (replaced, taps) = node.redeem(&earlier).await;
    assert_eq!(
        (refusal(&replaced), taps.len()),
        (Some(ErrorCode::NotFound), 0)
    );
    // A token survives the program, its use does, too.
    node.kill().await;
    node.launch().await;
    let (reply, taps) = node.redeem(&token).await;
    assert_eq!((refusal(&reply), taps.len()), (None, 1));
    let (again, taps_again) = node.redeem(&token).await;
    assert_eq!(
        (refusal(&again), taps_again.len()),
        (Some(ErrorCode::NotFound), 0)
    );
    node.kill().await;
    node.launch().await;
    assert_eq!(
        refusal(&node.redeem(&token).await.0),
        Some(ErrorCode::NotFound)
    );
    // While another process has the tap open, a hand-off fails with an error that names the cause.
    let (busy, none) = node.redeem(&node.token("one").await).await;
    assert_eq!((refusal(&busy), none.len()), (Some(ErrorCode::System), 0));
    drop(taps);
    assert_eq!(
        refusal(&node.redeem(&node.token("one").await).await.0),
        None
    );

    let token = node.token("two").await;
    node.client().del("two").await.unwrap();
    assert_eq!(
        refusal(&node.redeem(&token).await.0),
        Some(ErrorCode::NotFound)
    );
    let start = StartRequest {
        memory_bytes: 0,
        uid: None,
        id: "two".to_owned(),
        cgroup_parent: String::new(),
    };
    let absent = node.client().prepare_start(start).await;
    assert!(matches!(absent, Err(Error::Refused(e)) if e.code == ErrorCode::NotFound));
    node.client().del("one").await.unwrap();
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_detached_guest_is_handed_nothing_and_its_pod_has_its_network() {
    let mut node = Node::start().await;
    let mut alone = pod("alone");
    alone.detached = true;
    let network = node.client().add(alone.clone()).await.unwrap();
    assert!(network.ips().next().is_some() && network.guest_nics().is_empty());
    let handed = async |node: &Node| match node.redeem(&node.token("alone").await).await {
        (HandoffReply::Ok { nics }, taps) => (nics.len(), taps.len()),
        (HandoffReply::Error(error), _) => panic!("{error}"),
    };
    assert_eq!(handed(&node).await, (0, 0));
    node.kill().await;
    node.launch().await;
    assert_eq!(handed(&node).await, (0, 0));
    assert_eq!(node.client().add(alone).await.unwrap(), network);
    node.client().check("alone").await.unwrap();
    node.client().del("alone").await.unwrap();
    let left = node.leftovers().await;
    assert_eq!(left, Vec::<String>::new(), "{}", node.log());
}

#[tokio::test]
#[ignore = "needs root"]
async fn the_process_is_in_the_pods_cgroup_before_it_has_a_descriptor() {
    let node = Node::start().await;
    node.client().add(pod("one")).await.unwrap();
    let pod_dir = node.scratch.path().join("cgroup/memory/kubepods/pod1");
    let start = |parent: &str| {
        let client = node.client();
        let start = StartRequest {
            memory_bytes: 0,
            uid: None,
            id: "one".to_owned(),
            cgroup_parent: parent.to_owned(),
        };
        async move { client.prepare_start(start).await }
    };
    let hostile = start("/kubepods/../../etc").await;
    assert!(matches!(hostile, Err(Error::Refused(e)) if e.code == ErrorCode::Invalid));

    let missing = start("/kubepods/pod1").await.unwrap().token;
    let (reply, taps) = node.redeem(&missing).await;
    assert_eq!((refusal(&reply), taps.len()), (Some(ErrorCode::System), 0));
    assert!(format!("{reply:?}").contains("kubepods/pod1"), "{reply:?}");

    std::fs::create_dir_all(&pod_dir).unwrap();
    std::fs::write(pod_dir.join("cgroup.procs"), "").unwrap();
    let token = start("/kubepods/pod1").await.unwrap().token;
    let (reply, taps) = node.redeem(&token).await;
    assert_eq!((refusal(&reply), taps.len()), (None, 1));
    let placed = std::fs::read_to_string(pod_dir.join("cgroup.procs")).unwrap();
    assert_eq!(placed, std::process::id().to_string());
    node.client().del("one").await.unwrap();
}

/// What this program receives on `socket` as user `uid` when it sends `request`.
async fn speak(
    scratch: &Scratch,
    socket: std::path::PathBuf,
    (uid, gid): (u32, u32),
    request: &str,
) -> String {
    let program = scratch.path().join("stranger");
    if !program.exists() {
        // By another process, as in `write_program`.
        let mut copy = std::process::Command::new("cp");
        copy.arg(std::env::current_exe().unwrap()).arg(&program);
        assert!(copy.status().unwrap().success());
    }
    let mut command = std::process::Command::new(program);
    command
        .args([
            "--ignored",
            "--nocapture",
            "--exact",
            "handoff::users_other_than_the_sockets_own_are_refused_even_if_the_file_lets_them_in",
        ])
        .env(SOCKET_VARIABLE, socket)
        .env(REQUEST_VARIABLE, request)
        .current_dir("/")
        .uid(uid)
        .gid(gid);
    let output = tokio::task::spawn_blocking(move || command.output())
        .await
        .unwrap()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}");
    text
}

#[tokio::test]
#[ignore = "needs root"]
async fn users_other_than_the_sockets_own_are_refused_even_if_the_file_lets_them_in() {
    use std::os::unix::fs::PermissionsExt;
    const STRANGER: u32 = 1;
    if let Some(socket) = std::env::var_os(SOCKET_VARIABLE) {
        let request = std::env::var(REQUEST_VARIABLE).unwrap();
        let answer = exchange(socket.as_ref(), request.as_bytes()).await;
        let answer = answer.map(|answer| String::from_utf8(answer.bytes).unwrap());
        println!("{}", answer.as_deref().unwrap_or("ignored"));
        return;
    }
    let node = Node::start().await;
    let qemu = nix::unistd::User::from_name("nobody")
        .unwrap()
        .unwrap()
        .uid
        .as_raw();
    let open = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    open(node.scratch.path(), 0o755);
    let mode = |path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(node.control()), mode(node.handoff())), (0o600, 0o660));
    assert!(
        speak(&node.scratch, node.handoff(), (qemu, qemu), HELLO)
            .await
            .contains("error")
    );

    open(&node.control(), 0o666);
    open(&node.handoff(), 0o666);
    for (socket, uid) in [
        (node.control(), STRANGER),
        (node.control(), qemu),
        (node.handoff(), STRANGER),
    ] {
        let received = speak(&node.scratch, socket.clone(), (uid, uid), HELLO).await;
        assert!(
            received.contains("ignored"),
            "{uid} on {}: {received}",
            socket.display()
        );
        let line = node.logged(&format!("uid={uid} ")).await;
        assert!(line.contains("may not use the socket"), "{line}");
    }
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_token_is_good_for_the_user_of_its_start_only() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    const MACHINE: u32 = 1_900_000_001;
    const OTHER: u32 = 1_900_000_002;
    let node = Node::start().await;
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(node.scratch.path(), open).unwrap();
    node.client().add(pod("one")).await.unwrap();
    node.client().add(pod("two")).await.unwrap();
    let start = |id: &str, uid| StartRequest {
        memory_bytes: 0,
        uid: Some(uid),
        id: id.to_owned(),
        cgroup_parent: String::new(),
    };
    let permit = node.client().prepare_start(start("one", MACHINE)).await;
    let Permit { token, socket } = permit.unwrap();
    node.client()
        .prepare_start(start("two", OTHER))
        .await
        .unwrap();
    let group = std::fs::metadata(node.handoff()).unwrap().gid();
    // The kernel keeps the machine of another start from the socket of this one.
    let own = start_socket(&node.handoff(), &socket.unwrap());
    let found = std::fs::metadata(&own).unwrap();
    assert_eq!((found.mode() & 0o777, found.uid()), (0o600, MACHINE));
    let around = std::fs::metadata(own.parent().unwrap()).unwrap();
    assert_eq!((around.mode() & 0o777, around.uid()), (0o711, 0));
    let answered = speak(&node.scratch, own.clone(), (MACHINE, group), HELLO).await;
    assert!(answered.contains("error"), "{answered}");
    let redeem = async |uid| {
        let request = format!(r#"{{"version":1,"token":"{token}"}}"#);
        speak(&node.scratch, node.handoff(), (uid, group), &request).await
    };
    // Root has no right to it either.
    assert_eq!(
        refusal(&node.redeem(&token).await.0),
        Some(ErrorCode::NotFound)
    );
    let refused = redeem(OTHER).await;
    assert!(refused.contains("not_found"), "{refused}");
    let given = redeem(MACHINE).await;
    assert!(given.contains(r#""nics":[{"mac""#), "{given}");
    let again = redeem(MACHINE).await;
    assert!(again.contains("ignored"), "{again}");
    assert!(!own.exists(), "a start that has happened has no socket");
    for id in ["one", "two"] {
        node.client().del(id).await.unwrap();
    }
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_flood_at_the_socket_for_all_starts_delays_no_start() {
    let mut node = Node::start().await;
    node.client().add(pod("one")).await.unwrap();
    // More than are served at a time, and silent.
    let flood: Vec<_> = (0..300)
        .map_while(|_| AsyncConnection::connect(&node.handoff()).ok())
        .collect();
    assert!(flood.len() > 128, "{}", flood.len());
    let permit = node.permit("one").await;
    let socket = start_socket(&node.handoff(), &permit.socket.unwrap());
    let (reply, taps) = node.redeem_at(&socket, &permit.token).await;
    assert_eq!((refusal(&reply), taps.len()), (None, 1));
    drop((flood, taps));
    // A start outlasts a restart of the program with its socket.
    let permit = node.permit("one").await;
    node.kill().await;
    node.launch().await;
    let (reply, taps) = node.redeem_at(&socket, &permit.token).await;
    assert_eq!((refusal(&reply), taps.len()), (None, 1));
    node.client().del("one").await.unwrap();
}
