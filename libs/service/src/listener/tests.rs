//! Tests with real sockets in a scratch directory.
//!
//! Invariant: connections stay within this process.
//! Failure: a wait has a deadline; a test that misses it fails.

use std::time::Duration;

use futures_util::StreamExt;
use tokio::io::AsyncReadExt;

use super::*;

const DEADLINE: Duration = Duration::from_secs(60);

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn the_socket_and_its_directory_are_made_with_narrow_modes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a/b/vmlet.sock");
    let listener = Listener::bind(&path).await.unwrap();
    assert_eq!(mode(&path), 0o600);
    assert_eq!(
        std::fs::read_dir(path.parent().unwrap()).unwrap().count(),
        1
    );
    listener.claim().release();
    assert!(!path.exists());
}

#[tokio::test]
async fn a_socket_without_a_listener_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vmlet.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    Listener::bind(&path).await.unwrap();
}

#[tokio::test]
async fn a_live_servers_socket_is_never_taken() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vmlet.sock");
    let _first = Listener::bind(&path).await.unwrap();
    let second = Listener::bind(&path).await;
    assert!(matches!(second, Err(Error::Taken(_))), "{second:?}");
}

#[tokio::test]
async fn a_file_that_is_no_socket_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vmlet.sock");
    std::fs::write(&path, "precious").unwrap();
    let refused = Listener::bind(&path).await;
    assert!(matches!(refused, Err(Error::NotASocket(_))), "{refused:?}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}

#[tokio::test]
async fn the_name_of_a_successor_is_not_removed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vmlet.sock");
    let first = Listener::bind(&path).await.unwrap();
    let claim = first.claim();
    drop(first);
    let _second = Listener::bind(&path).await.unwrap();
    claim.release();
    assert!(path.exists());
}

#[tokio::test]
async fn a_peer_of_another_user_is_disconnected_and_the_next_one_served() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vmlet.sock");
    let mut listener = Listener::bind(&path).await.unwrap();
    listener.allowed = [geteuid().as_raw() + 1; 3];
    let mut foreign = UnixStream::connect(&path).await.unwrap();
    let refusing = tokio::time::timeout(DEADLINE, foreign.read_u8());
    tokio::select! {
        _ = listener.accept() => panic!("a foreign peer was admitted"),
        end = refusing => assert!(end.unwrap().is_err()),
    }
    listener.allowed = [geteuid().as_raw(); 3];
    let _own = UnixStream::connect(&path).await.unwrap();
    let incoming = listener.incoming();
    tokio::pin!(incoming);
    let admitted = tokio::time::timeout(DEADLINE, incoming.next()).await;
    assert!(matches!(admitted, Ok(Some(Ok(_)))));
}

/// A process of another user that connects, and succeeds when it is served.
fn client(path: &Path, uid: u32) -> std::process::Child {
    use std::os::unix::process::CommandExt as _;
    let script = "my $peer = IO::Socket::UNIX->new(Peer => $ARGV[0]) or exit 2; \
        exit(sysread($peer, my $byte, 1) == 1 ? 0 : 3)";
    let mut command = std::process::Command::new("/usr/bin/perl");
    command.args(["-MIO::Socket::UNIX", "-e", script]);
    command.arg(path).uid(uid).gid(uid);
    command.spawn().unwrap()
}

#[tokio::test]
#[ignore = "needs root"]
async fn a_socket_of_a_client_serves_that_user_and_no_other() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let path = dir.path().join("agent/node.sock");
    let listener = Listener::bind_for(&path, AGENT_UID).await.unwrap();
    let metadata = std::fs::metadata(&path).unwrap();
    assert_eq!((metadata.uid(), mode(&path)), (AGENT_UID, 0o600));
    // Root has the folder, so that the client cannot put another socket into it.
    let folder = std::fs::metadata(path.parent().unwrap()).unwrap();
    assert_eq!((folder.uid(), folder.mode() & 0o022), (0, 0));

    let serve = tokio::spawn(async move {
        loop {
            let mut stream = listener.accept().await;
            // A client that is gone already has its answer from its exit code.
            let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, b"+").await;
        }
    });
    let ended = |uid| {
        let mut client = client(&path, uid);
        tokio::task::spawn_blocking(move || client.wait().unwrap().success())
    };
    assert!(ended(AGENT_UID).await.unwrap());
    assert!(ended(0).await.unwrap());
    assert!(!ended(AGENT_UID + 1).await.unwrap());
    // The check of the peer holds without the mode, too.
    std::fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
    assert!(!ended(AGENT_UID + 1).await.unwrap());
    serve.abort();
}
