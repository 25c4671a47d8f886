//! Objects as other versions of the controller stored them: `tests/fixtures/state` has some of each.
//!
//! Invariant: a file of the fixtures holds all objects of a cluster with one machine, by the path of
//! their collection.
//! Failure: an object of an earlier version that this one reads otherwise, or acts on.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::bench::*;
use super::power_rows::machine_that_is;

/// The directory for a fixture; without it, what is written goes with the test.
const TARGET: &str = "VMLET_STATE";

/// The clusters, by the state of their machine.
async fn clusters() -> Vec<(&'static str, Bench)> {
    let mut all = Vec::new();
    for state in ["PoweredOn", "PoweredOff", "Suspended"] {
        all.push((state, Box::pin(machine_that_is(state, json!({}))).await));
    }
    let mut provisioning = Bench::new();
    Box::pin(provisioning.provisioning(json!({}))).await;
    all.push(("Provisioning", provisioning));
    all
}

#[tokio::test]
async fn a_cluster_that_is_written_is_read_and_its_machine_goes_on() {
    let scratch = tempfile::tempdir().unwrap();
    let target = std::env::var_os(TARGET).map_or_else(|| scratch.path().to_owned(), PathBuf::from);
    let target = target.join("cluster");
    std::fs::create_dir_all(&target).unwrap();
    for (state, bench) in clusters().await {
        let mut collections = Map::new();
        for ((collection, _), object) in &bench.server.lock().unwrap().objects {
            let all = collections.entry(collection.clone());
            let all = all.or_insert_with(|| json!([])).as_array_mut();
            all.unwrap().push(object.clone());
        }
        let text = serde_json::to_string_pretty(&Value::Object(collections)).unwrap();
        let file = target.join(format!("{state}.json"));
        std::fs::write(&file, text + "\n").unwrap();
        is_read(state, &file).await;
    }
}

/// A cluster with the objects of a file; the classes and images are those of the file, too.
fn loaded(file: &Path) -> Bench {
    let text = std::fs::read_to_string(file).unwrap();
    let collections: Map<String, Value> = serde_json::from_str(&text).unwrap();
    let mut bench = Bench::new();
    {
        let mut server = bench.server.lock().unwrap();
        server.objects.clear();
        for (collection, objects) in collections {
            for object in objects.as_array().unwrap() {
                let name = object["metadata"]["name"].as_str().unwrap().to_owned();
                server
                    .objects
                    .insert((collection.clone(), name), object.clone());
            }
        }
    }
    bench.sync();
    bench
}

/// All clusters of all versions, with the state of their machine.
fn files() -> Vec<(String, PathBuf)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/state");
    let versions = std::fs::read_dir(root).unwrap();
    let versions = versions.map(|entry| entry.unwrap().path().join("cluster"));
    let mut all = Vec::new();
    for cluster in versions.filter(|path| path.is_dir()) {
        for file in std::fs::read_dir(cluster).unwrap() {
            let path = file.unwrap().path();
            let state = path.file_stem().unwrap().to_str().unwrap().to_owned();
            if state != "lease" {
                all.push((state, path));
            }
        }
    }
    assert!(all.len() >= 4);
    all
}

#[tokio::test]
async fn objects_of_earlier_versions_are_read_and_their_machines_go_on() {
    for (state, file) in files() {
        for _start in ["first", "second"] {
            is_read(&state, &file).await;
        }
    }
}

/// A start on the objects of a file changes nothing of their machine.
async fn is_read(state: &str, file: &Path) {
    let mut bench = loaded(file);
    let stored = bench.get(VMS, "vm");
    let before = bench.status();
    let has_pod = bench.has_pod();
    bench.settle().await.ok();
    let writes = bench.writes();
    let destructive = |write: &&String| {
        write.starts_with("DELETE") || write.starts_with("POST") && !write.contains("events")
    };
    let acts: Vec<_> = writes.iter().filter(destructive).collect();
    assert!(acts.is_empty(), "{state}: {acts:?}");
    let after = bench.status();
    assert_eq!(bench.has_pod(), has_pod, "{state}");
    assert_eq!(after.power_state, before.power_state, "{state}");
    assert_eq!(after.printable_status, before.printable_status, "{state}");
    assert_eq!(after.disk_uid, before.disk_uid, "{state}");
    let spec = serde_json::to_value(&bench.vm().spec).unwrap();
    let mut kept = spec.clone();
    json_patch::merge(&mut kept, &stored["spec"]);
    assert_eq!(kept, spec, "{state}: fields of the specification were lost");
}
