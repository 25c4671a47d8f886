//! The cache on a real file system, and its layout as others read it.
//!
//! Invariant: the fixture was not written by this crate's code.
//! Failure: a key that is named or encoded otherwise than other runtimes expect.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};

use super::{Cache, CacheError, Entry};
use crate::{Attachment, AttachmentId, NetworkConfig};

fn network() -> NetworkConfig {
    NetworkConfig::parse(br#"{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge"}]}"#)
        .unwrap()
}

fn attachment(container: &str) -> Attachment {
    Attachment {
        container_id: container.into(),
        netns: "/run/netns/x".into(),
        ifname: "eth0".into(),
        args: vec![("K8S_POD_NAME".into(), "p".into())],
        capabilities: BTreeMap::from([("portMappings".into(), json!([{"hostPort": 80}]))]),
    }
}

#[test]
fn an_entry_has_the_layout_that_others_read() {
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::new(dir.path().join("cni"));
    let mut entry = Entry::pending(&network(), &attachment("c1"));
    cache.put(&entry).unwrap();
    let path = dir.path().join("cni/results/net-c1-eth0");
    let read = || -> Value { serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap() };
    assert!(read().get("result").is_none());

    entry.result = Some(json!({"cniVersion": "1.0.0", "ips": []}));
    cache.put(&entry).unwrap();
    assert_eq!(
        read(),
        json!({
            "kind": "cniCacheV1",
            "containerId": "c1",
            "config": "eyJjbmlWZXJzaW9uIjoiMS4wLjAiLCJuYW1lIjoibmV0IiwicGx1Z2lucyI6W3sidHlwZSI6ImJyaWRnZSJ9XX0=",
            "ifName": "eth0",
            "networkName": "net",
            "netns": "/run/netns/x",
            "cniArgs": [["K8S_POD_NAME", "p"]],
            "capabilityArgs": {"portMappings": [{"hostPort": 80}]},
            "result": {"cniVersion": "1.0.0", "ips": []},
        })
    );
    assert_eq!(
        std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
}

#[test]
fn what_was_put_is_found_until_it_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::new(dir.path().into());
    assert!(cache.all().unwrap().is_empty(), "no directory yet");
    let entry = Entry::pending(&network(), &attachment("c1"));
    cache.put(&entry).unwrap();
    // Ends the same way, but is another container's.
    cache
        .put(&Entry::pending(&network(), &attachment("x-c1")))
        .unwrap();
    let id = entry.id();
    assert_eq!(cache.find(&id).unwrap(), std::slice::from_ref(&entry));
    assert_eq!(entry.attachment(), attachment("c1"));
    assert_eq!(entry.network().unwrap().plugins(), network().plugins());
    assert_eq!(cache.all().unwrap().len(), 2);
    cache.remove("net", &id).unwrap();
    cache.remove("net", &id).unwrap();
    assert!(cache.find(&id).unwrap().is_empty());
    assert_eq!(
        std::fs::read_dir(dir.path().join("partial"))
            .unwrap()
            .count(),
        0
    );
}

#[test]
fn a_file_that_is_no_entry_is_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::new(dir.path().into());
    cache
        .put(&Entry::pending(&network(), &attachment("c1")))
        .unwrap();
    let results = dir.path().join("results");
    std::fs::write(results.join("net-c2-eth0"), "{").unwrap();
    std::fs::write(results.join("net-c3-eth0"), r#"{"cniVersion":"0.3.1"}"#).unwrap();
    let mut escaping = Entry::pending(&network(), &attachment("c4"));
    escaping.network_name = "../net".into();
    std::fs::write(results.join("net-c4-eth0"), escaping.to_bytes()).unwrap();
    assert_eq!(cache.all().unwrap().len(), 1);
    for container in ["c2", "c3", "c4"] {
        let id = AttachmentId {
            container_id: container.into(),
            ifname: "eth0".into(),
        };
        assert!(cache.find(&id).unwrap().is_empty(), "{container}");
        let path = results.join(format!("net-{container}-eth0"));
        assert!(
            matches!(super::read(&path), Err(CacheError::Format { .. })),
            "{container}"
        );
    }
}

#[test]
#[ignore = "needs root"]
fn a_power_cut_takes_no_entry_that_was_put() {
    let disk = testfs::StrictDisk::new().unwrap();
    let cache = Cache::new(disk.path().join("cni"));
    // The directories are made with the first one.
    let first = Entry::pending(&network(), &attachment("c1"));
    cache.put(&first).unwrap();
    disk.settle().unwrap();
    let mut entry = Entry::pending(&network(), &attachment("c2"));
    for result in [None, Some(json!({"cniVersion": "1.0.0", "ips": []}))] {
        entry.result = result;
        cache.put(&entry).unwrap();
        let left = disk.cut().unwrap();
        let read = |root: &Path| std::fs::read(root.join("cni/results/net-c2-eth0")).unwrap();
        assert_eq!(read(left.path()), read(&disk.path()));
    }
}
