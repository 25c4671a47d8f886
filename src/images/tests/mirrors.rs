//! Mirrors that have other content than their registry.
//!
//! Invariant: a pull takes its content from the first server that has it.
//! Failure: none expected.

use http::header;

use super::registries::{artifact, registry};
use super::*;

/// A registry `r.example` with two mirrors, and its own server last.
async fn mirrored() -> (TestEnvironment, [Server; 3]) {
    let t = registry().await;
    let servers = [
        Server::start().await,
        Server::start().await,
        Server::start().await,
    ];
    let [first, second, own] = servers.each_ref().map(|server| &server.authority);
    let dir = t.settings.registries_dir.join("r.example");
    std::fs::create_dir_all(&dir).unwrap();
    let file = format!(
        "server = \"http://{own}\"\n[host.\"http://{first}\"]\n[host.\"http://{second}\"]\n"
    );
    std::fs::write(dir.join("hosts.toml"), file).unwrap();
    (t, servers)
}

/// Lets a server offer other content as the blob of `disk`.
fn falsify(server: &Server, disk: &[u8]) {
    let digest = digest_of(disk).to_string();
    let other: Vec<_> = disk.iter().map(|byte| byte ^ 1).collect();
    server.offer(&format!("v2/a/blobs/{digest}"), &other, &digest);
}

#[tokio::test]
async fn a_mirror_with_other_content_is_passed_over() {
    let (t, servers) = mirrored().await;
    let disk = disk(64, 1);
    for server in &servers {
        artifact(server, "a", "1", &disk);
    }
    falsify(&servers[0], &disk);
    let image = t.images.pull("r.example/a:1").await.unwrap();
    assert_eq!(std::fs::read(&image.path).unwrap(), disk);
    assert!(t.partials().is_empty(), "{:?}", t.partials());
    // Not a byte of the first mirror is kept.
    let seen = servers[1].seen();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].header(header::RANGE), None);
    assert!(servers[2].seen().is_empty());
}

#[tokio::test]
async fn a_pull_fails_when_all_servers_have_other_content() {
    let (t, servers) = mirrored().await;
    let disk = disk(64, 1);
    for server in &servers {
        artifact(server, "a", "1", &disk);
        falsify(server, &disk);
    }
    let refused = t.images.pull("r.example/a:1").await.unwrap_err();
    assert!(matches!(refused, Error::Digest { .. }), "{refused}");
    let named = |server: &Server| refused.to_string().contains(&server.authority);
    assert!(named(&servers[2]) && !named(&servers[0]), "{refused}");
    assert!(servers.iter().all(|server| {
        let blobs = server.seen();
        blobs.iter().filter(|s| s.path.contains("blobs")).count() == 1
    }));
    assert!(t.partials().is_empty() && t.data().is_empty());
}

#[tokio::test]
async fn bytes_of_a_mirror_that_are_wrong_do_not_fail_the_server_after_it() {
    let (t, servers) = mirrored().await;
    let disk = disk(64, 1);
    for server in &servers {
        artifact(server, "a", "1", &disk);
    }
    falsify(&servers[0], &disk);
    // The first mirror sends a part of the wrong file, and then nothing more.
    let cut = Step::CutAfter(1000);
    let gone = Step::Status(404);
    servers[0].script([Step::Serve, cut, gone]);
    let image = t.images.pull("r.example/a:1").await.unwrap();
    assert_eq!(image.digest, digest_of(&disk));
    let seen = servers[1].seen();
    let ranges: Vec<_> = seen.iter().map(|s| s.header(header::RANGE)).collect();
    assert_eq!(ranges, [Some("bytes=1000-"), None]);
}
