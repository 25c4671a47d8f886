//! Caches as other versions wrote them: `tests/fixtures/state` has one of each.
//!
//! Invariant: the entries of [`entries`] are what the writer has written, and what is to be read.
//! Failure: an entry of an earlier version that this one reads otherwise, or loses.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::{Cache, CacheError, Entry};
use crate::{Attachment, NetworkConfig};

/// The directory for a fixture; without it, what is written goes with the test.
const TARGET: &str = "VMLET_STATE";

/// An attachment that is complete, one of a second link, and one whose ADD has not ended.
fn entries() -> Vec<Entry> {
    let network = |name: &str| {
        let text = format!(
            r#"{{"cniVersion":"1.1.0","name":"{name}","plugins":[{{"type":"bridge","bridge":"cni0","capabilities":{{"portMappings":true}}}}]}}"#
        );
        NetworkConfig::parse(text.as_bytes()).unwrap()
    };
    let attachment = |digits: &str, ifname: &str| Attachment {
        container_id: digits.repeat(28) + "766d6c74",
        netns: format!("/run/netns/vmlet-{digits}").into(),
        ifname: ifname.into(),
        args: vec![
            ("IgnoreUnknown".into(), "1".into()),
            ("K8S_POD_NAME".into(), "web".into()),
        ],
        capabilities: BTreeMap::from([(
            "portMappings".into(),
            json!([{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }]),
        )]),
    };
    let result = json!({
        "cniVersion": "1.1.0",
        "interfaces": [{ "name": "eth0", "mac": "02:00:00:00:00:a1", "sandbox": "/run/netns/x" }],
        "ips": [{ "interface": 0, "address": "10.244.1.7/24", "gateway": "10.244.1.1" }],
        "routes": [{ "dst": "0.0.0.0/0" }],
    });
    vec![
        Entry::pending(&network("more"), &attachment("a1", "net1")).completed(result.clone()),
        Entry::pending(&network("pods"), &attachment("a1", "eth0")).completed(result),
        Entry::pending(&network("pods"), &attachment("a2", "eth0")),
    ]
}

#[test]
fn a_cache_that_is_written_is_read() {
    let scratch = tempfile::tempdir().unwrap();
    let target = std::env::var_os(TARGET).map_or_else(|| scratch.path().to_owned(), PathBuf::from);
    let target = target.join("cni");
    let cache = Cache::new(target.clone());
    for entry in entries() {
        cache.put(&entry).unwrap();
    }
    fs::remove_dir(target.join("partial")).unwrap();
    assert_eq!(Cache::new(target).all().unwrap(), entries());
}

/// A copy of each version's cache.
fn caches() -> Vec<(tempfile::TempDir, Cache)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/state");
    let versions = fs::read_dir(root).unwrap();
    let versions = versions.map(|entry| entry.unwrap().path().join("cni/results"));
    let copied = versions.filter(|path| path.is_dir()).map(|results| {
        let dir = tempfile::tempdir().unwrap();
        let copy = dir.path().join("results");
        fs::create_dir(&copy).unwrap();
        for file in fs::read_dir(results).unwrap() {
            let path = file.unwrap().path();
            fs::copy(&path, copy.join(path.file_name().unwrap())).unwrap();
        }
        let cache = Cache::new(dir.path().to_owned());
        (dir, cache)
    });
    let copied: Vec<_> = copied.collect();
    assert!(!copied.is_empty());
    copied
}

#[test]
fn caches_of_earlier_versions_are_read_as_they_were_written() {
    for (_dir, cache) in caches() {
        assert_eq!(cache.all().unwrap(), entries());
        for entry in entries() {
            assert_eq!(cache.find(&entry.id()).unwrap(), [entry]);
        }
    }
}

#[test]
fn a_garbled_entry_stays_and_hides_no_other() {
    for (dir, cache) in caches() {
        let garbled = entries().remove(1);
        let file = dir
            .path()
            .join("results")
            .join(format!("pods-{}-eth0", garbled.id().container_id));
        let text = fs::read_to_string(&file).unwrap();
        for damage in [&text[..40], "", "{}", "\u{fffd}"] {
            fs::write(&file, damage).unwrap();
            let mut others = entries();
            others.remove(1);
            assert_eq!(cache.all().unwrap(), others);
            assert!(cache.find(&garbled.id()).unwrap().is_empty());
            // Of another runtime it is not known what is in it: nothing is collected then.
            assert!(matches!(cache.every(), Err(CacheError::Format { .. })));
            assert_eq!(fs::read_to_string(&file).unwrap(), damage);
        }
    }
}
