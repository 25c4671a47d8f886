//! Journals as other versions wrote them: `tests/fixtures/state` has one of each.
//!
//! Invariant: the entries of [`entries`] are what the writer has written, and what is to be read.
//! Failure: an entry of an earlier version that this one reads otherwise, or loses.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::*;

/// The directory for a fixture; without it, what is written goes with the test.
const TARGET: &str = "VMLET_STATE";

fn id(digits: &str) -> String {
    digits.repeat(28) + "766d6c74"
}

/// One sandbox of each phase; the first one is also about to be started.
fn entries() -> Vec<Entry> {
    let request = |digits: &str| AddRequest {
        id: id(digits),
        pod_name: "web".to_owned(),
        pod_namespace: "default".to_owned(),
        pod_uid: "uid-of-web".to_owned(),
        hostname: "web".to_owned(),
        mac: "02:00:00:00:00:a1".to_owned(),
        allow_spoofing: true,
        ..AddRequest::default()
    };
    let entry = |digits: &str, phase: Phase| {
        let netns = format!("/run/netns/vmlet-{}", id(digits));
        let mut entry = Entry::new(request(digits), netns.into());
        entry.phase = phase;
        entry.boot = "0a1b2c3d-0000-4000-8000-000000000001".to_owned();
        entry
    };
    let mut up = entry("a1", Phase::Up);
    let network = json!({
        "id": id("a1"),
        "netns": up.netns,
        "nics": [{
            "link": "eth0", "mac": "02:00:00:00:00:a1", "mtu": 1450, "bridge": "br0", "tap": "tap0",
            "addresses": [{ "net": "10.244.1.7/24", "gateway": "10.244.1.1" }],
            "routes": [{ "dst": "0.0.0.0/0", "gw": "10.244.1.1" }],
        }],
        "dns": { "servers": ["10.96.0.10"], "searches": [], "options": [] },
        "cni_network": "pods",
        "cni_result": { "cniVersion": "1.1.0" },
    });
    up.network = Some(serde_json::from_value(network).unwrap());
    let link = json!({
        "link": "eth0", "mac": "02:00:00:00:00:a1", "mtu": 1450,
        "addresses": [], "routes": [], "bridge": "br0", "tap": "tap0",
        "port_mac": "02:00:00:00:00:b1", "bridge_mac": "02:00:00:00:00:c1",
    });
    up.links = vec![serde_json::from_value(link).unwrap()];
    up.start = Some(Start {
        token: "7".repeat(64),
        cgroup_parent: "/kubepods/pod-of-web".to_owned(),
        memory_bytes: 256 << 20,
        uid: Some(64_000),
        expires: 1_764_200_000,
    });
    vec![up, entry("a2", Phase::Adding), entry("a3", Phase::Removing)]
}

#[tokio::test]
async fn a_journal_that_is_written_is_read() {
    let scratch = tempfile::tempdir().unwrap();
    let target = std::env::var_os(TARGET).map_or_else(|| scratch.path().to_owned(), PathBuf::from);
    let target = target.join("tapmanager");
    let journal = Journal::open(&target).unwrap();
    for entry in entries() {
        journal.put(&entry).await.unwrap();
    }
    drop(journal);
    assert_eq!(read(&target), entries());
    std::fs::remove_file(target.join(LOCK)).unwrap();
}

/// All entries of a journal, none of which is broken.
fn read(directory: &Path) -> Vec<Entry> {
    let loaded = Journal::open(directory).unwrap().load().unwrap();
    let entries = loaded.into_iter().map(|(name, loaded)| match loaded {
        Loaded::Entry(entry) => *entry,
        Loaded::Broken(why) => panic!("{name}: {why}"),
    });
    entries.collect()
}

/// A copy of a version's journal.
fn copy(version: &Path) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(version.join("tapmanager")).unwrap() {
        let path = file.unwrap().path();
        std::fs::copy(&path, dir.path().join(path.file_name().unwrap())).unwrap();
    }
    dir
}

fn versions() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/state");
    let all = std::fs::read_dir(root).unwrap();
    let all = all.map(|entry| entry.unwrap().path());
    let all: Vec<_> = all
        .filter(|path| path.join("tapmanager").is_dir())
        .collect();
    assert!(!all.is_empty());
    all
}

#[test]
fn journals_of_earlier_versions_are_read_as_they_were_written() {
    for version in versions() {
        let dir = copy(&version);
        for start in ["first", "second"] {
            let read = read(dir.path());
            assert_eq!(read, entries(), "{start}: {}", version.display());
        }
    }
}

#[test]
fn a_garbled_entry_keeps_its_file_and_no_other_entry_from_being_read() {
    for version in versions() {
        for garbled in entries() {
            let dir = copy(&version);
            let file = dir.path().join(format!("{}.{SUFFIX}", garbled.request.id));
            let text = std::fs::read_to_string(&file).unwrap();
            for damage in [
                &text[..text.len() / 2],
                "",
                "{\"version\": 1, \"phase\": \"lost\"}",
            ] {
                std::fs::write(&file, damage).unwrap();
                let journal = Journal::open(dir.path()).unwrap();
                let loaded = journal.load().unwrap();
                let is_broken = |loaded: &Loaded| matches!(loaded, Loaded::Broken(_));
                let broken = loaded.iter().filter(|(_, loaded)| is_broken(loaded));
                let broken: Vec<_> = broken.map(|(name, _)| name.clone()).collect();
                assert_eq!(broken, [garbled.request.id.as_str()]);
                assert_eq!(loaded.len(), entries().len());
                assert_eq!(std::fs::read_to_string(&file).unwrap(), damage);
            }
        }
    }
}
